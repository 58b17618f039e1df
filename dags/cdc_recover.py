"""cdc_recover_<name>: show what is wrong with the pipeline, ask a person, and repair it; started by hand."""

from typing import Any

from airflow.sdk import DAG, Param

from slotlake.infra.airflow import approval, scheduling
from slotlake.infra.airflow.step_task import task
from slotlake.infra.config.pipeline_file import PipelineFile

DOCS = """
### Recover the pipeline: plan → approve → recover

- **plan** checks the source, the lake and the change log. If nothing is wrong, it says so, and the run ends.
  Otherwise its log and its XCom have what is wrong, what is done, what it costs, and what is lost for good.
- **approve** shows the plan under *Required Actions* and waits for a person, for a day. Nothing changes until
  then. *Rejected, or not answered:* this task and the next one are skipped.
- **recover** makes the plan again, and carries it out if it is still the one that was approved. If source or
  lake have changed so that the plan is another one, it fails and changes nothing: trigger the DAG again.

With **dry_run** the plan is shown and nobody is asked. If something is wrong, `plan` is then *skipped*, and
its log says how much is wrong.

Readers can use the tables all the time. This DAG does the same as `slotlake recover` in docs/runbook.

**Clearing** is safe: `plan` plans again, `approve` asks again, `recover` goes on with a recovery that was
killed, and has nothing to do if the work is already done.
"""


def cdc_recover(pipeline: PipelineFile) -> None:
    @task(task_id=approval.PLAN, multiple_outputs=False)
    def plan(pipeline_file: str, *, params: Any = None, ti: Any = None) -> dict[str, Any]:
        return approval.plan(pipeline_file, ti, dry_run=params["dry_run"])

    @task(task_id=approval.RECOVER, multiple_outputs=False)
    def recover(pipeline_file: str, planned: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        return approval.recover(pipeline_file, planned, answer)

    with DAG(
        f"cdc_recover_{pipeline.name}",
        schedule=None,
        doc_md=DOCS,
        params={
            "dry_run": Param(
                False,
                type="boolean",
                title="Dry run",
                description="Switch this on to see only what is wrong, and the plan. Nobody is asked to "
                "approve it.",
            )
        },
        **scheduling.start_options(pipeline, scheduling.BY_HAND, kind="recover"),
    ):
        planned = plan(str(pipeline.path))
        asked = approval.PlanApproval(task_id=approval.APPROVE, pipeline_name=pipeline.name)
        planned >> asked
        recover(str(pipeline.path), planned, asked.output)


for pipeline in scheduling.pipelines():
    cdc_recover(pipeline)
