"""The expectation: a lake table is equal to its source.

It looks at a reconciliation as a frame with one row per table (`frame`).  All rows that differ were
counted before, so nothing is sampled; the library's own ExpectQueryResultsToMatchComparison looks at
200 rows.
"""

from __future__ import annotations

import html
import json
from typing import Any, ClassVar

import pandas
from great_expectations.core.metric_domain_types import MetricDomainTypes
from great_expectations.execution_engine import PandasExecutionEngine
from great_expectations.expectations.expectation import BatchExpectation, render_suite_parameter_string
from great_expectations.expectations.metrics.metric_provider import metric_value
from great_expectations.expectations.metrics.table_metric_provider import TableMetricProvider
from great_expectations.render import (
    LegacyDiagnosticRendererType,
    LegacyRendererType,
    RenderedStringTemplateContent,
    RenderedTableContent,
)
from great_expectations.render.renderer.renderer import renderer

from slotlake.expectations.results import Report

METRIC = "slotlake.reconciliation"
COLUMNS = ("source_table", "equal", "source_rows", "lake_rows", "totals", "differences")


def frame(report: Report) -> pandas.DataFrame:
    """A reconciliation as the expectation takes it: one row per table."""
    rows = [
        (
            table.table,
            table.equal,
            table.source_rows,
            table.lake_rows,
            json.dumps(table.totals),
            json.dumps([str(difference) for difference in table.differences]),
        )
        for table in report.tables.values()
    ]
    return pandas.DataFrame(rows, columns=list(COLUMNS))


class ReconciliationMetric(TableMetricProvider):  # type: ignore[misc]
    """The frame's rows by table name."""

    metric_name = METRIC

    @metric_value(engine=PandasExecutionEngine)  # type: ignore[untyped-decorator]
    def _pandas(
        cls,  # noqa: N805 - Great Expectations calls it with the class
        execution_engine: PandasExecutionEngine,
        metric_domain_kwargs: dict[str, Any],
        metric_value_kwargs: dict[str, Any],
        metrics: dict[str, Any],
        runtime_configuration: dict[str, Any],
    ) -> dict[str, dict[str, Any]]:
        rows, _, _ = execution_engine.get_compute_domain(
            domain_kwargs=metric_domain_kwargs, domain_type=MetricDomainTypes.TABLE
        )
        return {row["source_table"]: row for row in rows.to_dict("records")}


class ExpectLakeTableToEqualSource(BatchExpectation):  # type: ignore[misc]
    """Expect a lake table to hold exactly the rows of its source table.

    Args:
        source_table: the table as PostgreSQL writes its name.

    A table that the reconciliation did not cover is an error (``exception_info``), not an inequality.
    """

    source_table: str

    metric_dependencies = (METRIC,)
    success_keys = ("source_table",)
    args_keys = ("source_table",)
    domain_keys: ClassVar[tuple[str, ...]] = ()

    def _validate(
        self,
        metrics: dict[str, Any],
        runtime_configuration: dict[str, Any] | None = None,
        execution_engine: Any = None,
    ) -> dict[str, Any]:
        row = metrics[METRIC].get(self.source_table)
        if row is None:
            raise LookupError("the reconciliation does not cover this table")
        totals, listed = json.loads(row["totals"]), json.loads(row["differences"])
        counted = ", ".join(f"{count:,} {kind}" for kind, count in totals.items())
        counts = f"{row['source_rows']:,} rows in source, {row['lake_rows']:,} in lake"
        return {
            "success": bool(row["equal"]),
            "result": {
                "observed_value": f"{counts}; {counted}" if counted else f"{counts}, all equal",
                "element_count": int(max(row["source_rows"], row["lake_rows"])),
                "unexpected_count": sum(totals.values()),
                "partial_unexpected_list": listed,
                "details": {"totals": totals},
            },
        }

    @classmethod
    @renderer(renderer_type=LegacyRendererType.PRESCRIPTIVE)  # type: ignore[untyped-decorator]
    @render_suite_parameter_string  # type: ignore[untyped-decorator]
    def _prescriptive_renderer(
        cls, configuration: Any = None, result: Any = None, runtime_configuration: Any = None
    ) -> list[RenderedStringTemplateContent]:
        kwargs = (configuration or result.expectation_config).kwargs
        return [_text("$table holds exactly the rows of its source.", table=kwargs["source_table"])]

    @classmethod
    @renderer(renderer_type=LegacyDiagnosticRendererType.UNEXPECTED_STATEMENT)  # type: ignore[untyped-decorator]
    def _diagnostic_unexpected_statement_renderer(
        cls, configuration: Any = None, result: Any = None, runtime_configuration: Any = None
    ) -> list[RenderedStringTemplateContent]:
        if result is None or result.success:
            return []
        if result.exception_info.get("raised_exception"):
            return [_text("Not checked: $why", why=str(result.exception_info.get("exception_message")))]
        outcome = result.result
        total, listed_count = outcome["unexpected_count"], len(outcome["partial_unexpected_list"])
        return [_text("$total differ, $shown listed.", total=f"{total:,}", shown=f"{listed_count:,}")]

    @classmethod
    @renderer(renderer_type=LegacyDiagnosticRendererType.UNEXPECTED_TABLE)  # type: ignore[untyped-decorator]
    def _diagnostic_unexpected_table_renderer(
        cls, configuration: Any = None, result: Any = None, runtime_configuration: Any = None
    ) -> list[RenderedTableContent] | None:
        listed = (result.result or {}).get("partial_unexpected_list") if result is not None else None
        if not listed:
            return None
        # Keys are the source's data; the page's templates do not escape table cells.
        rows = [[html.escape(difference)] for difference in listed]
        return [RenderedTableContent(content_block_type="table", table=rows, header_row=["What differs"])]


def _text(template: str, **params: str) -> RenderedStringTemplateContent:
    """A text whose parameters are escaped, which Great Expectations does only where there is styling."""
    styling = {"default": {"classes": ["badge"]}}
    return RenderedStringTemplateContent(
        content_block_type="string_template",
        string_template={"template": template, "params": params, "styling": styling},
    )
