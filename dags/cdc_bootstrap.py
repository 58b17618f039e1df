"""cdc_bootstrap_<name>: make publication, slot and lake tables, and copy what the source holds; by hand."""

from typing import Any

from airflow.sdk import DAG, task

from slotlake.infra.airflow import scheduling
from slotlake.infra.config.pipeline_file import PipelineFile

DOCS = """
### Make the pipeline, once

Makes publication, replication slot and lake tables, copies what the source holds now, and publishes all
tables at one LSN. Writers are not held up. Switch on **cdc_sync** when this has succeeded.

The task's log says, whenever a table's state changes and every ten seconds, how far each table is: state,
rows, bytes, rate and time left. The task returns each table's rows, ranges and state.

**Clearing `bootstrap`** is safe: what is already made is left as it is, and an initial copy that was
cut off goes on with what is left; its half-made tables were never visible to readers.
"""


def cdc_bootstrap(pipeline: PipelineFile) -> None:
    @task(multiple_outputs=False)
    def bootstrap(pipeline_file: str) -> dict[str, Any]:
        return scheduling.run_step("bootstrap", pipeline_file)

    with DAG(
        f"cdc_bootstrap_{pipeline.name}",
        schedule=None,
        doc_md=DOCS,
        **scheduling.start_options(pipeline, scheduling.BY_HAND),
    ):
        bootstrap(str(pipeline.path))


for pipeline in scheduling.pipelines():
    cdc_bootstrap(pipeline)
