"""A REST server that is told of a table's last snapshot only still knows which row numbers are taken."""

from __future__ import annotations

from typing import Any

import pytest

from slotlake.spark.catalog.base import Loaded, Move
from slotlake.spark.catalog.rest_published import published_change, published_content
from slotlake.spark.names import LakeName

pytestmark = pytest.mark.fast
NAME = LakeName("shop", "orders")


def _metadata(*snapshots: tuple[int, int, int], next_row_id: int) -> dict[str, Any]:
    """Of snapshots that each follow the one before: (id, first-row-id, added-rows)."""
    schema = {"schema-id": 0, "type": "struct", "fields": []}
    return {
        "format-version": 3, "table-uuid": "u", "location": "file:///orders", "last-column-id": 0,
        "schemas": [schema], "current-schema-id": 0, "next-row-id": next_row_id,
        "snapshots": [
            {"snapshot-id": number, "sequence-number": number, "first-row-id": first, "added-rows": added}
            for number, first, added in snapshots
        ],
        "refs": {"main": {"snapshot-id": snapshots[-1][0], "type": "branch"}} if snapshots else {},
    }  # fmt: skip


def _numbers(change: dict[str, Any]) -> tuple[int, int]:
    (snapshot,) = (each["snapshot"] for each in change["updates"] if each["action"] == "add-snapshot")
    return snapshot["first-row-id"], snapshot["added-rows"]


def test_numbers_of_snapshots_that_the_server_never_sees_are_taken() -> None:
    """A batch in two slices, which made two snapshots with rows, and one without."""
    server = _metadata((1, 0, 9), next_row_id=9)
    after = _metadata((1, 0, 9), (2, 9, 3), (3, 12, 2), (4, 14, 0), next_row_id=14)
    assert _numbers(published_change(NAME, server, after, "file:///m.json")) == (9, 5)


def test_a_new_table_that_was_filled_in_several_steps() -> None:
    after = _metadata((1, 0, 9), (2, 9, 3), next_row_id=12)
    made = Move(Loaded(NAME, "file:///m.json", after), after, "file:///m.json", NAME)
    assert _numbers(published_content(made)) == (0, 12)
