"""Tables that are ahead of `commits` go back: their rows, their shape, and then another batch follows."""

from __future__ import annotations

from typing import Any

import pytest

from slotlake.decoder.errors import ApplyError
from slotlake.decoder.lsn import parse_lsn
from slotlake.spark.catalog import tags as catalog_tags
from slotlake.spark.catalog.base import load
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.names import LakeName
from slotlake.spark.publish.commits import commits_name
from slotlake.spark.publish.rewind import rewind_tables
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import LSN, MAIN
from tests.spark.lake_lab import PIPELINE, Lab, insert, relation, update

ONE = relation("one", ["id"], id="int8", v="int4")
WIDE = relation("one", ["id"], id="int8", v="int4", w="text")
TWO = relation("two", ["id"], id="int8", v="int4")
FIRST = {ONE: [{"id": "1", "v": "0"}], TWO: [{"id": "1", "v": "0"}]}


def test_what_commits_does_not_know_of_is_taken_back(lab: Lab) -> None:
    lab.init(FIRST)
    lab.sync(update(ONE, id="1", v="1"), update(TWO, id="1", v="1"))
    position, rows = lab.position, (lab.rows("one"), lab.rows("two"))
    lab.sync(update(WIDE, id="1", v="2", w="new"), insert(TWO, id="2", v="2"))
    lab.sync(insert(WIDE, id="3", v="3", w="newer"))
    _forget_newest_points(lab, position)
    lab.position = position
    other = lab.batch(update(ONE, id="1", v="7"), update(TWO, id="1", v="7"), size=0x150)
    with pytest.raises(ApplyError, match="ahead of the lake's"):
        lab.apply(other)
    assert [name.table for name in rewind_tables(lab.lake, PIPELINE)] == ["one", "two"]
    assert (lab.rows("one"), lab.rows("two")) == rows
    assert rewind_tables(lab.lake, PIPELINE) == []
    lab.apply(other)
    lab.publish(other)
    assert (lab.rows("one"), lab.rows("two")) == ([("1", "7")], [("1", "7")])
    assert lab.rows("one", position) == rows[0]
    lab.sync(update(WIDE, id="1", v="8", w="again"))
    assert lab.rows("one") == [("1", "8", "again")]


def test_what_is_not_there_any_more_counts_as_of_the_position(lab: Lab) -> None:
    lab.init(FIRST)
    lab.sync(update(TWO, id="1", v="1"))
    position = lab.position
    lab.sync(insert(TWO, id="2", v="2"))
    _forget_newest_points(lab, position)
    with open_catalog(lab.lake) as catalog:
        two = load(catalog.pointers(), LakeName("shop", "two"))
        only = [catalog_metadata.head(two.metadata)]
        tags = {"main": two.metadata["refs"]["main"]}
        catalog.move([catalog.prepared(two, {**two.metadata, "snapshots": only, "refs": tags})])
    lab.position = position
    assert [name.table for name in rewind_tables(lab.lake, PIPELINE)] == ["two"]
    assert lab.rows("two") == [("1", "1"), ("2", "2")]
    other = lab.batch(update(TWO, id="2", v="9"), size=0x150)
    lab.apply(other)
    lab.publish(other)
    assert lab.rows("two") == [("1", "1"), ("2", "9")]


def _forget_newest_points(lab: Lab, position: int) -> None:
    """As if `commits` alone had been rolled back to there, and what was above it had expired."""
    with open_catalog(lab.lake) as catalog:
        commits = load(catalog.pointers(), commits_name(lab.lake.namespace))
        metadata: Any = commits.metadata
        kept = [
            snapshot
            for snapshot in metadata["snapshots"]
            if parse_lsn(catalog_metadata.summary(snapshot)[LSN]) <= position
        ]
        tags = {catalog_tags.tag(point) for point in catalog_tags.tags(metadata) if point > position}
        refs = {name: ref for name, ref in metadata["refs"].items() if name not in tags}
        back = catalog_metadata.with_ref({**metadata, "refs": refs}, MAIN, kept[-1]["snapshot-id"])
        gone = {"snapshots": kept, "snapshot-log": metadata["snapshot-log"][-1:]}
        catalog.move([catalog.prepared(commits, catalog_metadata.without_unreferenced({**back, **gone}))])
