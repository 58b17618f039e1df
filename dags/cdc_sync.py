"""cdc_sync_<name>: one micro-batch from the source's WAL to the published lake; on the file's schedule."""

from typing import Any

from airflow.sdk import DAG, Asset, Param, task

from slotlake.infra.airflow import backfill as scheduling_backfill
from slotlake.infra.airflow import scheduling
from slotlake.infra.config.pipeline_file import PipelineFile

DOCS = """
### One micro-batch: pull → apply → publish → confirm

- **pull** writes the changes up to the source's current WAL position as a batch of the change log. It
  confirms nothing to the server. *Cleared:* it uses the batch that is on disk, or writes the next one.
- **apply** folds the batch and merges it into the branch `stage` of each table. Readers do not see this
  branch. *Cleared:* it discards `stage` and applies the batch again. If the batch is already published, it
  does nothing.
- **publish** publishes the batch in all tables with one catalog transaction, and starts `cdc_verify` by an
  asset event. *Cleared:* it does nothing if the batch is already published.
- **confirm** tells the server that it may remove WAL up to the lake's position, and never further. Then it
  packs the small files of the tables that the batch changed, if they have become many.
  *Cleared:* it confirms the same position again.

The tasks read the position from the lake and never from Airflow. So you can clear any task at any time, in
any order, with or without the later tasks. If a server is busy or cannot be reached, the task fails and
Airflow tries it again. If a new attempt cannot help, the task fails at once, and its log says what to do.

Without new changes, `apply` and `publish` are skipped. `confirm` still runs, so an idle slot retains no WAL.
Two runs never work at once: the pool has one place per replication slot, and the second run waits.

**The Backfill button** never changes the live tables. In its runs, the tasks above are skipped, and `replay`
applies the archived change log of the run's logical date to tables in **scratch_namespace**. This is a field
of the form. Tick *Override parameters on existing runs*; otherwise Airflow does not send the field. A run for
the next date continues where the run before it ended. The same range gives the same result again. To read
rows again from the source, use **cdc_backfill**.
"""


def cdc_sync(pipeline: PipelineFile) -> None:
    asset = Asset(name=f"slotlake_{pipeline.name}", uri=scheduling.asset_uri(pipeline))

    @task(multiple_outputs=False)
    def pull(pipeline_file: str, *, dag_run: Any = None) -> dict[str, Any]:
        scheduling_backfill.skip_in_a_backfill(dag_run)
        return scheduling.pull(pipeline_file)

    @task(multiple_outputs=False)
    def apply(pipeline_file: str, pulled: dict[str, Any]) -> dict[str, Any]:
        return scheduling.short_report("apply", pipeline_file, scheduling.batch_of(pulled))

    @task(outlets=[asset], multiple_outputs=False)
    def publish(pipeline_file: str, pulled: dict[str, Any], *, outlet_events: Any = None) -> dict[str, Any]:
        published = scheduling.short_report("publish", pipeline_file, scheduling.batch_of(pulled))
        outlet_events[asset].extra = {key: pulled[key] for key in ("start_lsn", "end_lsn", "batch")}
        return published

    @task(trigger_rule="none_failed_min_one_success", multiple_outputs=False)
    def confirm(pipeline_file: str, pulled: dict[str, Any]) -> dict[str, Any]:
        return scheduling.short_report("confirm", pipeline_file, pulled["batch"])

    # It runs only when `pull` was skipped, as in a backfill. Airflow decides this without a new process.
    @task(trigger_rule="all_skipped", multiple_outputs=False)
    def replay(pipeline_file: str, *, params: Any = None, dag_run: Any = None) -> dict[str, Any]:
        return scheduling_backfill.replay(pipeline_file, params["scratch_namespace"], pipeline, dag_run)

    file = str(pipeline.path)
    with DAG(
        f"cdc_sync_{pipeline.name}",
        schedule=scheduling.schedule(pipeline),
        doc_md=DOCS,
        params={
            "scratch_namespace": Param(
                f"{pipeline.lake.namespace}_replay",
                type="string",
                title="Scratch namespace",
                description="Only for the Backfill button: namespace of the tables that the replay writes.",
            )
        },
        **scheduling.start_options(pipeline),
    ):
        pulled = pull(file)
        apply(file, pulled) >> publish(file, pulled) >> confirm(file, pulled)
        pulled >> replay(file)


for pipeline in scheduling.pipelines():
    cdc_sync(pipeline)
