"""Tables without a key under REPLICA IDENTITY FULL: equal rows are many, and one change takes one."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from slotlake.decoder.errors import LakeError
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.direct import choice
from slotlake.spark.merge import run as apply_run
from slotlake.spark.names import LakeName
from slotlake.spark.publish.swap import load
from slotlake.spark.tables import metadata as catalog_metadata
from tests.spark.lake_lab import UNCHANGED, Lab, delete, insert, relation, truncate, update

BAG = relation("bag", [], "f", v="int4", t="text", f="float8", d="date", n="numeric")
RUN = "spark.sql.iceberg.snapshot-property.slotlake.run"
EMPTY = {"v": None, "t": None, "f": None, "d": None, "n": None}


def row(**values: Any) -> dict[str, Any]:
    return {**EMPTY, **values}


def test_one_delete_takes_one_of_equal_rows(lab: Lab) -> None:
    lab.init({BAG: [row(v="1", t="x")] * 3 + [row()] * 2 + [row(v="1")]})
    lab.sync(delete(BAG, **row(v="1", t="x")), delete(BAG, **row()), insert(BAG, **row(v="1")))
    assert lab.rows("bag") == sorted(
        [("1", "x", None, None, None)] * 2 + [(None,) * 5] + [("1", None, None, None, None)] * 2, key=repr
    )
    lab.sync(*[update(BAG, row(v="1", t="x"), **row(v="1", t="y"))] * 2, delete(BAG, **row()))
    assert sorted((value[:2] for value in lab.rows("bag")), key=repr) == sorted(
        [("1", "y")] * 2 + [("1", None)] * 2, key=repr
    )


def test_what_a_killed_run_adds_between_two_statements_is_not_published(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its INSERT meets no conflict, and comes before the statement that names the batch."""
    monkeypatch.setenv(choice.SWITCH, choice.NEVER)
    lab.init({BAG: [row(v="1")]})
    original, meddled = apply_run.run, []

    def meddling(session: Any, table: Any, sql: str, *more: Any) -> None:
        if sql.startswith("MERGE"):
            ours = session.conf.get(RUN)
            session.conf.set(RUN, "the killed one's")
            original(session, table, "INSERT INTO lake.shop.bag.branch_stage (v) VALUES (3)")
            session.conf.set(RUN, ours)
            meddled.append(sql)
        original(session, table, sql, *more)

    batch = lab.batch(delete(BAG, **row(v="1")), insert(BAG, **row(v="2")))
    with monkeypatch.context() as patch:
        patch.setattr(apply_run, "run", meddling)
        lab.apply(batch)
    assert meddled
    with pytest.raises(LakeError, match="another run wrote to what is staged"):
        lab.publish(batch)
    assert [held[0] for held in lab.rows("bag")] == ["1"]
    lab.apply(batch)
    lab.publish(batch)
    assert [held[0] for held in lab.rows("bag")] == ["2"]


def test_rows_are_told_apart_as_postgresql_prints_them(lab: Lab) -> None:
    values: list[dict[str, str | None]] = [
        {"f": "0"}, {"f": "-0"}, {"f": "NaN"}, {"f": "Infinity"}, {"n": "1.0"}, {"n": "1.00"},
        {"d": "infinity"}, {"d": "-infinity"}, {"d": "2024-01-01"}, {"t": ""}, {"t": None}, {"t": "é"},
    ]  # fmt: skip
    lab.init({BAG: [row(v=str(i % 2), **each) for i, each in enumerate(values) for _ in range(2)]})
    lab.sync(*(delete(BAG, **row(v=str(i % 2), **each)) for i, each in enumerate(values)))
    left = [tuple(row(v=str(i % 2), **each).values()) for i, each in enumerate(values)]
    assert lab.rows("bag") == sorted(left, key=repr)


def test_nothing_is_rewritten_for_one_row(lab: Lab) -> None:
    lab.init({BAG: [row(v=str(i), t="x" * 50) for i in range(5000)]})
    batch = lab.sync(delete(BAG, **row(v="17", t="x" * 50)))
    with open_catalog(lab.lake) as catalog:
        metadata = load(catalog.pointers(), LakeName("shop", "bag")).metadata
    summary = catalog_metadata.summary(catalog_metadata.head(metadata))
    assert (summary["added-dvs"], summary["added-position-deletes"]) == ("1", "1")
    assert "added-data-files" not in summary
    assert "deleted-data-files" not in summary
    assert summary["slotlake.batch"] == batch.name
    assert len(lab.rows("bag")) == 4999


def test_truncated_unchanged_and_back(lab: Lab) -> None:
    lab.init({BAG: [row(v="1", t="big")] * 2})
    lab.sync(update(BAG, row(v="1", t="big"), **row(v="2", t=UNCHANGED)))
    assert [values[:2] for values in lab.rows("bag")] == [("1", "big"), ("2", "big")]
    lab.sync(
        update(BAG, row(v="1", t="big"), **row(v="3", t="big")),
        update(BAG, row(v="3", t="big"), **row(v="1", t="big")),
    )
    assert [values[:2] for values in lab.rows("bag")] == [("1", "big"), ("2", "big")]
    lab.sync(
        insert(BAG, **row(v="5")),
        truncate(BAG),
        insert(BAG, **row(v="6")),
        insert(BAG, **row(v="6")),
        delete(BAG, **row(v="6")),
    )
    assert [values[0] for values in lab.rows("bag")] == ["6"]


KINDS = {
    "d": relation("bag", ["v"], "d", v="int4", t="text", f="float8", d="date", n="numeric"),
    "f": BAG,
    "n": relation("bag", [], "n", v="int4", t="text", f="float8", d="date", n="numeric"),
}  # fmt: skip


@pytest.mark.parametrize("split", [False, True], ids=["one batch", "a batch each"])
def test_the_identity_changes_between_key_bag_and_none(lab: Lab, split: bool) -> None:
    by_key, bag, nothing = KINDS["d"], KINDS["f"], KINDS["n"]
    lab.init({by_key: [row(v="1", t="long"), row(v="2")]})
    steps = [
        [update(by_key, **row(v="1", t=UNCHANGED, n="1.0")), delete(by_key, v="2")],
        [insert(bag, **row(v="1", t="long", n="1.0")), delete(bag, **row(v="1", t="long", n="1.0"))],
        [insert(nothing, **row(v="3")), insert(nothing, **row(v="4"))],
        [update(bag, row(v="4"), **row(v="5")), update(bag, row(v="5"), **row(v="4", t="b"))],
        [update(by_key, {"v": "1"}, **row(v="9", t=UNCHANGED, n="2.0")), delete(by_key, v="3")],
    ]
    for step in steps if split else [list(itertools.chain(*steps))]:
        lab.sync(*step)
    assert lab.rows("bag") == [("4", "b", None, None, None), ("9", "long", None, None, "2.0")]
