"""cdc_new: write the pipeline file of a new pipeline from a connection of Airflow; by hand, with a form."""

from datetime import UTC, datetime
from typing import Any

from airflow.sdk import DAG, Param, task

from slotlake.infra.airflow import new

DOCS = """
### A new pipeline for a database

**Trigger** opens a form. The task looks at the server of a connection of Airflow, and writes a pipeline file
into the first folder that `SLOTLAKE_PIPELINES` names. It changes nothing at the source. The DAGs of the new
pipeline appear when Airflow has read the DAG files again; begin with **cdc_bootstrap**.

Its log lists the tables with their keys, and what is worth knowing of them; the file; and each check of
`slotlake validate`. If the server or the role lacks something, the task fails, and says which statements to
run. Then trigger it again with the same form.

- **connection**: the id of a connection of the type Postgres. The file names it, and has no password.
- **name**: of the pipeline, its slot, its publication and the namespace of its tables.
- **tables**: names, or patterns such as `shop.*`; all tables, if the list is empty.
- **lake**: a folder that all workers share, or a place in an object store.
- **overwrite**: write over a pipeline file of that name. Otherwise it stays, and is checked.

**Clearing `make`** is safe: the task checks the file again.
"""


def cdc_new() -> None:
    @task(multiple_outputs=False, retries=1, show_return_value_in_logs=False)
    def make(*, params: Any = None) -> dict[str, Any]:
        return new.new_pipeline(params)

    optional_text = ["null", "string"]
    with DAG(
        "cdc_new",
        schedule=None,
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        tags=["slotlake", "new"],
        doc_md=DOCS,
        params={
            "connection": Param(
                "",
                type="string",
                minLength=1,
                title="Connection",
                description="Write the id of a connection of Airflow that leads to the source's database.",
            ),
            "name": Param(
                None,
                type=optional_text,
                title="Name",
                description="Write a name in lower-case letters, or leave this empty to use the name of the "
                "database.",
            ),
            "tables": Param(
                [],
                type="array",
                title="Tables",
                description="Write tables or patterns, one per line: public.orders, shop.*. Leave this empty "
                "to take all tables.",
            ),
            "lake": Param(
                "lake",
                type="string",
                minLength=1,
                title="Lake",
                description="Write where the lake's files go: a folder that all workers share, or "
                "s3://bucket/prefix.",
            ),
            "overwrite": Param(
                False,
                type="boolean",
                title="Overwrite",
                description="Switch this on to write over a pipeline file that is there. Otherwise the file "
                "is only checked.",
            ),
        },
    ):
        make()


if new.folder() is not None:
    cdc_new()
