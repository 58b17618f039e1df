"""cdc_tables_<name>: add tables to the pipeline, or remove some; by hand, with a form."""

from typing import Any

from airflow.sdk import DAG, Param

from slotlake.infra.airflow import backfill as scheduling_backfill
from slotlake.infra.airflow import scheduling
from slotlake.infra.airflow.step_task import task
from slotlake.infra.config.pipeline_file import PipelineFile

DOCS = """
### Add tables to the pipeline, or remove some

**Trigger** opens a form. The task changes the publication, if the role may; if not, it fails, and its log has
the statement for somebody who may. It does not change the pipeline file: its log says which lines to write
there, or to take out.

- **add**: tables of the source. The task publishes them, and copies them while the micro-batches continue.
- **remove**: tables that are to leave the publication. The lake keeps them as they were.
- **drop**: also removes the lake's tables that are in **remove**, with all that they have of the past.

**Clearing `tables`** is safe: the task does what is not done yet.
"""


def cdc_tables(pipeline: PipelineFile) -> None:
    @task(multiple_outputs=False, pool="default_pool")
    def tables(pipeline_file: str, *, params: Any = None) -> dict[str, Any]:
        return scheduling_backfill.change_tables(pipeline_file, params)

    known = scheduling_backfill.table_names(pipeline)
    with DAG(
        f"cdc_tables_{pipeline.name}",
        schedule=None,
        doc_md=DOCS,
        params={
            "add": Param(
                [],
                type="array",
                title="Add",
                description="Write the tables that are to join, one per line, as PostgreSQL writes them: "
                "public.orders. A pattern such as shop.* stands for several.",
            ),
            "remove": Param(
                [],
                type="array",
                title="Remove",
                description="Choose the tables that are to leave, or write them, one per line. The lake "
                "keeps them as they were.",
                **({"examples": known} if known else {}),
            ),
            "drop": Param(
                False,
                type="boolean",
                title="Drop",
                description="Switch this on to remove the lake's tables too, with all that they have of "
                "the past.",
            ),
        },
        **scheduling.start_options(pipeline, scheduling.BY_HAND, kind="tables"),
    ):
        tables(str(pipeline.path))


for pipeline in scheduling.pipelines():
    cdc_tables(pipeline)
