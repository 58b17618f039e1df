"""A REST server that hears of a table's last snapshot only still knows row numbers, and columns of then."""

from __future__ import annotations

from typing import Any

import pytest

from slotlake.spark.catalog.base import Loaded, Move
from slotlake.spark.catalog.rest.published import published_change, published_content
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


def _with_schemas(metadata: dict[str, Any], *columns: int) -> dict[str, Any]:
    """With a schema of one column for each of these field ids; the last one is of now."""
    schemas = [
        {"schema-id": number, "type": "struct", "fields": [{"id": each, "name": "a"}]}
        for number, each in enumerate(columns)
    ]
    metadata = {**metadata, "schemas": schemas, "current-schema-id": len(schemas) - 1}
    return {**metadata, "last-column-id": max(columns)}


def _schema(change: dict[str, Any]) -> int | None:
    (snapshot,) = (each["snapshot"] for each in change["updates"] if each["action"] == "add-snapshot")
    number: int | None = snapshot.get("schema-id")
    return number


@pytest.mark.parametrize(
    ("on_server", "ours", "number"),
    [
        ((1,), (1,), 0),
        ((1,), (1, 2), 1),  # the server has not seen it yet, and numbers it next
        ((1,), (1, 2, 3), 1),  # nor the one before, which no published snapshot had
        ((1, 3), (1, 2, 3), 1),
        ((1, 3), (1, 2, 3, 1), 0),  # as at first
    ],
)
def test_a_snapshot_has_the_servers_number_of_its_columns(
    on_server: tuple[int, ...], ours: tuple[int, ...], number: int
) -> None:
    server = _with_schemas(_metadata((1, 0, 9), next_row_id=9), *on_server)
    after = _with_schemas(_metadata((1, 0, 9), (2, 9, 3), next_row_id=12), *ours)
    assert _schema(published_change(NAME, server, after, "file:///m.json")) == number


def test_a_snapshot_of_columns_that_the_server_does_not_have_has_no_number() -> None:
    server = _with_schemas(_metadata((1, 0, 9), next_row_id=9), 1)
    after = _with_schemas(_metadata((1, 0, 9), (2, 9, 3), next_row_id=12), 1, 2, 3)
    after["snapshots"][-1]["schema-id"] = 1
    assert _schema(published_change(NAME, server, after, "file:///m.json")) is None
