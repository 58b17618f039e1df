"""cdc_recover_<name>: what is wrong with the pipeline, and the cheapest way back; by hand, with a form."""

from typing import Any

from airflow.sdk import DAG, Param, task

from slotlake.infra.airflow import scheduling
from slotlake.infra.config.pipeline_file import PipelineFile

DOCS = """
### Recover after a bad day

Looks at both sides and at the change log. If all is well it says so and changes nothing. Else its XCom has
the `findings`, the `plan` with what each step costs, and what is `lost` for good.

- **dry_run** (on by default): only show the plan. Trigger it again without, to carry it out.

Readers find the tables all the time. What docs/runbook does with `slotlake recover` can be done here.

**Clearing `recover`** is safe: it judges anew, and finds nothing to do if it was done.
"""


def cdc_recover(pipeline: PipelineFile) -> None:
    @task(multiple_outputs=False)
    def recover(pipeline_file: str, *, params: Any = None) -> dict[str, Any]:
        return scheduling.run_step("recover", pipeline_file, not params["dry_run"])

    with DAG(
        f"cdc_recover_{pipeline.name}",
        schedule=None,
        doc_md=DOCS,
        params={
            "dry_run": Param(
                True, type="boolean", title="Dry run", description="Only show what is wrong, and the plan."
            )
        },
        **scheduling.start_options(pipeline, scheduling.BY_HAND),
    ):
        recover(str(pipeline.path))


for pipeline in scheduling.pipelines():
    cdc_recover(pipeline)
