"""cdc_backfill_<name>: tables, or some rows of them, read again from the source; by hand, with a form."""

from typing import Any

from airflow.sdk import DAG, Param, task

from slotlake.infra.airflow import backfill as scheduling_backfill
from slotlake.infra.airflow import scheduling
from slotlake.infra.config.pipeline_file import PipelineFile

DOCS = """
### Read tables, or some rows of them, again from the source

**Trigger** opens a form. The chosen rows are read under an exact LSN and replace what the lake holds, while
the stream goes on; an older image never beats a newer one. All tables are published in one point.

- **tables**: one or several.
- **where**: an SQL condition over their columns, as behind WHERE. Rows count that satisfy it in the source
  *or* in the lake. Empty: the whole tables.
- **key_range**: `A..B` of the key's first column, ends included; `A..` or `..B`.
- **dry_run**: changes nothing; the task's XCom says how many rows would change, and the keys of the first
  hundred.

A wrong condition fails the task at once, with PostgreSQL's own words.

**Clearing `backfill`** is safe: it does the same once more, at a new LSN.
"""


def cdc_backfill(pipeline: PipelineFile) -> None:
    @task(multiple_outputs=False)
    def backfill(pipeline_file: str, *, params: Any = None) -> dict[str, Any]:
        return scheduling_backfill.backfill(pipeline_file, params)

    known = scheduling_backfill.table_names(pipeline)
    text = ["null", "string"]
    with DAG(
        f"cdc_backfill_{pipeline.name}",
        schedule=None,
        doc_md=DOCS,
        params={
            "tables": Param(
                [],
                type="array",
                title="Tables",
                description="As PostgreSQL writes them; if there is no list to choose from, one a line.",
                **({"examples": known} if known else {}),
            ),
            "where": Param(
                None, type=text, title="WHERE", description="An SQL condition; empty: the whole tables."
            ),
            "key_range": Param(
                None, type=text, title="Key range", description="A..B of the key's first column."
            ),
            "dry_run": Param(
                False, type="boolean", title="Dry run", description="Only say what would change."
            ),
        },
        **scheduling.start_options(pipeline, scheduling.BY_HAND),
    ):
        backfill(str(pipeline.path))


for pipeline in scheduling.pipelines():
    cdc_backfill(pipeline)
