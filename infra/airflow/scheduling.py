"""What the files in dags/ share: the list of pipelines, their schedules, and what of a report an XCom has.

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
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from slotlake.decoder.errors import PipelineFileError
from slotlake.infra.config.airflow import ON_CHANGE
from slotlake.infra.config.pipeline_file import PipelineFile, load_pipeline

SCOPES = ("as the pipeline file says", "full", "changed", "rolling")  # what cdc_verify's form offers
VARIABLE = "SLOTLAKE_PIPELINES"
_SUFFIXES = (".yaml", ".yml")
# The longest run of a DAG that is started by hand and may copy a whole database; and of the monitor.
BY_HAND, LOOK = timedelta(days=14), timedelta(minutes=10)
_ENTRIES_MAX = 100  # of a list in an XCom
_ROLLING_SECONDS = 3600.0  # between two runs of cdc_verify that compare slices


def pipelines() -> list[PipelineFile]:
    """Return the pipelines with a correct file, except dropped ones, ordered by name."""
    return _read()[0]


def problems() -> list[PipelineFileError]:
    """Return one error for each wrong pipeline file."""
    return _read()[1]


def start_options(pipeline: PipelineFile, longest: timedelta | None = None, *, kind: str) -> dict[str, Any]:
    """Return the keyword arguments of ``DAG`` that all DAGs of a pipeline share.

    Args:
        longest: after this time, Airflow ends a run, so a run that hangs does not block the pool for ever;
            None: ``airflow.run_hours_max`` of the pipeline file.
        kind: what the DAG does: a tag, because Airflow's list finds a DAG by the beginning of its name alone.
    """
    owner, link = pipeline.airflow.owner, pipeline.airflow.owner_link
    return {
        "owner_links": {owner: link} if link else {},
        "dagrun_timeout": longest or timedelta(hours=pipeline.airflow.run_hours_max),
        "start_date": datetime(2026, 1, 1, tzinfo=UTC),
        "catchup": False,
        "max_active_runs": 1,
        "tags": ["slotlake", pipeline.name, kind, *pipeline.airflow.tags],
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


def skip_without_changes(pulled: Mapping[str, Any], task_instance: Any, tasks: Sequence[str]) -> None:
    """Skip tasks if there was nothing new; no process starts for them.

    Raises:
        DownstreamTasksSkipped: there was nothing new; Airflow takes the task for a success.
    """
    if pulled["batch"] is None:
        from slotlake.infra.airflow.versions import DownstreamTasksSkipped

        task_instance.xcom_push(key="return_value", value=pulled)  # what follows has no value
        raise DownstreamTasksSkipped(tasks=list(tasks))


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


def on_warning(pipeline: PipelineFile) -> Callable[[Any], None] | None:
    """Return a callback that imports and calls the file's ``monitor.on_warning``; None without one."""
    callback_path = pipeline.monitor.on_warning
    if callback_path is None:
        return None
    module, _, function = callback_path.partition(":")

    def call(context: Any) -> None:
        getattr(importlib.import_module(module), function)(context)

    return call


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
