"""Somebody else changes tables of the lake, or makes some beside them, while a batch is under way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slotlake.decoder.errors import LakeError
from slotlake.spark.catalog.base import PointerMovedError
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.lake import LakeSettings
from slotlake.spark.maintenance.integrity import WRITTEN, find_damage, repair_damage
from slotlake.spark.maintenance.removal import drop_tables
from slotlake.spark.maintenance.rewrite import tables_to_maintain
from slotlake.spark.names import LakeName
from slotlake.spark.publish import swap
from slotlake.spark.publish.aside import Aside
from slotlake.spark.publish.aside_write import write
from slotlake.spark.publish.lives import Event
from slotlake.spark.publish.publication import DerivedGoneError, publish_batch
from tests.spark.lake_lab import PIPELINE, Lab, relation, update

ONE = relation("one", ["id"], id="int8", v="int4")
TWO = relation("two", ["id"], id="int8", v="int4")
FIRST = {ONE: [{"id": "1", "v": "0"}], TWO: [{"id": "1", "v": "0"}]}


@pytest.fixture(params=["sqlite", "rest", "staged"])
def race(request: pytest.FixtureRequest, session: Any, tmp_path: Path) -> tuple[Lab, Any]:
    """A lake, and the Spark session of somebody else in the same catalog."""
    namespace = "r" + "".join(c for c in tmp_path.name if c.isalnum())
    uri = f"sqlite:///{tmp_path}/catalog.db" if request.param == "sqlite" else request.getfixturevalue("rest")
    lake = LakeSettings("lake", uri, f"file://{tmp_path}/warehouse", namespace)
    staging = f"sqlite:///{tmp_path}/staging.db" if request.param == "staged" else ""
    other = Lab.on(session, lake).session
    return Lab.on(session, replace(lake, staging=staging)), other


def test_others_write_while_a_batch_is_under_way(
    race: tuple[Lab, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, other = race
    lab.init(FIRST)
    one = f"lake.{lab.lake.namespace}.one"
    _beside(lab, other)
    before = lab.rows("two")
    batch = lab.batch(update(ONE, id="1", v="1"), update(TWO, id="1", v="1"))
    lab.apply(batch)
    other.sql(f"INSERT INTO {one} VALUES (7, 7)")  # between apply and publish
    with pytest.raises(LakeError, match=r"another run wrote to what is staged|not staged") as caught:
        lab.publish(batch)
    assert "one" in str(caught.value)
    assert lab.rows("two") == before
    _repaired(lab)
    lab.apply(batch)
    _while_it_is_published(lab, other, batch, monkeypatch)
    _repaired(lab)
    lab.apply(batch)
    other.sql(f"ALTER TABLE {one} SET TBLPROPERTIES ('note' = 'them')")  # no rows: it stays
    lab.publish(batch)
    assert (lab.rows("one"), lab.rows("two")) == ([("1", "1")], [("1", "1")])
    properties = other.sql(f"SHOW TBLPROPERTIES {one} ('note')").collect()
    assert [row[1] for row in properties] == ["them"]
    _dropped_by_others(lab, other)
    _beside_still(lab, other)


def _while_it_is_published(lab: Lab, other: Any, batch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last moment: the moves are prepared, and one table is not what it was."""

    def writes(name: str) -> None:
        if name == "publish.before_swap":
            other.sql(f"INSERT INTO lake.{lab.lake.namespace}.one VALUES (8, 8)")

    with monkeypatch.context() as patched:
        patched.setattr(swap, "reach", writes)
        with pytest.raises(
            PointerMovedError, match="changed by someone else meanwhile; nothing was published"
        ):
            lab.publish(batch)
    assert lab.rows("two") == [("1", "0")]


def _repaired(lab: Lab) -> None:
    damages = find_damage(lab.lake, PIPELINE)
    assert [(each.kind, each.table.table) for each in damages] == [(WRITTEN, "one")]
    repair_damage(lab.lake, damages)
    assert find_damage(lab.lake, PIPELINE) == []
    assert lab.rows("one") == [("1", "0")]


def _beside(lab: Lab, other: Any) -> None:
    other.sql(f"CREATE TABLE lake.{lab.lake.namespace}.theirs (id bigint) USING iceberg")
    other.sql(f"INSERT INTO lake.{lab.lake.namespace}.theirs VALUES (1)")


def _beside_still(lab: Lab, other: Any) -> None:
    """A table of others in the namespace is no table of the pipeline, whatever happens to those."""
    assert "theirs" not in [name.table for name in tables_to_maintain(lab.lake, PIPELINE)]
    drop_tables(lab.lake, PIPELINE)
    assert other.sql(f"SELECT id FROM lake.{lab.lake.namespace}.theirs").collect() == [(1,)]
    with open_catalog(lab.lake) as catalog:
        assert [name.table for name in catalog.names()] == ["theirs"]


def _dropped_by_others(lab: Lab, other: Any) -> None:
    """It is named, and no batch leaves it out unless it is set aside; then the others go on without it."""
    batch = lab.batch(update(ONE, id="1", v="2"), update(TWO, id="1", v="2"))
    lab.apply(batch)
    other.sql(f"DROP TABLE lake.{lab.lake.namespace}.one")
    staged = {LakeName(lab.lake.namespace, "one"): ("public", "one")}
    with pytest.raises(LakeError, match="dropped from the catalog by someone else") as raised:
        publish_batch(lab.lake, batch, PIPELINE, staged=staged)
    assert raised.value.table == ("public", "one")
    why = (str(raised.value.what), str(raised.value.where), str(raised.value.way_out))
    entry = Aside("public", "one", None, "2026-01-01T00:00:00+00:00", "absent", *why)
    write(lab.lake, PIPELINE, [entry], Event.TROUBLED)
    derived = {LakeName(lab.lake.namespace, "two__history"): ("public", "two")}
    with pytest.raises(DerivedGoneError, match="a derived table was dropped") as gone:
        publish_batch(lab.lake, batch, PIPELINE, staged=derived)
    assert (gone.value.table, [*gone.value.gone]) == (("public", "two"), [*derived])
    assert lab.rows("two") == [("1", "1")]
    lab.publish(batch)
    publish_batch(lab.lake, batch, PIPELINE, staged=derived)  # it is published: nothing is missed any more
    assert lab.rows("two") == [("1", "2")]
    with pytest.raises(KeyError):
        lab.rows("one")
