"""Airflow's own address, for messages that its tasks send: it is known where a task begins."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

# Empty outside of Airflow, and without `[api] base_url` there. DAG files import this: no more here.
airflow_address: Final[ContextVar[str]] = ContextVar("airflow_address", default="")
