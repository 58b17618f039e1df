"""What the files in dags/ share: the list of pipelines, their schedules, and how a task runs a step.

``SLOTLAKE_PIPELINES`` lists pipeline files, or folders with ``*.yaml`` or ``*.yml`` files, separated as in
PATH.  Airflow reads them each time it parses a DAG file, so this needs no network and imports neither Spark
nor numba; a task imports what it needs when it runs.

Invariants: a wrong pipeline file removes its own DAGs and no others (dags/cdc_pipeline_files.py says what is
wrong). A task returns only batch names, LSNs, counts and table names. A password never reaches a task's log,
XCom or rendered fields.
"""

from __future__ import annotations

import importlib
import itertools
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from slotlake.decoder.errors import PipelineFileError, SlotlakeError
from slotlake.decoder.lsn import format_lsn, parse_lsn
from slotlake.infra.airflow.words import compiled_loops, log_compiled, log_step, table_differs
from slotlake.infra.config.airflow import ON_CHANGE
from slotlake.infra.config.pipeline_file import PipelineFile, load_pipeline

SCOPES = ("as the pipeline file says", "full", "changed", "rolling")  # what cdc_verify's form offers
VARIABLE = "SLOTLAKE_PIPELINES"
_SUFFIXES = (".yaml", ".yml")
# The longest run of a DAG that is started by hand and may copy a whole database; and of the monitor.
BY_HAND, LOOK = timedelta(days=14), timedelta(minutes=10)
# The steps that a dropped pipeline can have.
_BEGINNINGS = ("bootstrap", "copy_worker", "plan_recovery", "recover")
_ENTRIES_MAX = 100  # of a list in an XCom
# The fields of the forms, by the options of the command, which errors name; not in a command's own line.
FORM = {"table": "Tables", "where": "WHERE", "key-range": "Key range", "dry-run": "Dry run"}
_FLAG = re.compile(rf"(?<!backfill )--({'|'.join(FORM)})\b")
_TABLES_MAX = 20  # in the error of a verification
_ROLLING_SECONDS = 3600.0  # between two runs of cdc_verify that compare slices
_PULLED = ("batch", "start_lsn", "end_lsn", "transactions", "changes", "set_aside", "resumed")


def pipelines() -> list[PipelineFile]:
    """Return the pipelines with a correct file, except dropped ones, ordered by name."""
    return _read()[0]


def problems() -> list[PipelineFileError]:
    """Return one error for each wrong pipeline file."""
    return _read()[1]


def start_options(pipeline: PipelineFile, longest: timedelta | None = None, *, title: str) -> dict[str, Any]:
    """Return the keyword arguments of ``DAG`` that all DAGs of a pipeline share.

    Args:
        longest: after this time, Airflow ends a run, so a run that hangs does not block the pool for ever;
            None: ``airflow.run_hours_max`` of the pipeline file.
        title: what the DAG does, for the lists of Airflow's pages.
    """
    owner, link = pipeline.airflow.owner, pipeline.airflow.owner_link
    return {
        "dag_display_name": f"{pipeline.name}: {title}",
        "owner_links": {owner: link} if link else {},
        "dagrun_timeout": longest or timedelta(hours=pipeline.airflow.run_hours_max),
        "start_date": datetime(2026, 1, 1, tzinfo=UTC),
        "catchup": False,
        "max_active_runs": 1,
        "tags": ["slotlake", pipeline.name, *pipeline.airflow.tags],
        "default_args": {
            "owner": owner,
            # The pool has one place per replication slot: PostgreSQL allows one reader at a time.
            "pool": pipeline.pool,
            "retries": 4,
            "retry_delay": timedelta(seconds=5),
            "retry_exponential_backoff": True,
            "max_retry_delay": timedelta(minutes=5),
            "show_return_value_in_logs": False,  # the log has it in words
        },
    }


def deadline(pipeline: PipelineFile) -> dict[str, Any]:
    """Return the keyword arguments of ``DAG`` that make Airflow warn of a late run of cdc_sync."""
    late = pipeline.airflow.deadline
    if late is None:
        return {}
    from airflow.sdk.definitions.callback import SyncCallback
    from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

    working = pipeline.airflow.run_for if pipeline.airflow.run == "continuous" else 0.0
    # By its name: importing it takes seconds. In a worker, not in the triggerer, which few have.
    callback = SyncCallback("slotlake.infra.airflow.late.warn", {"pipeline_file": str(pipeline.path)})
    alert = DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=timedelta(seconds=working + late),
        callback=callback,
        name=f"slotlake {pipeline.name}",
    )
    return {"deadline": alert}


def kind_of_run(pipeline: PipelineFile) -> str:
    """Return what a run of cdc_sync is: ``four`` tasks, ``one`` task, or ``continuous``."""
    return "continuous" if pipeline.airflow.run == "continuous" else pipeline.airflow.tasks


def schedule(pipeline: PipelineFile) -> Any:
    """Return when cdc_sync runs: a cron expression, the time between two runs, assets, or None (by hand).

    Continuous runs follow each other at once, unless the pipeline file has a schedule.
    """
    if pipeline.airflow.schedule == ON_CHANGE:
        return [_watched(pipeline)]
    if pipeline.airflow.run == "continuous" and "schedule" not in pipeline.airflow.model_fields_set:
        return "@continuous"
    return schedule_of(pipeline.airflow.schedule)


def _watched(pipeline: PipelineFile) -> Any:
    """Return the asset that stands for the source; the triggerer watches it, and each wake is an event."""
    from airflow.sdk import Asset, AssetWatcher

    from slotlake.infra.airflow.watcher import SourceTrigger

    watcher = AssetWatcher(name="wal", trigger=SourceTrigger(pipeline_file=str(pipeline.path)))
    uri = f"slotlake://{pipeline.name}/source"
    return Asset(name=f"slotlake_{pipeline.name}_source", uri=uri, watchers=[watcher])


def verification(pipeline: PipelineFile, batches: Any) -> Any:
    """Return when cdc_verify runs: a schedule, each event of the asset ``batches``, or None (by hand)."""
    when, settings = pipeline.airflow.verify, pipeline.verify
    if "verify" not in pipeline.airflow.model_fields_set and settings.is_left_on:
        if settings.changed == "every_batch":
            return [batches]
        return timedelta(seconds=min(_ROLLING_SECONDS, (settings.full_within or 7 * 86400.0) / 24))
    return {"every_batch": [batches], "daily": "@daily", "manual": None}.get(str(when), schedule_of(when))


def schedule_of(when: str | int | None) -> str | timedelta | None:
    """Return a schedule of the pipeline file in Airflow's form."""
    return timedelta(seconds=when) if isinstance(when, int) else when


def run_step(step: str, pipeline_file: str, *arguments: Any) -> dict[str, Any]:
    """Run one function of ``infra.airflow.steps`` as an Airflow task.

    Raises:
        AirflowFailException: a new attempt cannot help; the task fails at once, with the step's message.
        AirflowException: a new attempt can help.
    """
    from slotlake.infra.airflow.versions import AirflowException, AirflowFailException

    compiled = compiled_loops()
    try:
        hide_secrets(pipeline_file)
        steps = importlib.import_module("slotlake.infra.airflow.steps")
        _skip_if_dropped(step, pipeline_file, steps)
        result: dict[str, Any] = getattr(steps, step)(pipeline_file, *arguments)
    except SlotlakeError as error:
        kind = AirflowException if error.retryable else AirflowFailException
        raise kind(_FLAG.sub(lambda flag: FORM[flag[1]], str(error))) from None
    log_step(step, result)
    log_compiled(compiled)
    return result


def _skip_if_dropped(step: str, pipeline_file: str, steps: Any) -> None:
    """Skip the tasks of a pipeline that was dropped, where who parses DAG files cannot see that it was."""
    if step in _BEGINNINGS or load_pipeline(pipeline_file).state_bucket is None:
        return
    if steps.is_dropped(pipeline_file):
        from slotlake.infra.airflow.versions import AirflowSkipException

        raise AirflowSkipException(
            "this pipeline was dropped: remove its pipeline file, or begin again with cdc_bootstrap"
        )


def short_report(step: str, pipeline_file: str, *arguments: Any) -> dict[str, Any]:
    """Run a step as :func:`run_step`; return its report as it fits into an XCom."""
    return shortened(run_step(step, pipeline_file, *arguments))


def shortened(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return a report in which no list and no mapping has more than a hundred entries.

    An XCom is a row of Airflow's database, and a batch may touch ten thousand tables. ``more`` says how many
    entries are left out, by the name of the list; the task's log has what needs attention.
    """
    long = {name: value for name, value in report.items() if isinstance(value, list | dict)}
    more = {name: len(value) - _ENTRIES_MAX for name, value in long.items() if len(value) > _ENTRIES_MAX}
    first = {name: _first(long[name]) for name in more}
    return {**report, **first, **({"more": more} if more else {})}


def _first(entries: list[Any] | dict[str, Any]) -> list[Any] | dict[str, Any]:
    if isinstance(entries, list):
        return entries[:_ENTRIES_MAX]
    return dict(itertools.islice(entries.items(), _ENTRIES_MAX))


def carried(step: str, pipeline_file: str, outlet_events: Any, store: Any, *arguments: Any) -> dict[str, Any]:
    """Run a step that publishes; make the events of what it brought, and return its report.

    Args:
        step: the function's name in `infra.airflow.steps`.
        outlet_events: Airflow's, of a task with `assets.outlets`.
        store: Airflow's ``asset_state_store``; None before Airflow 3.3.
    """
    from slotlake.infra.airflow import assets

    report = run_step(step, pipeline_file, *arguments)
    assets.emit(load_pipeline(pipeline_file).name, report.pop("brought"), outlet_events, store)
    return shortened(report)


def pull(
    pipeline_file: str, task_instance: Any = None, only_with_changes: Sequence[str] = ()
) -> dict[str, Any]:
    """Run the step ``pull``; return what the next steps need, and tables that are set aside or resumed.

    Args:
        only_with_changes: tasks that are skipped if there was nothing new; no process starts for them.

    Raises:
        DownstreamTasksSkipped: there was nothing new; Airflow takes the task for a success.
    """
    step = run_step("pull", pipeline_file)
    pulled = shortened({name: step[name] for name in _PULLED})
    if pulled["batch"] is None and task_instance is not None and only_with_changes:
        from slotlake.infra.airflow.versions import DownstreamTasksSkipped

        task_instance.xcom_push(key="return_value", value=pulled)  # what follows has no value
        raise DownstreamTasksSkipped(tasks=list(only_with_changes))
    return pulled


def batch_of(pulled: Mapping[str, Any]) -> str:
    """Return the name of the batch that was pulled.

    Raises:
        AirflowSkipException: there was nothing new; tasks that work on a batch are skipped.
    """
    from slotlake.infra.airflow.versions import AirflowSkipException

    batch = pulled["batch"]
    if batch is None:
        raise AirflowSkipException(f"nothing new; the lake is at {pulled['end_lsn']}")
    return str(batch)


def verify(
    pipeline_file: str, ranges: Iterable[Mapping[str, Any]], scope: str | None = None
) -> dict[str, Any]:
    """Run the step ``verify``, at or after the batches of the asset events.

    Args:
        ranges: the extras of the asset events, with ``start_lsn`` and ``end_lsn``.
        scope: one of `SCOPES`; the first, or None: as the pipeline file says.

    Raises:
        AirflowFailException: lake and source differ, or the step failed.
        AirflowException: a table was locked or rewritten, and all others are equal; a new attempt can help.
    """
    from slotlake.expectations.results import NOT_COMPARED
    from slotlake.infra.airflow.versions import AirflowException, AirflowFailException

    chosen = () if scope in (None, SCOPES[0]) else (scope,)
    report = run_step("verify", pipeline_file, covered(ranges), *chosen)
    if not report["equal"]:
        kinds = {kind for table in report["tables"].values() for kind in table.get("kinds", ())}
        raise (AirflowException if kinds <= NOT_COMPARED else AirflowFailException)(
            "\n".join(
                [
                    *_different_tables(report["tables"]),
                    f"lake and source differ at {report['lsn']}",
                    f"  what to do: slotlake verify {Path(pipeline_file).name} lists the keys that differ",
                    *([f"  Data Docs: {docs}"] if (docs := report.get("data_docs")) else []),
                ]
            )
        )
    if failed := report.get("failed_suites"):
        raise AirflowFailException(
            f"lake and source are equal at {report['lsn']}, but rows fail suites: {'; '.join(failed)}\n"
            "  what to do: correct the rows at the source, or the suite; the Data Docs have examples"
        )
    return shortened(report)


def _different_tables(tables: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a line per table that differs; the first ones, for a message."""
    lines = [table_differs(name, table) for name, table in tables.items() if not table["equal"]]
    more = len(lines) - _TABLES_MAX
    return [*lines[:_TABLES_MAX], *([f"and {more:,} more tables"] if more > 0 else [])]


def maintain(pipeline_file: str) -> dict[str, Any]:
    """Run the step ``maintain``; return only those tables that it changed."""
    report = run_step("maintain", pipeline_file)
    counts = ("rewritten_files", "expired_snapshots", "removed_files")
    tables = [table for table in report["tables"] if any(table[count] for count in counts)]
    return shortened({**report, "tables": tables, "all_tables": len(report["tables"])})


def on_warning(pipeline: PipelineFile) -> Callable[[Any], None] | None:
    """Return a callback that imports and calls the file's ``monitor.on_warning``; None without one."""
    callback_path = pipeline.monitor.on_warning
    if callback_path is None:
        return None
    module, _, function = callback_path.partition(":")

    def call(context: Any) -> None:
        getattr(importlib.import_module(module), function)(context)

    return call


def covered(ranges: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the range from the first start to the last end of several batches; empty without batches."""
    positions = [(parse_lsn(r["start_lsn"]), parse_lsn(r["end_lsn"])) for r in ranges if "end_lsn" in r]
    if not positions:
        return {}
    return {
        "start_lsn": format_lsn(min(start for start, _ in positions)),
        "end_lsn": format_lsn(max(end for _, end in positions)),
    }


def hide_secrets(pipeline_file: str) -> None:
    """Let Airflow mask the pipeline's passwords and tokens in all log lines, also those of libraries."""
    from airflow.sdk.log import mask_secret

    from slotlake.infra.config.secrets import secrets_of

    for secret in secrets_of(load_pipeline(pipeline_file)):
        mask_secret(secret)


def _read() -> tuple[list[PipelineFile], list[PipelineFileError]]:
    correct: dict[str, PipelineFile] = {}
    errors: list[PipelineFileError] = []
    for file in pipeline_paths():
        try:
            pipeline = load_pipeline(file)
            if pipeline.name in correct:
                raise PipelineFileError(
                    f"name: the pipeline {pipeline.name!r} is also in {correct[pipeline.name].path}",
                    where=str(file),
                    way_out="give each pipeline its own name",
                )
            if not pipeline.dropped_note.exists():
                correct[pipeline.name] = pipeline
        except PipelineFileError as error:
            errors.append(error)
    return [correct[name] for name in sorted(correct)], errors


def pipeline_paths() -> list[Path]:
    """Return the paths of all pipeline files, correct or not."""
    files: list[Path] = []
    for entry in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        path = Path(entry).expanduser()
        if path.is_dir():
            files += sorted(child for child in path.iterdir() if child.suffix in _SUFFIXES)
        else:
            files.append(path)
    return files
