"""A table that is only updated: a batch adds as many files as its rows need."""

from __future__ import annotations

from typing import Any

import pytest

from slotlake.spark.catalog.base import load_one
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.copy.initial import InitialCopy
from slotlake.spark.direct.choice import NEVER, SWITCH
from slotlake.spark.names import LakeName
from slotlake.spark.publish.commits import Point
from slotlake.spark.tables.metadata import head, summary
from slotlake.spark.tables.schema import TableSchema
from tests.spark.lake_lab import PIPELINE, UNCHANGED, Lab, relation, update, write_rows

STOCK = relation("stock", ["id"], id="int4", quantity="int4", note="text")
FILES, ROWS = 12, 120


@pytest.fixture
def stock(lab: Lab) -> Lab:
    """A lake with one table, of twelve files, and its history."""
    schema = TableSchema.of(STOCK)
    copy = InitialCopy.begin(lab.session, lab.lake, PIPELINE, [schema], {"public.stock": ["history"]})
    for first in range(0, ROWS, ROWS // FILES):
        rows = [_row(i, 0) for i in range(first, first + ROWS // FILES)]
        write_rows(copy.target(schema), STOCK, rows)
    copy.register(schema)
    copy.publish(Point(PIPELINE, lab.position, "copy", "digest", "copy"))
    return lab


def test_files_of_a_table_that_is_only_updated(stock: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, NEVER)  # by Spark's MERGE
    for quantity in (1, 2):
        ids = range(quantity, ROWS, 7)
        stock.sync(*(update(STOCK, **{**_row(i, quantity), "note": UNCHANGED}) for i in ids))
    assert _files(stock, "stock") == FILES + 2
    found = sorted((int(row[0] or 0), int(row[1] or 0)) for row in stock.rows("stock"))
    assert found == [(i, i % 7 if i % 7 in (1, 2) else 0) for i in range(ROWS)]
    history = "SELECT id FROM lake.shop.stock__history WHERE is_open"
    assert stock.session.sql(history).count() == ROWS


def _row(i: int, quantity: int) -> dict[str, Any]:
    return {"id": str(i), "quantity": str(quantity), "note": f"note {i}"}


def _files(lab: Lab, table: str) -> int:
    with open_catalog(lab.lake) as catalog:
        return int(summary(head(load_one(catalog, LakeName("shop", table)).metadata))["total-data-files"])
