"""cdc_bootstrap_<name>: create publication, slot and lake tables, and copy all rows; started by hand."""

from typing import Any

from airflow.sdk import DAG

from slotlake.infra.airflow import scheduling
from slotlake.infra.airflow.step_task import task
from slotlake.infra.config.pipeline_file import PipelineFile

DOCS = """
### Create the pipeline, once

This DAG creates the publication, the replication slot and the lake tables. It copies all rows of the source
and publishes all tables at one LSN. Applications can write to the source meanwhile. When this DAG has
succeeded, switch on **cdc_sync**.

The task's log shows the progress of each table: state, rows, bytes, rows per second and the time that is
left. It writes a line when a table's state changes, and every ten seconds. The task returns the rows, the
ranges and the state of each table.

With `airflow.copy_tasks` in the pipeline file, so many tasks `copy_worker` copy ranges of the tables too, on
whatever workers Airflow gives them. They can fail or be cleared at any time: `bootstrap` copies what they
leave.

**Clearing `bootstrap`** is safe. The task keeps what exists already. If an initial copy was interrupted, it
copies the rest; readers never saw the unfinished tables.
"""


def cdc_bootstrap(pipeline: PipelineFile) -> None:
    @task(multiple_outputs=False)
    def bootstrap(pipeline_file: str) -> dict[str, Any]:
        from slotlake.infra.airflow import steps  # here, because its imports are slow

        return steps.bootstrap(pipeline_file)

    # Not in the pool of the slot, which has one place: it reads no slot.
    @task(multiple_outputs=False, pool="default_pool")
    def copy_worker(pipeline_file: str, number: int) -> dict[str, Any]:
        from slotlake.infra.airflow import steps  # here, because its imports are slow

        return steps.copy_worker(pipeline_file)

    with DAG(
        f"cdc_bootstrap_{pipeline.name}",
        schedule=None,
        doc_md=DOCS,
        **scheduling.start_options(pipeline, scheduling.BY_HAND, kind="bootstrap"),
    ):
        bootstrap(str(pipeline.path))
        if pipeline.airflow.copy_tasks:
            numbers = list(range(1, pipeline.airflow.copy_tasks + 1))
            copy_worker.partial(pipeline_file=str(pipeline.path)).expand(number=numbers)


for pipeline in scheduling.pipelines():
    cdc_bootstrap(pipeline)
