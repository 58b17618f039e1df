"""cdc_bootstrap_<name>: create publication, slot and lake tables, and copy all rows; started by hand."""

from typing import Any

from airflow.sdk import DAG, task

from slotlake.infra.airflow import scheduling
from slotlake.infra.config.pipeline_file import PipelineFile

DOCS = """
### Create the pipeline, once

This DAG creates the publication, the replication slot and the lake tables. It copies all rows of the source
and publishes all tables at one LSN. Applications can write to the source meanwhile. When this DAG has
succeeded, switch on **cdc_sync**.

The task's log shows the progress of each table: state, rows, bytes, rows per second and the time that is
left. It writes a line when a table's state changes, and every ten seconds. The task returns the rows, the
ranges and the state of each table.

**Clearing `bootstrap`** is safe. The task keeps what exists already. If an initial copy was interrupted, it
copies the rest; readers never saw the unfinished tables.
"""


def cdc_bootstrap(pipeline: PipelineFile) -> None:
    @task(multiple_outputs=False)
    def bootstrap(pipeline_file: str) -> dict[str, Any]:
        return scheduling.short_report("bootstrap", pipeline_file)

    with DAG(
        f"cdc_bootstrap_{pipeline.name}",
        schedule=None,
        doc_md=DOCS,
        **scheduling.start_options(pipeline, scheduling.BY_HAND),
    ):
        bootstrap(str(pipeline.path))


for pipeline in scheduling.pipelines():
    cdc_bootstrap(pipeline)
