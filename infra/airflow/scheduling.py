"""What the files in dags/ share: which pipelines there are, when they run, how a step is run as a task.

``SLOTLAKE_PIPELINES`` names pipeline files, or folders with ``*.yaml`` or ``*.yml`` in them, separated as
in PATH.  Reading them costs no network and imports neither Spark nor numba, because Airflow does it each
time it parses a DAG file; what a task needs is imported when it runs.

Invariants: a pipeline file that is wrong takes away its own DAGs and no others (dags/cdc_pipeline_files.py
then says what is wrong); what a task returns holds batch names, LSNs, counts and table names only; a
password never reaches a task's log, XCom or rendered fields.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from slotlake.decoder.errors import PipelineFileError, SlotlakeError
from slotlake.decoder.lsn import format_lsn, parse_lsn
from slotlake.infra.config.pipeline_file import PipelineFile, load_pipeline

VARIABLE = "SLOTLAKE_PIPELINES"
_SUFFIXES = (".yaml", ".yml")
# What copies whole databases, by hand; and a look.
BY_HAND, LOOK = timedelta(days=14), timedelta(minutes=10)
_PULLED = ("batch", "start_lsn", "end_lsn", "transactions", "changes")


def pipelines() -> list[PipelineFile]:
    """The pipelines whose files are right and that have not been dropped, by name."""
    return _read()[0]


def problems() -> list[PipelineFileError]:
    """What is wrong with the other files, one error each."""
    return _read()[1]


def start_options(pipeline: PipelineFile, longest: timedelta | None = None) -> dict[str, Any]:
    """What all DAGs of a pipeline have in common, as keyword arguments of ``DAG``.

    Args:
        longest: how long a run may take before Airflow ends it, so that one that hangs does not keep all
            later ones from the pool; the pipeline file's ``airflow.run_hours_max``, when not given.
    """
    return {
        "dagrun_timeout": longest or timedelta(hours=pipeline.airflow.run_hours_max),
        "start_date": datetime(2026, 1, 1, tzinfo=UTC),
        "catchup": False,
        "max_active_runs": 1,
        "tags": ["slotlake", pipeline.name],
        "default_args": {
            # One place per replication slot: PostgreSQL lets one reader at a time near it.
            "pool": pipeline.pool,
            "retries": 4,
            "retry_delay": timedelta(seconds=5),
            "retry_exponential_backoff": True,
            "max_retry_delay": timedelta(minutes=5),
        },
    }


def schedule(pipeline: PipelineFile) -> str | timedelta | None:
    """When cdc_sync runs: a cron expression, a time between runs, or None for by hand only."""
    return schedule_of(pipeline.airflow.schedule)


def verification(pipeline: PipelineFile, batches: Any) -> Any:
    """When cdc_verify runs: a schedule, each event of ``batches`` (the asset), or None for by hand only."""
    when = pipeline.airflow.verify
    return {"every_batch": [batches], "daily": "@daily", "manual": None}.get(str(when), schedule_of(when))


def schedule_of(when: str | int | None) -> str | timedelta | None:
    """A schedule of the pipeline file as Airflow takes it."""
    return timedelta(seconds=when) if isinstance(when, int) else when


def asset_uri(pipeline: PipelineFile) -> str:
    """The asset of which each published batch is an event."""
    return f"slotlake://{pipeline.name}"


def run_step(step: str, pipeline_file: str, *arguments: Any) -> dict[str, Any]:
    """Run one function of ``infra.airflow.steps`` as an Airflow task.

    Raises:
        AirflowFailException: waiting cannot help; the task fails at once, with the step's own message.
        AirflowException: the task may be tried again.
    """
    from airflow.sdk.exceptions import AirflowException, AirflowFailException

    try:
        _hide_secrets(pipeline_file)
        function = getattr(importlib.import_module("slotlake.infra.airflow.steps"), step)
        result: dict[str, Any] = function(pipeline_file, *arguments)
    except SlotlakeError as error:
        kind = AirflowException if error.retryable else AirflowFailException
        raise kind(str(error)) from None
    return result


def pull(pipeline_file: str) -> dict[str, Any]:
    """The step ``pull``; only what the next steps need is kept."""
    pulled = run_step("pull", pipeline_file)
    return {name: pulled[name] for name in _PULLED}


def batch_of(pulled: Mapping[str, Any]) -> str:
    """The batch that was pulled.

    Raises:
        AirflowSkipException: nothing was new; what would work on a batch is skipped.
    """
    from airflow.sdk.exceptions import AirflowSkipException

    batch = pulled["batch"]
    if batch is None:
        raise AirflowSkipException(f"nothing new; the lake is at {pulled['end_lsn']}")
    return str(batch)


def verify(pipeline_file: str, ranges: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The step ``verify``, at or after what the given asset events' extras tell of.

    Raises:
        AirflowFailException: lake and source differ, or the step failed.
        AirflowException: a table was locked, and all others are equal: tried again.
    """
    from airflow.sdk.exceptions import AirflowException, AirflowFailException

    from slotlake.expectations.results import LOCKED

    report = run_step("verify", pipeline_file, covered(ranges))
    if not report["equal"]:
        kinds = {kind for table in report["tables"].values() for kind in table.get("kinds", ())}
        raise (AirflowException if kinds == {LOCKED} else AirflowFailException)(
            f"lake and source differ at {report['lsn']}: {report['tables']}\n"
            f"  what to do: slotlake verify {Path(pipeline_file).name} lists the keys that differ"
        )
    return report


def maintain(pipeline_file: str) -> dict[str, Any]:
    """The step ``maintain``; of its tables only those to which something was done."""
    report = run_step("maintain", pipeline_file)
    counts = ("rewritten_files", "expired_snapshots", "removed_files")
    tables = [table for table in report["tables"] if any(table[count] for count in counts)]
    return {**report, "tables": tables, "all_tables": len(report["tables"])}


def on_warning(pipeline: PipelineFile) -> Callable[[Any], None] | None:
    """What Airflow is to call when the monitor warns: the file's ``monitor.on_warning``, imported then."""
    named = pipeline.monitor.on_warning
    if named is None:
        return None
    module, _, function = named.partition(":")

    def call(context: Any) -> None:
        getattr(importlib.import_module(module), function)(context)

    return call


def covered(ranges: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The range from the first start to the last end of several batches; empty when there are none."""
    known = [(parse_lsn(r["start_lsn"]), parse_lsn(r["end_lsn"])) for r in ranges if "end_lsn" in r]
    if not known:
        return {}
    return {
        "start_lsn": format_lsn(min(start for start, _ in known)),
        "end_lsn": format_lsn(max(end for _, end in known)),
    }


def _hide_secrets(pipeline_file: str) -> None:
    """Let Airflow mask the pipeline's passwords and tokens in whatever any library might log."""
    from airflow.sdk.log import mask_secret

    from slotlake.infra.config.secrets import secrets_of

    for secret in secrets_of(load_pipeline(pipeline_file)):
        mask_secret(secret)


def _read() -> tuple[list[PipelineFile], list[PipelineFileError]]:
    right: dict[str, PipelineFile] = {}
    wrong: list[PipelineFileError] = []
    for file in _files():
        try:
            pipeline = load_pipeline(file)
            if pipeline.name in right:
                raise PipelineFileError(
                    f"name: the pipeline {pipeline.name!r} is also in {right[pipeline.name].path}",
                    where=str(file),
                    way_out="give each pipeline a name of its own",
                )
            if not pipeline.dropped_note.exists():
                right[pipeline.name] = pipeline
        except PipelineFileError as error:
            wrong.append(error)
    return [right[name] for name in sorted(right)], wrong


def _files() -> list[Path]:
    files: list[Path] = []
    for entry in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        path = Path(entry).expanduser()
        if path.is_dir():
            files += sorted(child for child in path.iterdir() if child.suffix in _SUFFIXES)
        else:
            files.append(path)
    return files
