"""The monitor as an Airflow task: look, send gauges where Airflow sends its own, fail when someone is needed.

Failing is the warning: a task's failure is what Airflow's callbacks, alerts and listeners hang on.
Invariant: it takes no place in the slot's pool and no lock, so it never waits for a micro-batch, and goes on
while `cdc_sync` is paused, which is when it matters.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from slotlake.decoder.slots.pressure import span
from slotlake.infra.airflow.scheduling import run_step
from slotlake.infra.config.pipeline_file import load_pipeline
from slotlake.infra.reports import Alarm
from slotlake.infra.status.watch import gauges, megabytes

_PAUSED_SECONDS = 60.0


def watch(pipeline_file: str, task_instance: Any) -> dict[str, Any]:
    """Look once; what is returned holds numbers, kinds of alarms, and which tables are copied again.

    Args:
        task_instance: Airflow's, to ask whether `cdc_sync` is paused.

    Raises:
        AirflowSkipException: there is nothing to watch yet.
        AirflowException: source or lake cannot be reached; it may be tried again.
        AirflowFailException: somebody is needed; the message says for what.
    """
    from slotlake.infra.airflow.versions import AirflowException, AirflowFailException, AirflowSkipException

    file = load_pipeline(pipeline_file)
    name = file.name
    report = run_step("status", pipeline_file)
    numbers = gauges(report)
    send(name, numbers)
    state = str(report["state"])
    if state == "not initialised":
        raise AirflowSkipException(f"{name} is not initialised: trigger cdc_bootstrap_{name}")
    if state == "copying":
        raise AirflowSkipException(f"the first copy of {name} is under way")
    if state.endswith("unreachable"):
        raise AirflowException("\n".join(report["warnings"]))
    alarms = [Alarm(**alarm) for alarm in report["alarms"]]
    if state != "ready" and all(alarm.kind != state for alarm in alarms):
        alarms.append(Alarm("state", f"the pipeline's state is: {state}", "slotlake recover"))
    patience = min(_PAUSED_SECONDS, file.monitor.warn_lag_seconds or _PAUSED_SECONDS)
    alarms += paused(name, report, task_instance, patience)
    if alarms:
        told = [f"{alarm.what}\n  what to do: {alarm.way_out}" for alarm in alarms]
        raise AirflowFailException("\n".join(told))
    again = {
        f"{each['schema']}.{each['table']}": each["copied"]
        for each in report.get("set_aside", ())
        if each["cause"] == "again"
    }
    more = {"copied_again": again} if again else {}
    return {"state": state, "last_consistent_lsn": report["last_consistent_lsn"], **numbers, **more}


def paused(
    name: str, report: Mapping[str, Any], task_instance: Any, patience_seconds: float = _PAUSED_SECONDS
) -> list[Alarm]:
    """Nothing is synced while `cdc_sync` is paused, and the slot goes on holding WAL.

    Not so when something else syncs: the lag says it.
    """
    dag = f"cdc_sync_{name}"
    try:
        is_paused = bool(task_instance.get_dag(dag).is_paused)
    except Exception:  # noqa: BLE001 - Airflow does not say what it raises; an unknown DAG is not paused
        return []
    lag = report["lag_seconds"]
    if not is_paused or (lag is not None and lag <= patience_seconds):
        return []
    held = megabytes(report["retained_wal_bytes"] or 0)
    since = "" if lag is None else f", and nothing newer than {span(lag)} ago is in the lake"
    return [
        Alarm(
            "paused",
            f"{dag} is paused{since}; its slot goes on holding WAL ({held} now)",
            f"switch {dag} on again; if the pipeline is to end: slotlake drop",
        )
    ]


def send(name: str, numbers: Mapping[str, float]) -> None:
    """Gauges ``slotlake.<pipeline>.<what>``, to where Airflow sends its own (StatsD, OpenTelemetry)."""
    from slotlake.infra.airflow.versions import gauge

    for what, value in numbers.items():
        gauge(f"slotlake.{name}.{what}", value, tags={"pipeline": name})
    with suppress(Exception):
        # OpenTelemetry gathers and sends each half minute; a task may be gone by then.
        from opentelemetry.metrics import get_meter_provider

        get_meter_provider().force_flush()  # type: ignore[attr-defined]  # the SDK's has it
