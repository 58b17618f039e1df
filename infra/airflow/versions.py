"""Names that differ between Airflow 3.1, 3.2 and 3.3; imported when a task runs, as all of Airflow is."""

from __future__ import annotations

from typing import Any

try:
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowSkipException,
        DownstreamTasksSkipped,
    )
except ImportError:  # 3.1
    from airflow.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowSkipException,
        DownstreamTasksSkipped,
    )

__all__ = [
    "AirflowException",
    "AirflowFailException",
    "AirflowSkipException",
    "DownstreamTasksSkipped",
    "gauge",
]


def gauge(name: str, value: float, tags: dict[str, str]) -> None:
    """Send a gauge to where Airflow sends its own (StatsD, OpenTelemetry).

    Args:
        name: with dots, as StatsD writes it.
        tags: for OpenTelemetry; StatsD gets them if Airflow is configured so.
    """
    _metrics().gauge(name, value, tags=tags)


def _metrics() -> Any:
    try:
        from airflow.sdk.observability import stats
    except ImportError:  # 3.1
        from airflow.stats import Stats

        return Stats
    return stats if hasattr(stats, "gauge") else stats.Stats  # 3.2
