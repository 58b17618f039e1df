"""Settings of Airflow's Celery workers by which they start warm.

``AIRFLOW__CELERY__CELERY_CONFIG_OPTIONS=slotlake.infra.airflow.celery_config.CONFIG``: Airflow's own
settings, and a module that Celery imports in a worker before it forks the processes for tasks.
"""

from __future__ import annotations

from typing import Any

from airflow.providers.celery.executors.default_celery import DEFAULT_CELERY_CONFIG

CONFIG: dict[str, Any] = {
    **DEFAULT_CELERY_CONFIG,
    "imports": [*DEFAULT_CELERY_CONFIG.get("imports", ()), "slotlake.infra.airflow.celery_worker"],
}
