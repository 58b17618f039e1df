"""The monitor as an Airflow task: read the status, send gauges, and fail if a person is needed.

The failure is the warning: Airflow's callbacks, alerts and listeners react to failed tasks.  Invariant: the
task takes no slot of the pipeline's pool and no lock. So it never waits for a micro-batch, and it also runs
while `cdc_sync` is paused, when it matters most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from slotlake.decoder.slots.pressure import span
from slotlake.infra.airflow import steps
from slotlake.infra.airflow.scheduling import shortened
from slotlake.infra.config.pipeline_file import load_pipeline
from slotlake.infra.reports import Alarm
from slotlake.infra.status.watch import gauges, megabytes

_PAUSED_SECONDS = 60.0
_ALARMS_MAX = 100  # in a task's error; ten thousand tables may be set aside for one cause


def watch(pipeline_file: str, task_instance: Any) -> dict[str, Any]:
    """Check the pipeline once; return the state, the gauges, and which tables are copied again.

    Args:
        task_instance: Airflow's, which knows whether `cdc_sync` is paused.

    Raises:
        AirflowSkipException: the pipeline has no published tables yet.
        AirflowException: the source or the lake cannot be reached; a new attempt can help.
        AirflowFailException: a person is needed; the message says why.
    """
    file = load_pipeline(pipeline_file)
    more: list[Alarm] = []

    def of_airflow(status: Mapping[str, Any]) -> list[Alarm]:
        patience = min(_PAUSED_SECONDS, file.monitor.warn_lag_seconds or _PAUSED_SECONDS)
        more.extend(paused(file.name, status, task_instance, patience))
        return more

    report = steps.status(pipeline_file, of_airflow)
    numbers = gauges(report)
    send(file.name, numbers)
    _require_published_tables(file.name, report)
    alarms = [*_alarms(report), *more]
    if alarms:
        from slotlake.infra.airflow.versions import AirflowFailException

        raise AirflowFailException(_alarm_lines(alarms))
    position = {"state": str(report["state"]), "last_consistent_lsn": report["last_consistent_lsn"]}
    return {**position, **numbers, **shortened(_copied_again(report))}


def _alarm_lines(alarms: Sequence[Alarm]) -> str:
    lines = [f"{alarm.what}\n  what to do: {alarm.way_out}" for alarm in alarms[:_ALARMS_MAX]]
    more = len(alarms) - len(lines)
    return "\n".join([*lines, *([f"and {more:,} more: slotlake status --all lists them"] if more else [])])


def _require_published_tables(name: str, report: Mapping[str, Any]) -> None:
    from slotlake.infra.airflow.versions import AirflowException, AirflowSkipException

    state = str(report["state"])
    if state == "not initialised":
        raise AirflowSkipException(f"pipeline {name} is not initialised: trigger cdc_bootstrap_{name}")
    if state == "copying":
        raise AirflowSkipException(f"the initial copy of pipeline {name} is running")
    if state.endswith("unreachable"):
        raise AirflowException("\n".join(report["warnings"]))


def _alarms(report: Mapping[str, Any]) -> list[Alarm]:
    state = str(report["state"])
    alarms = [Alarm(**alarm) for alarm in report["alarms"]]
    if state != "ready" and all(alarm.kind != state for alarm in alarms):
        alarms.append(Alarm("state", f"the pipeline's state is: {state}", "slotlake recover"))
    return alarms


def _copied_again(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables that are copied again over several syncs, with how much of each is copied."""
    tables = {
        f"{each['schema']}.{each['table']}": each["copied"]
        for each in report.get("set_aside", ())
        if each["cause"] == "again"
    }
    return {"copied_again": tables} if tables else {}


def paused(
    name: str, report: Mapping[str, Any], task_instance: Any, patience_seconds: float = _PAUSED_SECONDS
) -> list[Alarm]:
    """Return an alarm if `cdc_sync` is paused and nothing else syncs.

    Args:
        task_instance: Airflow's, which knows whether the DAG is paused.
        patience_seconds: with a smaller lag than this, something else syncs: no alarm.
    """
    dag = f"cdc_sync_{name}"
    try:
        is_paused = bool(task_instance.get_dag(dag).is_paused)
    except Exception:  # noqa: BLE001 - Airflow does not say what it raises; an unknown DAG is not paused
        return []
    lag = report["lag_seconds"]
    if not is_paused or (lag is not None and lag <= patience_seconds):
        return []
    retained = megabytes(report["retained_wal_bytes"] or 0)
    since = "" if lag is None else f", and the lake has nothing newer than {span(lag)} ago"
    return [
        Alarm(
            "paused",
            f"{dag} is paused{since}; its slot retains more and more WAL ({retained} now)",
            f"switch {dag} on again; to end the pipeline: slotlake drop",
        )
    ]


def send(name: str, numbers: Mapping[str, float]) -> None:
    """Send gauges ``slotlake.<pipeline>.<name>`` to where Airflow sends its own (StatsD, OpenTelemetry)."""
    from slotlake.infra.airflow.versions import gauge

    for what, value in numbers.items():
        gauge(f"slotlake.{name}.{what}", value, tags={"pipeline": name})
    with suppress(Exception):
        # OpenTelemetry sends every half minute; the task may have ended by then.
        from opentelemetry.metrics import get_meter_provider

        get_meter_provider().force_flush()  # type: ignore[attr-defined]  # the SDK's has it
