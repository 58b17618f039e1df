"""cdc_maintenance_<name>: keeps the lake's tables quick to read and small, on the file's schedule."""

from typing import Any

from airflow.sdk import DAG, task

from slotlake.infra.airflow import scheduling
from slotlake.infra.config.pipeline_file import PipelineFile

DOCS = """
### Keep the tables quick to read and small

Packs small files, writes files with many deleted rows without them, packs manifests, expires snapshots that
no kept point needs, and removes files that nothing leads to. No row changes, readers go on.

It shares the pipeline's pool with the micro-batches, so neither is ever in the other's way; a table with a
batch staged is left for the next run. It begins no further table after `maintenance.minutes_max`.

**Clearing `maintain`** is safe, also after a crash: each step is whole on its own.
"""


def cdc_maintenance(pipeline: PipelineFile) -> None:
    @task(multiple_outputs=False)
    def maintain(pipeline_file: str) -> dict[str, Any]:
        return scheduling.maintain(pipeline_file)

    with DAG(
        f"cdc_maintenance_{pipeline.name}",
        schedule=scheduling.schedule_of(pipeline.airflow.maintenance),
        doc_md=DOCS,
        **scheduling.start_options(pipeline),
    ):
        maintain(str(pipeline.path))


for pipeline in scheduling.pipelines():
    cdc_maintenance(pipeline)
