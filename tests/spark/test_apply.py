"""Batches become what PostgreSQL's table holds after them."""

from __future__ import annotations

import pytest

from slotlake.spark.direct.choice import NEVER, SWITCH
from slotlake.spark.merge import replacement, rows, stage
from tests.spark.lake_lab import UNCHANGED, Lab, delete, insert, relation, truncate, update

ORDERS = relation("orders", ["id"], id="int8", note="text", total="numeric(10,2)")
EVENTS = relation("events", [], at="timestamptz", what="text")


def order(number: int, note: str | None = "x", total: str | None = "1.00") -> dict[str, str | None]:
    return {"id": str(number), "note": note, "total": total}


def test_insert_update_delete(lab: Lab) -> None:
    lab.init({ORDERS: [order(1), order(2), order(3)], EVENTS: []})
    lab.sync(
        insert(ORDERS, **order(4, "new")),
        update(ORDERS, **order(2, "changed", "9.99")),
        delete(ORDERS, id="3"),
        insert(EVENTS, at="2024-05-01 10:00:00+00", what="a"),
        insert(EVENTS, at="2024-05-01 10:00:00+00", what="a"),
    )
    assert lab.rows("orders") == [("1", "x", "1.00"), ("2", "changed", "9.99"), ("4", "new", "1.00")]
    assert lab.rows("public.events") == [("2024-05-01 10:00:00+00", "a")] * 2


def test_delete_then_insert_and_insert_then_delete(lab: Lab) -> None:
    lab.init({ORDERS: [order(1), order(2)]})
    lab.sync(
        delete(ORDERS, id="1"),
        insert(ORDERS, **order(1, "again", None)),
        insert(ORDERS, **order(5)),
        delete(ORDERS, id="5"),
    )
    assert lab.rows("orders") == [("1", "again", None), ("2", "x", "1.00")]


def test_unchanged_values_stay_the_lakes(lab: Lab) -> None:
    lab.init({ORDERS: [order(1, "long"), order(2, "longer")]})
    lab.sync(
        update(ORDERS, id="1", note=UNCHANGED, total="2.00"),
        update(ORDERS, id="2", note="short", total="3.00"),
        update(ORDERS, id="2", note=UNCHANGED, total="4.00"),
    )
    assert lab.rows("orders") == [("1", "long", "2.00"), ("2", "short", "4.00")]


def test_a_key_change_takes_unchanged_values_along(lab: Lab) -> None:
    lab.init({ORDERS: [order(1, "long"), order(2, "longer"), order(3)]})
    lab.sync(
        update(ORDERS, {"id": "1"}, id="10", note=UNCHANGED, total="1.50"),
        update(ORDERS, {"id": "10"}, id="11", note=UNCHANGED, total="1.75"),
        update(ORDERS, {"id": "3"}, id="30", note="other", total="3.00"),
    )
    assert lab.rows("orders") == [("11", "long", "1.75"), ("2", "longer", "1.00"), ("30", "other", "3.00")]


def test_two_rows_swap_their_keys(lab: Lab) -> None:
    lab.init({ORDERS: [order(1, "one", "1.00"), order(2, "two", "2.00")]})
    lab.sync(
        update(ORDERS, {"id": "1"}, id="99", note=UNCHANGED, total="1.00"),
        update(ORDERS, {"id": "2"}, id="1", note=UNCHANGED, total="2.00"),
        update(ORDERS, {"id": "99"}, id="2", note=UNCHANGED, total="1.00"),
    )
    assert lab.rows("orders") == [("1", "two", "2.00"), ("2", "one", "1.00")]


def test_truncate_then_insert(lab: Lab) -> None:
    lab.init({ORDERS: [order(1), order(2)], EVENTS: [{"at": "2024-05-01 10:00:00+00", "what": "old"}]})
    lab.sync(insert(ORDERS, **order(3)), truncate(ORDERS), insert(ORDERS, **order(4)), truncate(EVENTS))
    assert lab.rows("orders") == [("4", "x", "1.00")]
    assert lab.rows("events") == []
    lab.sync(insert(ORDERS, **order(5)), insert(EVENTS, at="2024-05-01 10:00:00+00", what="new"))
    assert [row[0] for row in lab.rows("orders")] == ["4", "5"]
    assert len(lab.rows("events")) == 1


def test_values_that_the_typed_column_cannot_hold(lab: Lab) -> None:
    lab.init({ORDERS: [order(1), order(2)]})
    lab.sync(update(ORDERS, **order(1, "x", "NaN")), insert(ORDERS, **order(3, None, "NaN")))
    assert lab.rows("orders") == [("1", "x", "NaN"), ("2", "x", "1.00"), ("3", None, "NaN")]
    lab.sync(
        update(ORDERS, **order(1, "x", "5.00")),
        update(ORDERS, {"id": "3"}, id="4", note="n", total=UNCHANGED),
    )
    assert lab.rows("orders") == [("1", "x", "5.00"), ("2", "x", "1.00"), ("4", "n", "NaN")]


def test_the_copy_itself_can_hold_such_values(lab: Lab) -> None:
    lab.init({ORDERS: [order(1, "x", "NaN"), order(2)]})
    lab.sync(update(ORDERS, **order(2, "x", "NaN")))
    assert lab.rows("orders") == [("1", "x", "NaN"), ("2", "x", "NaN")]


@pytest.fixture(
    params=["by files", "by files, keys as bits", "by the session", "by the session, keys as bits"]
)
def replacing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a large table, and by Spark's statements, on this machine and on a cluster."""
    if "bits" in request.param:
        monkeypatch.setattr(replacement, "KEY_BYTES", 1 << 20)
    if "session" in request.param:
        for module in (rows, stage):
            monkeypatch.setattr(module, "shares_files", lambda _: False)
        monkeypatch.setattr(rows, "_ROWS_HERE_MAX", 1)
    monkeypatch.setenv(SWITCH, NEVER)
    monkeypatch.setattr(replacement, "_BATCH_ROWS_MIN", 1)
    monkeypatch.setattr(replacement, "_ROWS_MIN", 0)


@pytest.mark.usefixtures("replacing")
def test_taking_away_first_and_appending_then_gives_the_same(lab: Lab) -> None:
    keyed = relation("keyed", ["a", "k"], a="int4", k="numeric(10,2)", v="text")
    lab.init({ORDERS: [order(1), order(2, "long"), order(3)], keyed: [{"a": "1", "k": "NaN", "v": "x"}]})
    batch = lab.sync(
        insert(ORDERS, **order(4)),
        update(ORDERS, id="2", note=UNCHANGED, total="9.99"),
        delete(ORDERS, id="3"),
        delete(ORDERS, id="1"),
        insert(ORDERS, **order(1, "again")),
        insert(keyed, a="2", k="NaN", v="y"),
        insert(keyed, a="1", k="0.00", v="z"),
        delete(keyed, a="1", k="NaN"),
        insert(keyed, a="1", k="NaN", v="new"),
    )
    assert lab.rows("orders") == [("1", "again", "1.00"), ("2", "long", "9.99"), ("4", "x", "1.00")]
    assert lab.rows("keyed") == [("1", "0.00", "z"), ("1", "NaN", "new"), ("2", "NaN", "y")]
    snapshots = lab.session.sql("SELECT operation, summary['slotlake.batch'] FROM lake.shop.orders.snapshots")
    assert [tuple(row) for row in snapshots.collect()][1:] == [("overwrite", None), ("append", batch.name)]


@pytest.mark.usefixtures("replacing")
def test_a_key_change_does_not_keep_rows_from_being_replaced(lab: Lab) -> None:
    lab.init({ORDERS: [order(i) for i in range(1, 6)]})
    swapped = [
        update(ORDERS, {"id": a}, **order(int(b), "moved")) for a, b in (("1", "9"), ("2", "1"), ("9", "2"))
    ]
    batch = lab.sync(*swapped, update(ORDERS, **order(3, "y")), delete(ORDERS, id="4"))
    moved = [("1", "moved", "1.00"), ("2", "moved", "1.00")]
    assert lab.rows("orders") == [*moved, ("3", "y", "1.00"), ("5", "x", "1.00")]
    snapshots = lab.session.sql("SELECT operation, summary['slotlake.batch'] FROM lake.shop.orders.snapshots")
    assert [tuple(row) for row in snapshots.collect()][1:] == [("delete", None), ("append", batch.name)]
    # Something of the lake's stays in it: taken along in one statement, as before.
    lab.sync(update(ORDERS, {"id": "5"}, id="6", note=UNCHANGED, total="7.00"), delete(ORDERS, id="3"))
    assert lab.rows("orders") == [*moved, ("6", "x", "7.00")]
    # The lake lacks the row that moves: told, and the row comes if all of it is known.
    assert lab.conflicts(update(ORDERS, {"id": "77"}, **order(78))) == {"update_missing": 1}
    assert lab.conflicts(update(ORDERS, {"id": "78"}, **order(1, "onto")))["update_exists"] == 1
    assert lab.rows("orders") == [("1", "onto", "1.00"), moved[1], ("6", "x", "7.00")]


@pytest.mark.usefixtures("replacing")
def test_what_taking_away_and_appending_meet_is_counted(lab: Lab) -> None:
    lab.init({ORDERS: [order(1), order(2)]})
    assert lab.conflicts(update(ORDERS, **order(1, "y")), insert(ORDERS, **order(3))) == {}
    assert lab.conflicts(delete(ORDERS, id="3"), update(ORDERS, id="1", note=UNCHANGED, total="2.00")) == {}
    assert lab.conflicts(insert(ORDERS, **order(2, "again"))) == {"insert_exists": 1}
    assert lab.conflicts(update(ORDERS, **order(9)), insert(ORDERS, **order(4))) == {"update_missing": 1}
    assert lab.conflicts(delete(ORDERS, id="8")) == {"delete_missing": 1}
    assert lab.rows("orders") == [
        ("1", "y", "2.00"),
        ("2", "again", "1.00"),
        ("4", "x", "1.00"),
        ("9", "x", "1.00"),
    ]


def test_few_changes_are_replaced_too_where_their_keys_lie_far_apart(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replacement, "_ROWS_MIN", 0)
    monkeypatch.setenv(SWITCH, NEVER)  # the statements of Spark
    lab.init({ORDERS: [order(1), order(9_000_000)]})
    lab.sync(update(ORDERS, **order(1, "y")), insert(ORDERS, **order(2)))
    lab.sync(update(ORDERS, **order(1, "z")), update(ORDERS, **order(9_000_000, "z")))
    assert [row[:2] for row in lab.rows("orders")] == [("1", "z"), ("2", "x"), ("9000000", "z")]
    snapshots = lab.session.sql("SELECT operation FROM lake.shop.orders.snapshots").collect()
    assert [row[0] for row in snapshots][1:] == ["overwrite", "delete", "append"]
