"""Changes that meet what the source did not have: counted, kept, and applied, skipped or refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slotlake.decoder.errors import ApplyError
from slotlake.spark import exchange
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.names import LakeName
from slotlake.spark.publish.swap import load
from slotlake.spark.tables import metadata as catalog_metadata
from tests.spark.lake_lab import PIPELINE, UNCHANGED, Change, Lab, delete, insert, relation, truncate, update

ITEMS = relation("items", ["id"], id="int4", v="text", big="text")
OTHER = relation("another", ["id"], id="int4")
BAG = relation("bag", [], "f", v="int4", t="text")


def item(number: int, v: str = "lake") -> dict[str, str]:
    return {"id": str(number), "v": v, "big": f"big{number}"}


def gone_wrong() -> list[Change]:
    """Against a lake with rows 1, 2, 3."""
    return [
        insert(ITEMS, **item(1, "inserted")),
        update(ITEMS, {"id": "2"}, id="3", v="moved", big=UNCHANGED),
        update(ITEMS, **item(7, "updated")),
        update(ITEMS, id="8", v="not whole", big=UNCHANGED),
        delete(ITEMS, id="9"),
        update(ITEMS, id="1", v="updated then", big=UNCHANGED),
    ]


FOUND = {"insert_exists": 1, "update_exists": 1, "update_missing": 2, "delete_missing": 1}


def summary_of(lab: Lab, table: str, branch: str = catalog_metadata.MAIN) -> dict[str, Any]:
    with open_catalog(lab.lake) as catalog:
        metadata = load(catalog.pointers(), LakeName("shop", table)).metadata
    return catalog_metadata.summary(catalog_metadata.head(metadata, branch))


def test_applied_the_lake_is_what_the_changes_say(lab: Lab) -> None:
    lab.init({ITEMS: [item(1), item(2), item(3)]})
    assert lab.conflicts(*gone_wrong()) == FOUND
    assert lab.rows("items") == [
        ("1", "updated then", "big1"),
        ("3", "moved", "big2"),
        ("7", "updated", "big7"),
    ]
    assert json.loads(summary_of(lab, "items")["slotlake.conflicts"]) == FOUND
    assert lab.conflicts(update(ITEMS, **item(1))) == {}
    assert lab.conflicts(delete(ITEMS, id="50")) == {"delete_missing": 1}
    summary = summary_of(lab, "items")
    assert json.loads(summary["slotlake.conflicts"]) == {"delete_missing": 1}
    assert json.loads(summary["slotlake.conflicts-total"]) == {**FOUND, "delete_missing": 2}


def test_skipped_a_change_leaves_what_it_met_and_later_ones_go_on_from_there(lab: Lab) -> None:
    lab.init({ITEMS: [item(1), item(2), item(3)]})
    assert lab.conflicts(*gone_wrong(), choice="skip") == FOUND
    assert lab.rows("items") == [("1", "updated then", "big1"), ("2", "lake", "big2"), ("3", "lake", "big3")]


def test_refused_nothing_is_left_of_the_batch(lab: Lab) -> None:
    lab.init({ITEMS: [item(1), item(2), item(3)], OTHER: []})
    batch = lab.batch(insert(OTHER, id="1"), *gone_wrong())
    with pytest.raises(ApplyError) as caught:
        lab.apply(batch, "fail")
    assert "update_missing 2" in caught.value.what
    assert "public.items" in caught.value.where
    assert "on_conflict" in caught.value.way_out
    assert "moved" not in str(caught.value)
    for table in ("items", "another"):
        assert summary_of(lab, table, catalog_metadata.STAGE) == summary_of(lab, table)
    left = exchange.exchange_directory(lab.lake, PIPELINE, batch.name)
    assert not [path for path in left.rglob("*") if path.suffix != ".parquet" and path.is_file()]
    lab.apply(batch)
    lab.publish(batch)
    assert len(lab.rows("items")) == 3


def test_a_lake_equal_to_the_source_meets_nothing(lab: Lab) -> None:
    lab.init({ITEMS: [item(1), item(2), item(3)], BAG: [{"v": "1", "t": None}] * 2})
    changes = [
        delete(ITEMS, id="1"),
        insert(ITEMS, **item(1, "again")),
        insert(ITEMS, **item(4)),
        delete(ITEMS, id="4"),
        update(ITEMS, {"id": "2"}, id="5", v="moved", big=UNCHANGED),
        update(ITEMS, {"id": "3"}, id="2", v="moved", big=UNCHANGED),
        update(BAG, {"v": "1"}, v="2", t="x"),
        delete(BAG, v="2", t="x"),
    ]
    batch = lab.batch(*changes)
    for applied in lab.apply(batch, "fail").tables.values():
        assert not applied.conflicts
    lab.publish(batch)
    assert len(lab.rows("items")) == 3
    assert lab.rows("bag") == [("1", None)]
    truncated = [truncate(ITEMS), insert(ITEMS, **item(1)), delete(ITEMS, id="1")]
    assert lab.conflicts(*truncated, choice="fail") == {}


def test_a_bag_that_lacks_rows(lab: Lab) -> None:
    rows = [{"v": "1", "t": None}]
    changes = [delete(BAG, v="1"), delete(BAG, v="1"), update(BAG, {"v": "1"}, v="2", t="new")]
    found = {"delete_missing": 1, "update_missing": 1}
    lab.init({BAG: rows})
    with pytest.raises(ApplyError, match="delete_missing 1"):
        lab.apply(lab.batch(*changes), "fail")
    assert lab.conflicts(*changes, choice="skip") == found
    assert lab.rows("bag") == []
    lab.sync(insert(BAG, v="1"))
    assert lab.conflicts(*changes) == found
    assert lab.rows("bag") == [("2", "new")]
