"""What the DAGs with a form of tables share: its fields; and the time range of a logical date of `cdc_sync`.

Airflow must be able to read a DAG file without a network. So the list of tables in the form comes from the
pipeline file and from a note that `init` and `sync` write to the state folder
(infra/selection/known_tables.py).

A backfill of `cdc_sync` (Airflow's own button) never changes the live tables.  A logical date means the time
from this date to the next date of the schedule. The run for the next date continues where the run before it
ended, so N runs are one replay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from slotlake.infra.airflow.scheduling import schedule
from slotlake.infra.config.pipeline_file import PipelineFile
from slotlake.infra.selection import known_tables

BACKFILL = "backfill"


def table_names(pipeline: PipelineFile) -> list[str]:
    """Return the tables that the form offers.

    Empty before `init` if the pipeline file names no tables; and if there are so many that each parse of the
    DAG file, and each page of Airflow with this DAG, would have to carry them: then names are typed.
    """
    names = sorted({*known_tables.read_note(pipeline), *pipeline.tables})
    return names if len(names) <= known_tables.OFFERED_MAX else []


def backfill(pipeline_file: str, form: Mapping[str, Any]) -> dict[str, Any]:
    """Run the step ``backfill`` with the fields of the form: tables, where, key_range, dry_run.

    Raises:
        AirflowFailException: a table or the condition is wrong; nothing has changed.
    """
    from slotlake.infra.airflow import steps  # here, because its imports are slow

    tables = [name.strip() for name in form.get("tables") or () if name.strip()]
    where, key_range = ((form.get(name) or "").strip() or None for name in ("where", "key_range"))
    return steps.backfill(pipeline_file, tables, where, key_range, bool(form.get("dry_run")))


def change_tables(pipeline_file: str, form: Mapping[str, Any]) -> dict[str, Any]:
    """Run the step ``change_tables`` with the fields of the form: add, remove, drop.

    Raises:
        AirflowFailException: a table is wrong, or the role may not change the publication.
    """
    from slotlake.infra.airflow import steps  # here, because its imports are slow

    added, removed = (
        [name.strip() for name in form.get(field) or () if name.strip()] for field in ("add", "remove")
    )
    return steps.change_tables(pipeline_file, added, removed, bool(form.get("drop")))


def is_backfill(run: Any) -> bool:
    """Return whether Airflow's Backfill button made this run."""
    return str(getattr(run.run_type, "value", run.run_type)) == BACKFILL


def skip_in_a_backfill(run: Any) -> None:
    """Skip the task in a run of the Backfill button: it must not change the live tables.

    Raises:
        AirflowSkipException: the Backfill button made the run.
    """
    from slotlake.infra.airflow.versions import AirflowSkipException

    if is_backfill(run):
        raise AirflowSkipException(
            "this run is a backfill, and there is no replay with run: continuous. "
            "What to do: use slotlake replay"
        )


def replay(
    pipeline: PipelineFile,
    scratch_namespace: str,
    run: Any,
    task_instance: Any = None,
    instead_of: Sequence[str] = (),
) -> dict[str, Any]:
    """Run the step ``replay`` for the time range of a run's logical date.

    Args:
        pipeline: the file's content, with the schedule.
        scratch_namespace: where the replayed tables are.
        run: Airflow's DAG run.
        instead_of: the tasks after this one, which work on live tables; no process starts for them.

    Raises:
        AirflowSkipException: the lake has no point of that time; the tasks after this one are skipped too.
        DownstreamTasksSkipped: there are tasks after this one; Airflow takes this one for a success.
    """
    from slotlake.infra.airflow import steps
    from slotlake.infra.airflow.versions import AirflowSkipException, DownstreamTasksSkipped

    start, end = interval(pipeline, run)
    times = (start.isoformat(), end.isoformat())
    report = steps.replay(str(pipeline.path), scratch_namespace, *times)
    if not report["covered"]:
        raise AirflowSkipException(f"the lake has no kept point between {start} and {end}")
    if instead_of:
        task_instance.xcom_push(key="return_value", value=report)  # what follows has no value
        raise DownstreamTasksSkipped(tasks=list(instead_of))
    return report


def interval(pipeline: PipelineFile, run: Any) -> tuple[datetime, datetime]:
    """Return start and end of the time range of a run's logical date, in UTC."""
    start, end = run.data_interval_start, run.data_interval_end
    if start is None or end is None or end <= start:
        start = run.logical_date or run.run_after
        end = _next(schedule(pipeline), start)
    return start.astimezone(UTC), end.astimezone(UTC)


def _next(when: Any, start: datetime) -> datetime:
    if isinstance(when, timedelta):
        return start + when
    if not isinstance(when, str):  # by hand, or when the source has changes
        return start
    from croniter import croniter  # type: ignore[import-untyped]

    following: datetime = croniter(when, start).get_next(datetime)
    return following
