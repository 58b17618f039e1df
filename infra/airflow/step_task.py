"""The decorator ``task`` of the DAG files: Airflow's own, with a link to the page and lineage.

A task has the link **slotlake** to the pipeline's page (infra/airflow/page.py).  Airflow's provider for
OpenLineage, where it is installed, asks the operator which tables the task has read and written
(infra/airflow/lineage.py).
"""

from __future__ import annotations

from typing import Any, ClassVar

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import BaseOperatorLink
from airflow.sdk.bases.decorator import DecoratedOperator, task_decorator_factory

from slotlake.infra.airflow.base_path import PREFIX, base_path


class PipelineLink(BaseOperatorLink):  # type: ignore[misc]  # Airflow is not followed
    """The pipeline's page, on a task of a run."""

    name = "slotlake"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the path of the page of the task's DAG, on Airflow's own host."""
        del ti_key
        return f"{base_path()}{PREFIX}/dag/{operator.dag_id}"


class StepOperator(DecoratedOperator, PythonOperator):  # type: ignore[misc]
    """Runs a function of a DAG file."""

    custom_operator_name = "slotlake"
    template_fields = ("templates_dict", "op_args", "op_kwargs")
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "templates_dict": "json",
        "op_args": "py",
        "op_kwargs": "py",
    }
    operator_extra_links = (PipelineLink(),)

    def __init__(self, *, python_callable: Any, op_args: Any, op_kwargs: Any, **options: Any) -> None:
        given = {"python_callable": python_callable, "op_args": op_args, "op_kwargs": op_kwargs}
        super().__init__(kwargs_to_upstream=given, **given, **options)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return the tables that this task has read and written, for Airflow's OpenLineage provider."""
        del task_instance
        from slotlake.infra.airflow.lineage import operator_lineage

        return operator_lineage()


def task(python_callable: Any = None, **options: Any) -> Any:
    """Make a task of a function, as Airflow's own ``task`` does."""
    return task_decorator_factory(
        python_callable=python_callable, decorated_operator_class=StepOperator, **options
    )
