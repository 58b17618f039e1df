"""The user's suites in a verification: checked on the lake as it is at the verified position."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from slotlake.infra.opened.machine_lock import exclusive
from slotlake.infra.sync.gates import DOCS_SECONDS, Gates, table_suites, user_project

if TYPE_CHECKING:
    from slotlake.expectations.results import Report, SuiteResult
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.spark.read.point import ReadPoint


def suites_checked(pipeline: OpenPipeline, point: ReadPoint, report: Report) -> tuple[SuiteResult, ...]:
    """Check the suites that are no gates, of tables that were compared.

    Args:
        point: the lake at the verified position.

    Raises:
        SuiteError: a suite cannot be read.
        CheckError: a suite could not be evaluated.
    """
    suites = table_suites(pipeline.file, gate=False)
    if not suites:
        return ()
    from slotlake.expectations.suites.of_users import Rows, check

    catalog, session = pipeline.lake.catalog, pipeline.session
    rows = {
        suite: Rows(
            session.sql(
                f"SELECT * FROM {name.sql(catalog)} VERSION AS OF {point.snapshot_id(table.source_name)}"
            ),
            partial(Gates(pipeline).rows_yesterday, name),
        )
        for name, table in point.mirrors().items()
        if table.source_name in report.tables
        for suite in suites.get((table.schema, table.table), ())
    }
    if not rows:
        return ()
    folder = pipeline.file.state_dir / "expectations"
    run_name = f"lsn-{report.lsn.replace('/', '_')}"
    with exclusive(folder, pipeline.name, DOCS_SECONDS, "verify: suites"):
        return tuple(check(rows, user_project(pipeline.file), folder, run_name))
