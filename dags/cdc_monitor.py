"""cdc_monitor_<name>: check whether the pipeline needs a person; on the schedule of the pipeline file."""

from typing import Any

from airflow.sdk import DAG

from slotlake.infra.airflow import scheduling
from slotlake.infra.airflow.step_task import task
from slotlake.infra.config.pipeline_file import PipelineFile

DOCS = """
### Does the pipeline need a person?

This DAG checks the lag, the retained WAL, and the time until the server invalidates the slot. It looks for
transactions that hold the slot back, and for other slots that nobody reads. It sends gauges
(`slotlake.<name>.…`) to the place where Airflow sends its own metrics. **It fails when a person is needed**:
the log says why and what to do. The thresholds are in the section `monitor` of the pipeline file.

It changes nothing and takes no slot of the pipeline's pool. It also runs while **cdc_sync** is paused, and
then it reports that the slot retains WAL.

**Clearing `watch`** is safe: it checks again.
"""


def cdc_monitor(pipeline: PipelineFile) -> None:
    @task(
        multiple_outputs=False,
        pool="default_pool",
        retries=1,
        on_failure_callback=scheduling.on_warning(pipeline),
    )
    def watch(pipeline_file: str, *, ti: Any = None) -> dict[str, Any]:
        from slotlake.infra.airflow import monitoring  # here, because its imports are slow

        return monitoring.watch(pipeline_file, ti)

    with DAG(
        f"cdc_monitor_{pipeline.name}",
        schedule=scheduling.schedule_of(pipeline.monitor.schedule),
        doc_md=DOCS,
        **scheduling.start_options(pipeline, scheduling.LOOK, kind="monitor"),
    ):
        watch(str(pipeline.path))


for pipeline in scheduling.pipelines():
    cdc_monitor(pipeline)
