"""cdc_maintenance_<name>: keep the lake's tables small and fast; on the schedule of the pipeline file."""

from typing import Any

from airflow.sdk import DAG

from slotlake.infra.airflow import scheduling
from slotlake.infra.airflow.step_task import task
from slotlake.infra.config.pipeline_file import PipelineFile

DOCS = """
### Keep the tables small and fast to read

This DAG packs small files and rewrites files with many deleted rows. It packs manifests, expires the
snapshots that no kept point needs, and removes files that no table uses. It changes no row, and readers can
continue.

The micro-batches continue: only short steps, such as the commit of files that were rewritten meanwhile, wait
for their turn. The task takes no place of the pipeline's pool. After `maintenance.minutes_max` minutes it
starts no further table.

**Clearing `maintain`** is safe, also after a crash: each step either happens completely or not at all.
"""


def cdc_maintenance(pipeline: PipelineFile) -> None:
    @task(multiple_outputs=False, pool="default_pool")
    def maintain(pipeline_file: str) -> dict[str, Any]:
        from slotlake.infra.airflow import steps  # here, because its imports are slow

        return steps.maintain(pipeline_file)

    with DAG(
        f"cdc_maintenance_{pipeline.name}",
        schedule=scheduling.schedule_of(pipeline.airflow.maintenance),
        doc_md=DOCS,
        **scheduling.start_options(pipeline, kind="maintenance"),
    ):
        maintain(str(pipeline.path))


for pipeline in scheduling.pipelines():
    cdc_maintenance(pipeline)
