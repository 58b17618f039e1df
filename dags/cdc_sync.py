"""cdc_sync_<name>: micro-batches from the source's WAL to the published lake; on the file's schedule.

A run is one micro-batch, as four tasks or as one; or it makes micro-batches for some minutes.
"""

from typing import Any

from airflow.sdk import DAG, Param

from slotlake.infra.airflow import assets, scheduling
from slotlake.infra.airflow import backfill as scheduling_backfill
from slotlake.infra.airflow.step_task import task
from slotlake.infra.config.pipeline_file import PipelineFile

DOCS = """
### One micro-batch: pull → apply → publish → confirm

- **pull** writes the changes up to the source's current WAL position as a batch of the change log. It
  confirms nothing to the server. *Cleared:* it uses the batch that is on disk, or writes the next one.
- **apply** folds the batch and merges it into the branch `stage` of each table. Readers do not see this
  branch. *Cleared:* it discards `stage` and applies the batch again. If the batch is already published, it
  does nothing.
- **publish** publishes the batch in all tables with one catalog transaction. A batch with changes is an event
  of the pipeline's asset, which can start `cdc_verify`, and of the asset of each table that it changed.
  *Cleared:* it publishes nothing if the batch is already published, and makes the events again.
- **confirm** tells the server that it may remove WAL up to the lake's position, and never further. Then it
  packs the small files of the tables that the batch changed, if they have become many.
  *Cleared:* it confirms the same position again.

The tasks read the position from the lake and never from Airflow. So you can clear any task at any time, in
any order, with or without the later tasks. If a server is busy or cannot be reached, the task fails and
Airflow tries it again. If a new attempt cannot help, the task fails at once, and its log says what to do.

Without new changes, `apply` and `publish` are skipped, and no process starts for them. `confirm` still runs,
so an idle slot retains no WAL.
Two runs never work at once: the pool has one place per replication slot, and the second run waits.

**The Backfill button** never changes the live tables. In its runs, `pull` applies the archived change log of
the run's logical date to tables in **scratch_namespace**, and the other tasks are skipped. This is a field of
the form. Tick *Override parameters on existing runs*; otherwise Airflow does not send the field. A run for
the next date continues where the run before it ended. The same range gives the same result again. To read
rows again from the source, use **cdc_backfill**.
"""

ONE_TASK = """
### One micro-batch in one task

- **sync** pulls the changes up to the source's current WAL position, applies, publishes and confirms them. It
  does the same as the four tasks of `airflow.tasks: four`. *Cleared:* it makes the next micro-batch.

The task reads the position from the lake and never from Airflow. So you can clear it or kill it at any time.
A batch with changes is an event of the pipeline's asset and of its tables' assets. It starts `cdc_verify` if
the pipeline file says so.

**The Backfill button** never changes the live tables: `sync` then applies the archived change log of the
run's logical date to tables in **scratch_namespace**, a field of the form.
"""

CONTINUOUS = """
### Micro-batches in a loop

- **run** waits for changes of the source, and makes one micro-batch after another. Its log has a line for
  each one. After `airflow.run_for` it ends, and the next run continues. *Cleared or killed:* the next run
  continues. *Paused:* the current run works until its time is over.

The task takes no place of the pipeline's pool. It has the pipeline's lock only during a batch, so
`cdc_verify`, `cdc_maintenance` and `cdc_backfill` get their turn between two batches.

A run with changes is one event of the pipeline's asset, and one of each table's that it changed, when it
ends. There is no replay by the Backfill button: use `slotlake replay`.
"""


def four_tasks(pipeline: PipelineFile) -> None:
    @task(multiple_outputs=False)
    def pull(
        pipeline_file: str, *, params: Any = None, dag_run: Any = None, ti: Any = None
    ) -> dict[str, Any]:
        if scheduling_backfill.is_backfill(dag_run):
            later = ("apply", "publish", "confirm")
            return scheduling_backfill.replay(pipeline, params["scratch_namespace"], dag_run, ti, later)
        from slotlake.infra.airflow import steps  # here, because its imports are slow

        pulled = steps.pull(pipeline_file)
        scheduling.skip_without_changes(pulled, ti, ["apply", "publish"])
        return pulled

    @task(multiple_outputs=False)
    def apply(pipeline_file: str, pulled: dict[str, Any]) -> dict[str, Any]:
        from slotlake.infra.airflow import steps  # here, because its imports are slow

        return steps.apply(pipeline_file, scheduling.batch_of(pulled))

    @task(**assets.outlets(pipeline.name), multiple_outputs=False)
    def publish(
        pipeline_file: str, pulled: Any, *, outlet_events: Any = None, asset_state_store: Any = None
    ) -> dict[str, Any]:
        from slotlake.infra.airflow import steps  # here, because its imports are slow

        return steps.publish(pipeline_file, scheduling.batch_of(pulled), outlet_events, asset_state_store)

    @task(trigger_rule="none_failed_min_one_success", multiple_outputs=False)
    def confirm(pipeline_file: str, pulled: dict[str, Any]) -> dict[str, Any]:
        from slotlake.infra.airflow import steps  # here, because its imports are slow

        return steps.confirm(pipeline_file, pulled["batch"])

    file = str(pipeline.path)
    pulled = pull(file)
    apply(file, pulled) >> publish(file, pulled) >> confirm(file, pulled)


def one_task(pipeline: PipelineFile) -> None:
    @task(**assets.outlets(pipeline.name), multiple_outputs=False)
    def sync(
        pipeline_file: str,
        *,
        params: Any = None,
        dag_run: Any = None,
        outlet_events: Any = None,
        asset_state_store: Any = None,
    ) -> dict[str, Any]:
        if scheduling_backfill.is_backfill(dag_run):
            return scheduling_backfill.replay(pipeline, params["scratch_namespace"], dag_run)
        from slotlake.infra.airflow import steps  # here, because its imports are slow

        return steps.sync(pipeline_file, outlet_events, asset_state_store)

    sync(str(pipeline.path))


def continuous(pipeline: PipelineFile) -> None:
    @task(**assets.outlets(pipeline.name), multiple_outputs=False, pool="default_pool")
    def run(
        pipeline_file: str, *, dag_run: Any = None, outlet_events: Any = None, asset_state_store: Any = None
    ) -> dict[str, Any]:
        scheduling_backfill.skip_in_a_backfill(dag_run)
        from slotlake.infra.airflow import steps  # here, because its imports are slow

        return steps.run(pipeline_file, outlet_events, asset_state_store)

    run(str(pipeline.path))


def cdc_sync(pipeline: PipelineFile) -> None:
    form = Param(
        f"{pipeline.lake.namespace}_replay",
        type="string",
        title="Scratch namespace",
        description="Only the Backfill button uses this. It is the namespace of the tables that the replay "
        "writes.",
    )
    kind = scheduling.kind_of_run(pipeline)
    with DAG(
        f"cdc_sync_{pipeline.name}",
        schedule=scheduling.schedule(pipeline),
        doc_md={"four": DOCS, "one": ONE_TASK, "continuous": CONTINUOUS}[kind],
        params={} if kind == "continuous" else {"scratch_namespace": form},
        **scheduling.start_options(pipeline, kind="sync"),
        **scheduling.deadline(pipeline),
    ):
        {"four": four_tasks, "one": one_task, "continuous": continuous}[kind](pipeline)


for pipeline in scheduling.pipelines():
    cdc_sync(pipeline)
