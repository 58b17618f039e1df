"""cdc_monitor_<name>: does the slot hold back more than the source can bear; on the file's schedule."""

from typing import Any

from airflow.sdk import DAG, task

from slotlake.infra.airflow import monitoring, scheduling
from slotlake.infra.config.pipeline_file import PipelineFile

DOCS = """
### Does anything need somebody?

Looks at lag, retained WAL, the time until the server invalidates the slot, transactions that hold it back,
and other slots that nobody reads. Sends gauges (`slotlake.<name>.…`) where Airflow sends its own metrics,
and **fails when somebody is needed**: the log says why and what to do. Thresholds: section `monitor` of the
pipeline file.

It changes nothing, takes no place in the pipeline's pool, and goes on while **cdc_sync** is paused; then it
tells that the slot goes on holding WAL. **Clearing `watch`** looks again.
"""


def cdc_monitor(pipeline: PipelineFile) -> None:
    @task(
        multiple_outputs=False,
        pool="default_pool",
        retries=1,
        on_failure_callback=scheduling.on_warning(pipeline),
    )
    def watch(pipeline_file: str, *, ti: Any = None) -> dict[str, Any]:
        return monitoring.watch(pipeline_file, ti)

    with DAG(
        f"cdc_monitor_{pipeline.name}",
        schedule=scheduling.schedule_of(pipeline.monitor.schedule),
        doc_md=DOCS,
        **scheduling.start_options(pipeline, scheduling.LOOK),
    ):
        watch(str(pipeline.path))


for pipeline in scheduling.pipelines():
    cdc_monitor(pipeline)
