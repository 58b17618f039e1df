"""cdc_recover_<name>: show what is wrong with the pipeline and repair it; started by hand, with a form."""

from typing import Any

from airflow.sdk import DAG, Param, task

from slotlake.infra.airflow import scheduling
from slotlake.infra.config.pipeline_file import PipelineFile

DOCS = """
### Recover the pipeline

This DAG checks the source, the lake and the change log. If nothing is wrong, it says so and changes nothing.
Otherwise its XCom holds the `findings`, the `plan` with the cost of each step, and what is `lost` for good.

- **dry_run** (on by default): only show the plan. To carry out the plan, trigger the DAG again without it.

Readers can use the tables all the time. This DAG does the same as `slotlake recover` in docs/runbook.

**Clearing `recover`** is safe: it checks again, and has nothing to do if the work is already done.
"""


def cdc_recover(pipeline: PipelineFile) -> None:
    @task(multiple_outputs=False)
    def recover(pipeline_file: str, *, params: Any = None) -> dict[str, Any]:
        return scheduling.short_report("recover", pipeline_file, not params["dry_run"])

    with DAG(
        f"cdc_recover_{pipeline.name}",
        schedule=None,
        doc_md=DOCS,
        params={
            "dry_run": Param(
                True,
                type="boolean",
                title="Dry run",
                description="Change nothing; only show what is wrong, and the plan.",
            )
        },
        **scheduling.start_options(pipeline, scheduling.BY_HAND),
    ):
        recover(str(pipeline.path))


for pipeline in scheduling.pipelines():
    cdc_recover(pipeline)
