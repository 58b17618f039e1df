"""cdc_sync_<name>: one micro-batch from the source's WAL to the published lake, on the file's schedule."""

from typing import Any

from airflow.sdk import DAG, Asset, Param, task

from slotlake.infra.airflow import backfill as scheduling_backfill
from slotlake.infra.airflow import scheduling
from slotlake.infra.config.pipeline_file import PipelineFile

DOCS = """
### One micro-batch: pull → apply → publish → confirm

- **pull** writes the changes up to the source's WAL position now as a batch of the change log; nothing is
  confirmed to the server. *Cleared:* it finds the batch that is on disk, or writes the next one.
- **apply** folds the batch and merges it into the tables' `stage` branch, which readers do not see.
  *Cleared:* it throws `stage` away and does it again; a batch that is published already is left alone.
- **publish** moves all tables to the batch in one catalog transaction, and tells `cdc_verify` by an asset
  event. *Cleared:* nothing changes when the batch is published already.
- **confirm** lets the server forget WAL up to the lake's position, never further. *Cleared:* harmless.

Where the lake is, is read from the lake and never from Airflow, so any task may be cleared at any time, in
any order, with or without those after it. A task that fails because something is busy or away is tried
again by itself; one that fails at once tells in its log what to do.

Nothing new: `apply` and `publish` are skipped, `confirm` still runs, so that an idle slot holds no WAL back.
Two runs at once: the pool has one place per replication slot, the second waits.

**The Backfill button** never touches the live tables: its runs skip these tasks, and `replay` applies the
archived change log of their logical dates to tables in **scratch_namespace** (a field of the form;
tick *Override parameters on existing runs*, or Airflow does not send it). Runs for
neighbouring dates go on where the one before has ended; the same range twice gives the same. To read rows
again from the source, use **cdc_backfill**.
"""


def cdc_sync(pipeline: PipelineFile) -> None:
    asset = Asset(name=f"slotlake_{pipeline.name}", uri=scheduling.asset_uri(pipeline))

    @task(multiple_outputs=False)
    def pull(pipeline_file: str, *, dag_run: Any = None) -> dict[str, Any]:
        scheduling_backfill.skip_in_a_backfill(dag_run)
        return scheduling.pull(pipeline_file)

    @task(multiple_outputs=False)
    def apply(pipeline_file: str, pulled: dict[str, Any]) -> dict[str, Any]:
        return scheduling.run_step("apply", pipeline_file, scheduling.batch_of(pulled))

    @task(outlets=[asset], multiple_outputs=False)
    def publish(pipeline_file: str, pulled: dict[str, Any], *, outlet_events: Any = None) -> dict[str, Any]:
        published = scheduling.run_step("publish", pipeline_file, scheduling.batch_of(pulled))
        outlet_events[asset].extra = {key: pulled[key] for key in ("start_lsn", "end_lsn", "batch")}
        return published

    @task(trigger_rule="none_failed_min_one_success", multiple_outputs=False)
    def confirm(pipeline_file: str, pulled: dict[str, Any]) -> dict[str, Any]:
        return scheduling.run_step("confirm", pipeline_file, pulled["batch"])

    # Only after a pull that was skipped, which is one of a backfill; no process is started to find that out.
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
                description="Of the Backfill button only: where the archived change log is replayed.",
            )
        },
        **scheduling.start_options(pipeline),
    ):
        pulled = pull(file)
        apply(file, pulled) >> publish(file, pulled) >> confirm(file, pulled)
        pulled >> replay(file)


for pipeline in scheduling.pipelines():
    cdc_sync(pipeline)
