"""Warms a Celery worker of Airflow, which imports this module before it forks (see `celery_config`)."""

from __future__ import annotations

from slotlake.infra.airflow.worker_start import warm_up

WARM = warm_up()
