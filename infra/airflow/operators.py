"""For DAGs of one's own: an operator for each step, a sensor that waits for a position, and a hook.

The same steps as those of the DAGs that come with slotlake, with their logs, errors and XComs
(infra/airflow/steps.py).  Nothing heavy is imported where a DAG file is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseHook, BaseOperator, BaseSensorOperator

from slotlake.decoder.errors import PipelineFileError
from slotlake.infra.airflow.step_task import as_task
from slotlake.infra.config.pipeline_file import load_pipeline

if TYPE_CHECKING:
    from slotlake.infra.pipeline import Pipeline


class _StepOperator(BaseOperator):  # type: ignore[misc]  # Airflow is not followed
    """Runs one step of a pipeline.

    Args:
        pipeline_file: path of the pipeline file where the task runs; a template.
        options: Airflow's. The pool is that of the pipeline's DAGs, if the file can be read where the DAG
            file is: it has one place, so runs wait for each other in Airflow.
    """

    template_fields: ClassVar[Sequence[str]] = ("pipeline_file",)
    ui_color = "#d8ecf3"
    reads_slot: ClassVar[bool] = True

    def __init__(self, *, pipeline_file: str, **options: Any) -> None:
        with suppress(PipelineFileError):
            if self.reads_slot:
                options.setdefault("pool", load_pipeline(pipeline_file).pool)
        super().__init__(**options)
        self.pipeline_file = pipeline_file

    def execute(self, context: Any) -> Any:
        """Run the step; what it reports is the XCom."""
        with as_task(self.task_id, self.pipeline_file):
            return self.step(context)

    def step(self, context: Any) -> Any:
        """Do what the operator is for."""
        raise NotImplementedError


class SyncOperator(_StepOperator):
    """One micro-batch: pull, apply, publish, confirm. The XCom is the report of `slotlake sync --json`."""

    def step(self, context: Any) -> Any:
        """Run `slotlake.infra.airflow.steps.sync`, without asset events: these are `cdc_sync`'s."""
        from slotlake.infra.airflow import steps

        return steps.sync(self.pipeline_file)


class VerifyOperator(_StepOperator):
    """Compare lake and source at an exact LSN; the task fails if they differ, and its log says where.

    Args:
        scope: ``full``, ``changed`` or ``rolling``; None: as the pipeline file says.
    """

    template_fields: ClassVar[Sequence[str]] = ("pipeline_file", "scope")

    def __init__(self, *, scope: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.scope = scope

    def step(self, context: Any) -> Any:
        """Run `slotlake.infra.airflow.steps.verify`."""
        from slotlake.infra.airflow import steps

        return steps.verify(self.pipeline_file, scope=self.scope)


class BackfillOperator(_StepOperator):
    """Read tables, or some of their rows, again from the source at an exact LSN.

    Args:
        table: one or several, as PostgreSQL writes them.
        where: an SQL condition; None: all rows.
    """

    template_fields: ClassVar[Sequence[str]] = ("pipeline_file", "table", "where")

    def __init__(self, *, table: str | Sequence[str], where: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.table, self.where = table, where

    def step(self, context: Any) -> Any:
        """Run `slotlake.infra.airflow.steps.backfill`."""
        from slotlake.infra.airflow import steps

        tables = self.table if isinstance(self.table, str) else list(self.table)
        return steps.backfill(self.pipeline_file, tables, where=self.where)


class QueryOperator(_StepOperator):
    """A SELECT over the lake, all tables at one point; the XCom has ``lsn``, ``columns`` and ``rows``.

    Args:
        sql: for DuckDB, or with ``engine="spark"`` for Spark.
        at: an LSN or a time; None: the newest point.
    """

    template_fields: ClassVar[Sequence[str]] = ("pipeline_file", "sql", "at")
    reads_slot: ClassVar[bool] = False

    def __init__(self, *, sql: str, at: str | None = None, engine: str = "auto", **options: Any) -> None:
        super().__init__(**options)
        self.sql, self.at, self.engine = sql, at, engine

    def step(self, context: Any) -> Any:
        """Ask; every value is PostgreSQL's text of it."""
        with PipelineHook(self.pipeline_file).get_conn() as pipeline:
            result = pipeline.query(self.sql, self.at, engine=self.engine)
        return {
            "lsn": result.lsn,
            "columns": list(result.columns),
            "rows": [list(row) for row in result.rows],
        }


class PositionSensor(BaseSensorOperator):  # type: ignore[misc]
    """Waits until readers of the lake see everything up to an LSN, or that was committed by a time.

    Args:
        pipeline_file: path of the pipeline file where the task runs; a template.
        at_least: an LSN, or a time of the source's clock (ISO 8601; UTC if it names no zone); a template.
            By default the end of the run's data interval.
    """

    template_fields: ClassVar[Sequence[str]] = ("pipeline_file", "at_least")

    def __init__(
        self, *, pipeline_file: str, at_least: str = "{{ data_interval_end }}", **options: Any
    ) -> None:
        super().__init__(**options)
        self.pipeline_file, self.at_least = pipeline_file, at_least

    def poke(self, context: Any) -> bool:
        """Look at the lake once; of a time, at the source too, because a source that rests has no commit."""
        from slotlake.infra.query.queries import parsed_at

        with as_task(self.task_id, self.pipeline_file):
            wanted = parsed_at(self.at_least, "at_least")
            with PipelineHook(self.pipeline_file).get_conn() as pipeline:
                if isinstance(wanted, int):
                    reached: Any = pipeline.position()
                else:
                    from slotlake.infra.status.watch import complete_until

                    reached = datetime.fromtimestamp(complete_until(pipeline), UTC)
        self.log.info("the lake has reached %s", reached)
        return wanted is None or bool(reached >= wanted)


class PipelineHook(BaseHook):  # type: ignore[misc]
    """A pipeline in a task of one's own: its rows, queries and steps are `slotlake.Pipeline`'s.

    Args:
        pipeline_file: path of the pipeline file where the task runs.
    """

    def __init__(self, pipeline_file: str) -> None:
        super().__init__()
        self.pipeline_file = pipeline_file

    def get_conn(self) -> Pipeline:
        """Open the pipeline; ``with`` closes it.

        Raises:
            SlotlakeError: the pipeline file is wrong.
        """
        from slotlake.infra.pipeline import Pipeline

        return Pipeline.open(self.pipeline_file)
