"""The decorator ``task`` of the DAG files: Airflow's own, for functions that begin with a pipeline file.

An error of slotlake becomes one of Airflow's, and Airflow masks the pipeline's passwords.  A task has the
link **slotlake** to the pipeline's page (infra/airflow/page.py).  Airflow's provider for OpenLineage, where
it is installed, asks the operator which tables the task has read and written (infra/airflow/lineage.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import BaseOperatorLink
from airflow.sdk.bases.decorator import DecoratedOperator, task_decorator_factory

from slotlake.decoder.errors import SlotlakeError
from slotlake.infra.airflow.base_path import PREFIX, base_address, base_path
from slotlake.infra.airflow.scheduling import hide_secrets
from slotlake.infra.airflow.words import compiled_loops, log_compiled
from slotlake.infra.config.pipeline_file import load_pipeline
from slotlake.infra.notify.airflow_address import airflow_address

# The tasks that a dropped pipeline can have: of cdc_bootstrap and cdc_recover.
_BEGINNINGS = ("bootstrap", "copy_worker", "plan", "recover")
# The fields of the forms, by the options of the command, which errors name; not in a command's own line.
FORM = {"table": "Tables", "where": "WHERE", "key-range": "Key range", "dry-run": "Dry run"}
_FLAG = re.compile(rf"(?<!backfill )--({'|'.join(FORM)})\b")


@contextmanager
def as_task(task_id: str, pipeline_file: str) -> Iterator[None]:
    """Run what is inside as an Airflow task.

    Raises:
        AirflowFailException: a new attempt cannot help; the task fails at once, with the step's message.
        AirflowException: a new attempt can help.
    """
    from slotlake.infra.airflow.versions import AirflowException, AirflowFailException

    compiled = compiled_loops()
    address = base_address()
    airflow_address.set(address if "://" in address else "")
    try:
        hide_secrets(pipeline_file)
        _skip_if_dropped(task_id, pipeline_file)
        yield
    except SlotlakeError as error:
        kind = AirflowException if error.retryable else AirflowFailException
        raise kind(_FLAG.sub(lambda flag: FORM[flag[1]], str(error))) from None
    log_compiled(compiled)


def _skip_if_dropped(task_id: str, pipeline_file: str) -> None:
    """Skip the tasks of a pipeline that was dropped, where who parses DAG files cannot see that it was."""
    if task_id in _BEGINNINGS or load_pipeline(pipeline_file).state_bucket is None:
        return
    from slotlake.infra.airflow.steps import is_dropped

    if is_dropped(pipeline_file):
        from slotlake.infra.airflow.versions import AirflowSkipException

        raise AirflowSkipException(
            "this pipeline was dropped: remove its pipeline file, or begin again with cdc_bootstrap"
        )


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

    def execute_callable(self) -> Any:
        """Run the function as `as_task` does."""
        pipeline_file = self.op_args[0] if self.op_args else self.op_kwargs["pipeline_file"]
        with as_task(self.task_id, pipeline_file):
            return super().execute_callable()

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
