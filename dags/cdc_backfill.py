"""cdc_backfill_<name>: read tables, or some of their rows, again from the source; by hand, with a form."""

from typing import Any

from airflow.sdk import DAG, Param

from slotlake.infra.airflow import backfill as scheduling_backfill
from slotlake.infra.airflow import scheduling
from slotlake.infra.airflow.step_task import task
from slotlake.infra.config.pipeline_file import PipelineFile

DOCS = """
### Read tables, or some of their rows, again from the source

**Trigger** opens a form. The task reads the chosen rows from the source at an exact LSN and replaces them in
the lake. The micro-batches continue, and an older image of a row never replaces a newer one. The task
publishes all tables together, as one consistency point.

- **tables**: one or several tables. The form wants at least one.
- **where**: an SQL condition on columns of the tables, as after WHERE. The task reads a row again if it
  matches the condition in the source *or* in the lake. Leave it empty for whole tables.
- **key_range**: a range of the key's first column. Write `A..B` (A and B are included), `A..` or `..B`.
- **dry_run** (on, unless you switch it off): changes nothing. The task's log says how many rows would change
  in each table; its XCom also has the keys of the first hundred rows.

The task takes no place of the pipeline's pool. It waits for its turn only to bring the lake to an LSN, and to
publish; the micro-batches go on while it reads.

If a condition is wrong, the task fails at once with the error message of PostgreSQL.

**Clearing `backfill`** is safe: the task does the same work again, at a new LSN.
"""


def cdc_backfill(pipeline: PipelineFile) -> None:
    @task(multiple_outputs=False, pool="default_pool")
    def backfill(pipeline_file: str, *, params: Any = None) -> dict[str, Any]:
        return scheduling_backfill.backfill(pipeline_file, params)

    table_names = scheduling_backfill.table_names(pipeline)
    optional_text = ["null", "string"]
    with DAG(
        f"cdc_backfill_{pipeline.name}",
        schedule=None,
        doc_md=DOCS,
        params={
            "tables": Param(
                [],
                type="array",
                minItems=1,
                title="Tables",
                description="Choose the tables that are to be read again. If there is no list to choose "
                "from, write one per line, as PostgreSQL writes it: public.orders.",
                **({"examples": table_names} if table_names else {}),
            ),
            "where": Param(
                None,
                type=optional_text,
                title="WHERE",
                description="Write an SQL condition, as after WHERE, to read only some rows again. Leave "
                "this empty to read whole tables.",
            ),
            "key_range": Param(
                None,
                type=optional_text,
                title="Key range",
                description="Write A..B, A.. or ..B to read only rows with the first column of their key in "
                "this range.",
            ),
            "dry_run": Param(
                True,
                type="boolean",
                title="Dry run",
                description="While this is on, nothing changes, and the log says what would change. "
                "Switch it off to write.",
            ),
        },
        **scheduling.start_options(pipeline, scheduling.BY_HAND, kind="backfill"),
    ):
        backfill(str(pipeline.path))


for pipeline in scheduling.pipelines():
    cdc_backfill(pipeline)
