"""cdc_verify_<name>: check that the lake is equal to the source; on a schedule, after batches, or by hand."""

from typing import Any

from airflow.sdk import DAG, Param

from slotlake.infra.airflow import assets, scheduling
from slotlake.infra.airflow.step_task import task
from slotlake.infra.config.pipeline_file import PipelineFile

DOCS = """
### Is the lake equal to the source?

This DAG takes a snapshot of the source at an exact LSN and brings the lake to this LSN. It compares the
number of rows and the hashes of all rows. Applications can write to the source meanwhile. The DAG fails if a
single value differs; `slotlake verify` with the pipeline file then lists the keys.

It runs once a day, or as `airflow.verify` in the pipeline file says, and reads all rows. The section `verify`
of the pipeline file chooses changed rows, or a slice of the rows each time, and how much of the source may be
taken. The micro-batches continue: only the step that brings the lake to the LSN waits for its turn. The task
takes no place of the pipeline's pool.

With `every_batch` it runs after published batches. Each published batch is an event of the asset, with its
LSN range. Events that arrive while a verification runs share the next verification.

**Trigger** opens a form. **scope**: `full` compares all rows now, without a limit on the source's time.

**Clearing `verify`** is safe: it verifies again, at a new LSN.
"""


def cdc_verify(pipeline: PipelineFile) -> None:
    @task(multiple_outputs=False, pool="default_pool")
    def verify(
        pipeline_file: str, *, triggering_asset_events: Any = None, params: Any = None
    ) -> dict[str, Any]:
        from slotlake.infra.airflow import steps  # here, because its imports are slow

        ranges = [event.extra for events in triggering_asset_events.values() for event in events]
        scope = params["scope"]
        return steps.verify(pipeline_file, ranges, None if scope == scheduling.SCOPES[0] else scope)

    with DAG(
        f"cdc_verify_{pipeline.name}",
        schedule=scheduling.verification(pipeline, assets.pipeline_asset(pipeline.name)),
        doc_md=DOCS,
        params={
            "scope": Param(
                scheduling.SCOPES[0],
                enum=list(scheduling.SCOPES),
                title="Which rows",
                description="Choose which rows are compared: all of them (full), those that changed since "
                "they were found equal (changed), or the slices whose turn it is (rolling).",
            )
        },
        **scheduling.start_options(pipeline, kind="verify"),
    ):
        verify(str(pipeline.path))


for pipeline in scheduling.pipelines():
    cdc_verify(pipeline)
