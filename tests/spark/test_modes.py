"""Tables beside a mirror: staged and published with it, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from slotlake.decoder.errors import LakeError
from slotlake.spark.apply import stage as apply
from slotlake.spark.names import LakeName, lake_table
from tests.spark.lake_lab import UNCHANGED, Lab, delete, insert, relation, update

ITEMS = relation("items", ["id"], id="int4", v="text", n="numeric")
NAMES = "id, v, n, valid_from_lsn, valid_to_lsn"


def _all(lab: Lab, sql: str) -> Sequence[Any]:
    return sorted((tuple(row) for row in lab.session.sql(sql).collect()), key=repr)


def _changes(lab: Lab) -> Sequence[Any]:
    shown = "seq, op, new.id, new.v, new.n, old.id, old_row, unchanged"
    return _all(lab, f"SELECT {shown} FROM lake.shop.items__changes WHERE seq > 0")


def _versions(lab: Lab) -> Sequence[Any]:
    return _all(lab, f"SELECT {NAMES} FROM lake.shop.items__history")


def test_ended_between_the_modes_of_a_table(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    copied, rows = lab.position, [{"id": "1", "v": "a", "n": "1.50"}, {"id": "2", "v": "b", "n": "NaN"}]
    lab.init({ITEMS: rows}, modes={"public.items": ["append", "history"]})
    began = [(1, "a", "1.50", copied, None), (2, "b", "NaN", copied, None)]
    assert (_changes(lab), _versions(lab)) == ([], began)
    batch = lab.batch(
        insert(ITEMS, id="3", v="c", n="1"),
        update(ITEMS, id="1", v=UNCHANGED, n="2"),
        update(ITEMS, {"id": "2"}, id="4", v=UNCHANGED, n=UNCHANGED),
        delete(ITEMS, id="3"),
    )
    reached: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(apply, "reach", lambda name: _second(reached, name))
        with pytest.raises(KeyboardInterrupt):
            lab.apply(batch)
    with pytest.raises(LakeError, match="is not staged"):
        lab.publish(batch)
    assert (_changes(lab), _versions(lab)) == ([], began)
    for _ in range(2):
        lab.apply(batch)
    end = lab.publish(batch).position
    assert lab.publish(batch).already
    assert _versions(lab) == [
        (1, "a", "1.50", copied, end),
        (1, "a", "2", end, None),
        (2, "b", "NaN", copied, end),
        (4, "b", "NaN", end, None),
    ]
    assert _changes(lab) == [
        (1, "I", 3, "c", "1", None, None, None),
        (2, "U", 1, None, "2", None, None, ["v"]),
        (3, "U", 4, None, None, 2, "key", ["v", "n"]),
        (4, "D", None, None, None, 3, "key", None),
    ]


def _second(reached: list[str], name: str) -> None:
    reached.append(name)
    if reached.count("apply.between_modes") == 2:
        raise KeyboardInterrupt


def test_another_pipelines_table_is_not_taken(lab: Lab) -> None:
    lab.init({ITEMS: []})
    lab.session.sql("CREATE TABLE lake.shop.items__history (id int) USING iceberg").collect()
    with pytest.raises(LakeError, match="is not what its name says"):
        lab.apply(lab.batch(insert(ITEMS, id="1", v="a", n="1")))
    assert lab.rows("items") == []


def test_no_source_table_has_such_a_name() -> None:
    for table in ("items__history", "ITEMS__Changes", "__history"):
        assert not lake_table("shop", "public", table).table.lower().endswith(("__history", "__changes"))
    assert lake_table("shop", "public", "a__history") == LakeName("shop", "a___x68_istory")
