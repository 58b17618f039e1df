"""What the DAGs of a backfill share: the form's fields, and what a logical date of `cdc_sync` stands for.

Reading a DAG file must cost no network, so the tables to choose from come from the pipeline file and from a
note that `init` and `sync` leave in the state folder (infra/selection/known_tables.py).

A backfill of `cdc_sync` (Airflow's own button) never touches the live tables.  A logical date stands for the
interval that begins with it and ends with the next one of the schedule; runs for neighbouring dates go on
where the one before has ended, so N runs are one replay.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from slotlake.infra.airflow.scheduling import run_step, schedule
from slotlake.infra.config.pipeline_file import PipelineFile
from slotlake.infra.selection import known_tables

BACKFILL = "backfill"


def table_names(pipeline: PipelineFile) -> list[str]:
    """The tables that the form offers; empty if none is known yet."""
    return sorted({*known_tables.read_note(pipeline), *pipeline.tables})


def backfill(pipeline_file: str, form: Mapping[str, Any]) -> dict[str, Any]:
    """The step ``backfill``, with what a form holds: ``tables``, ``where``, ``key_range``, ``dry_run``.

    Raises:
        AirflowFailException: a table or the condition is wrong; nothing was done.
    """
    tables = [name.strip() for name in form.get("tables") or () if name.strip()]
    where, key_range = ((form.get(name) or "").strip() or None for name in ("where", "key_range"))
    return run_step("backfill", pipeline_file, tables, where, key_range, bool(form.get("dry_run")))


def is_backfill(run: Any) -> bool:
    """Was a run of `cdc_sync` made by Airflow's Backfill button?"""
    return str(getattr(run.run_type, "value", run.run_type)) == BACKFILL


def skip_in_a_backfill(run: Any) -> None:
    """End the task here in such a run: it must not touch the live tables.

    Raises:
        AirflowSkipException: it is one.
    """
    from slotlake.infra.airflow.versions import AirflowSkipException

    if is_backfill(run):
        raise AirflowSkipException("a backfill replays the archived change log instead, into scratch tables")


def replay(pipeline_file: str, scratch_namespace: str, pipeline: PipelineFile, run: Any) -> dict[str, Any]:
    """The step ``replay`` of the interval that a run's logical date stands for.

    Raises:
        AirflowSkipException: the lake has nothing of that time.
    """
    from slotlake.infra.airflow.versions import AirflowSkipException

    start, end = interval(pipeline, run)
    report = run_step("replay", pipeline_file, scratch_namespace, start.isoformat(), end.isoformat())
    if not report["covered"]:
        raise AirflowSkipException(f"the lake has no point between {start} and {end}, or keeps none that old")
    return report


def interval(pipeline: PipelineFile, run: Any) -> tuple[datetime, datetime]:
    """Start and end of what a run's logical date stands for."""
    start, end = run.data_interval_start, run.data_interval_end
    if start is None or end is None or end <= start:
        start = run.logical_date or run.run_after
        end = _next(schedule(pipeline), start)
    return start.astimezone(UTC), end.astimezone(UTC)


def _next(when: str | timedelta | None, start: datetime) -> datetime:
    if isinstance(when, timedelta):
        return start + when
    if when is None:
        return start
    from croniter import croniter  # type: ignore[import-untyped]

    following: datetime = croniter(when, start).get_next(datetime)
    return following
