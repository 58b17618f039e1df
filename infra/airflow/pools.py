"""Makes the pool of a pipeline where Airflow lacks it: tasks whose pool does not exist are never started.

A pool has one place, because a slot has one reader.  The plugin (`infra.airflow.plugin`) makes this module a
listener of Airflow: who starts a scheduler or a DAG processor may write to Airflow's database, and so may the
scheduler when it starts a run. Tasks and the DAG files may not.  Invariants: a pool that is there stays as it
is, also with more places; if none can be made, the log says so, with the command, and Airflow goes on.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable
from typing import Any

from airflow.listeners import hookimpl

_PIPELINES = "SLOTLAKE_PIPELINES"
_OURS = "slotlake_"
_DESCRIPTION = "one place per replication slot"
_WRITERS = ("scheduler", "dag-processor")
_log = logging.getLogger(__name__)


@hookimpl  # type: ignore[untyped-decorator]  # Airflow is not followed
def on_starting(component: object) -> None:
    """Make the pools of the pipelines that are known, so that Airflow's pages warn of none.

    Args:
        component: what starts: a job of Airflow, or a task.
    """
    is_writer = type(component).__name__ == "Job" and sys.argv[1:2] and sys.argv[1] in _WRITERS
    if is_writer and os.environ.get(_PIPELINES):
        from slotlake.infra.airflow import scheduling  # here: every process of Airflow loads plugins

        make_missing(pipeline.pool for pipeline in scheduling.pipelines())


@hookimpl  # type: ignore[untyped-decorator]
def on_dag_run_running(dag_run: Any, msg: str) -> None:
    """Make the pools of a run's tasks, also of DAGs of one's own with operators of slotlake.

    Args:
        dag_run: Airflow's, with its session.
        msg: what Airflow says of it.
    """
    del msg
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import select
    from sqlalchemy.orm import object_session

    session = object_session(dag_run)
    if session is not None:
        of_run = (TaskInstance.dag_id == dag_run.dag_id, TaskInstance.run_id == dag_run.run_id)
        make_missing(session.scalars(select(TaskInstance.pool).where(*of_run).distinct()))


def make_missing(names: Iterable[str]) -> None:
    """Make pools that are named after a slot and do not exist.

    Args:
        names: of pools; others than those of slotlake are passed over.
    """
    ours = sorted({name for name in names if name.startswith(_OURS)})
    if not ours:
        return
    from sqlalchemy.exc import IntegrityError

    for name in ours:
        try:
            _make(name)
        except IntegrityError:  # another scheduler was first
            continue
        except Exception as error:  # noqa: BLE001 - of the database, whatever it is
            _log.warning(
                "slotlake: the pool %s cannot be made (%s), and tasks that need it do not start. What to do: "
                "airflow pools set %s 1 '%s'",
                name,
                type(error).__name__,
                name,
                _DESCRIPTION,
            )


def _make(name: str) -> None:
    from airflow.models.pool import Pool
    from airflow.utils.session import create_session
    from sqlalchemy import select

    # A session of its own: the scheduler's may not be committed here.
    with create_session(scoped=False) as session:
        if session.scalar(select(Pool).where(Pool.pool == name)) is None:
            session.add(Pool(pool=name, slots=1, description=_DESCRIPTION, include_deferred=False))
            _log.info("slotlake: made the pool %s, with one place", name)
