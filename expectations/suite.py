"""Great Expectations over a reconciliation: suite, validation definition, checkpoint, Data Docs.

All of it lives in one folder of the pipeline's state, made on first use and reused; deleting the
folder loses only the history of checks.  Nothing is sent anywhere: analytics are off before the
library is imported, and the pages load nothing (docs_pages).  The import takes seconds, so it waits
until a validation is asked for.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotlake.decoder.errors import SlotlakeError
from slotlake.expectations.results import Report, TableResult

if TYPE_CHECKING:
    from great_expectations.data_context import FileDataContext

RUNS_MAX = 50
TABLES_MAX = 100  # of which a page has an entry each; all runs' pages are written anew at each verification
_LINE_MAX = 300
_SITE = "local_site"
_NAME = "reconciliation"


class CheckError(SlotlakeError):
    """The check could not be carried out, which says nothing about the data."""


@dataclass(frozen=True)
class Validation:
    """What Great Expectations made of a reconciliation.

    Attributes:
        success: every table is equal.
        failed: tables that are not.
        data_docs: the index page.
    """

    success: bool
    failed: tuple[str, ...]
    data_docs: Path


def validate(report: Report, folder: Path, pipeline: str, actions: Sequence[Any] = ()) -> Validation:
    """Run the suite over a reconciliation and bring the Data Docs up to date.

    Args:
        folder: where the file context is kept; made if missing.
        actions: of the user's checkpoint, which run after this one too.

    Raises:
        CheckError: an expectation could not be evaluated, or the pages not be written.
    """
    shown = shortened(report)
    with checking(folder) as context:
        definition = _definition(context, pipeline, shown)
        own = checkpoint(context, pipeline, definition, "COMPLETE", actions)
        run = run_id(f"lsn-{report.lsn.replace('/', '_')}")
        outcome = own.run(batch_parameters={"dataframe": _frame(shown)}, run_id=run)
    results = [result for run in outcome.run_results.values() for result in run.results]
    failed = differing_tables(results, len(shown.tables), folder)
    if shown is not report:
        failed = tuple(name for name, table in report.tables.items() if not table.equal)
    return Validation(not failed, failed, index(folder))


def shortened(report: Report) -> Report:
    """Return a report of many tables with the first that differ, and the others in one entry or two."""
    if len(report.tables) <= TABLES_MAX:
        return report
    ordered = sorted(report.tables.items(), key=lambda item: item[1].equal)
    others = [table for _, table in ordered[TABLES_MAX:]]
    groups = [
        _together(others_alike, "equal" if equal else "different")
        for equal in (False, True)
        if (others_alike := [table for table in others if table.equal == equal])
    ]
    tables = dict(ordered[:TABLES_MAX]) | {group.table: group for group in groups}
    return replace(report, tables=tables)


def _together(tables: Sequence[TableResult], verdict: str) -> TableResult:
    totals: Counter[str] = Counter()
    for table in tables:
        totals.update(table.totals)
    source_rows, lake_rows = (
        sum(getattr(table, side) for table in tables) for side in ("source_rows", "lake_rows")
    )
    return TableResult(f"{len(tables):,} more tables, {verdict}", source_rows, lake_rows, dict(totals))


def differing_tables(results: list[Any], expected: int, folder: Path) -> tuple[str, ...]:
    """Return the tables that differ.

    Args:
        results: Great Expectations' results, one per table.
        expected: how many tables there must be.

    Raises:
        CheckError: an expectation failed by an exception, or is missing: no verdict on the data.
    """
    broken = [result for result in results if raised(result.exception_info)]
    if broken or len(results) != expected:
        tables = ", ".join(str(result.expectation_config.kwargs.get("source_table")) for result in broken)
        raise _check_error(tables or f"{len(results)} of {expected} tables were evaluated", folder)
    return tuple(r.expectation_config.kwargs["source_table"] for r in results if not r.success)


def _check_error(why: str, folder: Path) -> CheckError:
    return CheckError(
        f"the suite could not be evaluated, which says nothing about the data: {why}",
        where=str(folder),
        way_out=f"look at the Data Docs ({index(folder)}); if the folder is damaged, delete it, then verify",
    )


def raised(info: dict[str, Any]) -> bool:
    """Return whether an expectation raised; ``exception_info`` is one record, or one per metric."""
    if "raised_exception" in info:
        return bool(info["raised_exception"])
    return any(raised(each) for each in info.values() if isinstance(each, dict))


def great_expectations() -> Any:
    """Import the library, without analytics and without its log."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    logging.getLogger("great_expectations").setLevel(logging.ERROR)
    import great_expectations

    return great_expectations


def open_context(folder: Path) -> FileDataContext:
    """Open slotlake's own context in a folder; make it if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    context = great_expectations().get_context(mode="file", project_root_dir=str(folder))
    context.enable_analytics(False)
    context.variables.progress_bars = {"globally": False}
    context.update_data_docs_site(_SITE, _site())
    return context


def _site() -> dict[str, Any]:
    """Our page views in every section; no advertising."""
    page = {"module_name": "slotlake.expectations.docs_pages", "class_name": "OfflinePageView"}
    index = {"module_name": "slotlake.expectations.docs_pages", "class_name": "OfflineIndexPageView"}
    return {
        "class_name": "SiteBuilder",
        "show_how_to_buttons": False,
        "store_backend": {
            "class_name": "TupleFilesystemStoreBackend",
            "base_directory": "uncommitted/data_docs/local_site/",
        },
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder", "view": index},
        "site_section_builders": {
            "expectations": {"view": page},
            "validations": {"view": page},
            "profiling": "None",
        },
    }


def _definition(context: FileDataContext, pipeline: str, report: Report) -> Any:
    """Suite and validation definition, brought up to the tables of this report."""
    from great_expectations import ExpectationSuite, ValidationDefinition

    from slotlake.expectations.expectation import ExpectLakeTableToEqualSource

    source = context.data_sources.add_or_update_pandas(_NAME)
    asset = source.add_dataframe_asset("tables")
    batch = asset.add_batch_definition_whole_dataframe("all")
    tables = [ExpectLakeTableToEqualSource(source_table=name) for name in report.tables]
    suite = context.suites.add_or_update(ExpectationSuite(pipeline, expectations=tables))
    definition = ValidationDefinition(name=pipeline, data=batch, suite=suite)
    return context.validation_definitions.add_or_update(definition)


def checkpoint(
    context: FileDataContext, name: str, definition: Any, detail: str, actions: Sequence[Any] = ()
) -> Any:
    """Return a checkpoint for one definition; actions that somebody gave it stay."""
    from great_expectations import Checkpoint
    from great_expectations.exceptions import DataContextError

    try:
        stored = list(context.checkpoints.get(name).actions)
    except (DataContextError, KeyError):
        stored = []
    chosen = {each.name: each for each in (*stored, *actions)}
    result_format = {"result_format": detail}
    return context.checkpoints.add_or_update(
        Checkpoint(
            name=name,
            validation_definitions=[definition],
            result_format=result_format,
            actions=list(chosen.values()),
        )
    )


@contextmanager
def checking(folder: Path) -> Iterator[FileDataContext]:
    """Open slotlake's context for checks; after them, forget old runs and write the Data Docs.

    Args:
        folder: where the context is kept; made if missing.

    Raises:
        CheckError: the library failed, which says nothing about the data.
    """
    try:
        context = open_context(folder)
        yield context
        _forget_old_runs(folder)
        context.build_data_docs()
    except SlotlakeError:
        raise
    except Exception as error:  # the library has no base of its own for what can go wrong in it
        why = next(iter(str(error).splitlines()), "")[:_LINE_MAX]
        raise _check_error(f"{type(error).__name__} in Great Expectations: {why}", folder) from error
    # Copied by the library; no page of ours refers to them, and the style sheet names a host.
    shutil.rmtree(index(folder).parent / "static", ignore_errors=True)


def _frame(report: Report) -> Any:
    from slotlake.expectations.expectation import frame

    return frame(report)


def run_id(name: str) -> Any:
    """Return a run's identity, of which the name is in the Data Docs."""
    from great_expectations.core.run_identifier import RunIdentifier

    return RunIdentifier(run_name=name)


def index(folder: Path) -> Path:
    """Return the index page of the Data Docs of a context in a folder."""
    return folder / "gx" / "uncommitted" / "data_docs" / _SITE / "index.html"


def _forget_old_runs(folder: Path) -> None:
    """Keep the newest runs; their pages go when the site is built."""
    stored = folder / "gx" / "uncommitted" / "validations"
    runs = sorted(stored.glob("*/*/*"), key=lambda run: run.name, reverse=True)
    for run in runs[RUNS_MAX:]:
        shutil.rmtree(run, ignore_errors=True)
