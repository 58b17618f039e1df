"""A batch larger than the memory for it is applied in slices; the lake ends as with it in one piece."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slotlake.decoder.errors import ApplyError, LakeError
from slotlake.spark.catalog.base import load_one
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.direct import change_log, choice, history
from slotlake.spark.direct import stage as direct_stage
from slotlake.spark.lake import LakeSettings
from slotlake.spark.merge import slices as merge_slices
from slotlake.spark.names import LakeName
from slotlake.spark.publish.commits import LSN
from slotlake.spark.tables.metadata import ancestry, summary
from tests.spark.lake_lab import UNCHANGED, Change, Lab, delete, insert, relation, truncate, update
from tests.storage import lake_in

KEYED = relation("keyed", ["id"], id="int4", v="text", n="numeric")
WIDER = relation("keyed", ["id"], id="int4", v="text", n="numeric", w="int4")
BAG = relation("bag", [], "f", v="text")
PLAIN = relation("plain", [], "n", v="text")
TABLES = {KEYED: "keyed", BAG: "bag", PLAIN: "plain"}
MODES = {"public.keyed": ["append", "history"], "public.bag": ["history"], "public.plain": ["history"]}
FIRST = {
    KEYED: [{"id": str(i), "v": f"lake{i}", "n": f"{i}.50"} for i in range(6)],
    BAG: [{"v": "a"}, {"v": "a"}, {"v": "b"}],
    PLAIN: [{"v": "x"}],
}
FEW_CHANGES = 3000
LONG = bool(os.environ.get("SLOTLAKE_TEST_LONG"))


@pytest.fixture
def labs(session: Any, tmp_path: Path, lake: LakeSettings) -> tuple[Lab, Lab]:
    """Two lakes with the same content: one takes a batch in one piece, one in slices of a few changes."""
    uri, warehouse = f"sqlite:///{tmp_path}/slices.db", f"file://{tmp_path}/slices"
    other = lake_in(tmp_path / "other", LakeSettings("lake", uri, warehouse, "shop"))
    whole, sliced = Lab.on(session, lake), Lab.on(session, replace(other, slice_bytes=FEW_CHANGES))
    for lab in (whole, sliced):
        lab.init(FIRST, modes=MODES)
    return whole, sliced


def _changes(seed: int, keys: set[int], bag: list[str], steps: int) -> Iterator[Change]:
    """What a source with these rows may send."""
    chance, shape = random.Random(seed), KEYED
    for number in range(steps):
        if number == steps // 2 and seed > 1:
            shape = WIDER
            yield truncate(PLAIN)
        if number == steps // 3 and seed == 3:
            yield truncate(KEYED)
            keys.clear()
        more = {} if shape is KEYED else {"w": str(number)}
        free = min(set(range(20)) - keys)
        kind = chance.choice("IUUMMDBCP")
        at = chance.choice(sorted(keys)) if keys else free
        if kind == "I" or (kind in "UMD" and not keys):
            keys.add(free)
            yield insert(shape, id=str(free), v=f"v{number}", n="NaN" if number % 5 == 0 else "1", **more)
        elif kind == "U":
            yield update(shape, id=str(at), v=UNCHANGED, n=str(number), **more)
        elif kind == "M":
            keys.symmetric_difference_update({at, free})
            yield update(shape, {"id": str(at)}, id=str(free), v=UNCHANGED, n=UNCHANGED, **more)
        elif kind == "D":
            keys.discard(at)
            yield delete(shape, id=str(at))
        elif kind == "B":
            bag.append(chance.choice("abc"))
            yield insert(BAG, v=bag[-1])
        elif kind == "C" and bag:
            old, bag[0] = bag[0], chance.choice("abc")
            yield update(BAG, {"v": old}, v=bag[0])
            bag.sort()
        else:
            yield insert(PLAIN, v=str(number))


def _history(lab: Lab, table: str) -> Sequence[Any]:
    columns = (
        "id, v, n, valid_from_lsn, valid_to_lsn" if table == "keyed" else "v, valid_from_lsn, valid_to_lsn"
    )
    rows = lab.session.sql(f"SELECT {columns} FROM lake.shop.{table}__history").collect()
    return sorted((tuple(row) for row in rows), key=repr)


def _as_of(lab: Lab, table: str, position: int) -> Sequence[Any]:
    holds = f"valid_from_lsn <= {position} AND (valid_to_lsn IS NULL OR valid_to_lsn > {position})"
    rows = lab.session.sql(f"SELECT v FROM lake.shop.{table}__history WHERE {holds}").collect()
    return sorted(tuple(row) for row in rows)


def _log(lab: Lab) -> Sequence[Any]:
    rows = lab.session.sql("SELECT lsn, seq, op, new, old, unchanged FROM lake.shop.keyed__changes").collect()
    return sorted(repr(row.asDict(recursive=True)) for row in rows if row["seq"] > 0)


def _metadata(lab: Lab, table: str) -> dict[str, Any]:
    with open_catalog(lab.lake) as catalog:
        return load_one(catalog, LakeName("shop", table)).metadata


def test_a_batch_in_slices_gives_what_it_gives_in_one_piece(labs: tuple[Lab, Lab]) -> None:
    keys, bag, positions = set(range(6)), ["a", "a", "b"], []
    for seed in (1, 2, 3) if LONG else (3,):
        changes = list(_changes(seed, keys, bag, 24 if LONG else 18))
        for lab in labs:
            batch = lab.sync(*changes)
        positions.append(batch.end_lsn)
    whole, sliced = labs
    for table in TABLES.values():
        assert sliced.rows(table) == whole.rows(table)
    assert _history(sliced, "keyed") == _history(whole, "keyed")
    assert _log(sliced) == _log(whole)
    for position in positions:
        for table in ("bag", "plain"):
            assert _as_of(sliced, table, position) == _as_of(whole, table, position)
    assert _points(sliced) == _points(whole) == positions[::-1]


def _points(lab: Lab) -> list[int]:
    """The points of the table, newest first; between them there are snapshots that are none."""
    chain = [summary(snapshot) for snapshot in ancestry(_metadata(lab, "keyed"))]
    points = [int(each[LSN].replace("/", ""), 16) for each in chain if LSN in each][:-1]
    assert (len(chain) > 3 * len(points)) == (lab.lake.slice_bytes == FEW_CHANGES)
    assert len(_metadata(lab, "keyed")["snapshot-log"]) == len(points) + 1
    return points


@pytest.mark.parametrize("place", [direct_stage, change_log, history, merge_slices])
def test_killed_between_slices(labs: tuple[Lab, Lab], place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of the mirror or of a derived table, without Spark and with it."""
    _, lab = labs
    monkeypatch.setenv(choice.SWITCH, choice.NEVER if place is merge_slices else choice.ALWAYS)
    batch = lab.batch(*(insert(KEYED, id=str(i), v="new", n="1") for i in range(10, 30)))
    before = lab.rows("keyed")
    reached: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(place, "reach", lambda name: _third(reached, name))
        with pytest.raises(KeyboardInterrupt):
            lab.apply(batch)
    with pytest.raises(LakeError, match="is not staged"):
        lab.publish(batch)
    assert lab.rows("keyed") == before
    lab.apply(batch)
    lab.publish(batch)
    assert len(lab.rows("keyed")) == 26


def _third(reached: list[str], name: str) -> None:
    reached.append(name)
    if reached.count("apply.between_slices") == 3:
        raise KeyboardInterrupt


CONFLICTING = [
    update(KEYED, id="90", v="whole", n="1"),
    *(insert(KEYED, id=str(i), v="again", n="1") for i in range(4, 9)),
    delete(KEYED, id="91"),
    *(update(KEYED, id=str(i), v=UNCHANGED, n="2") for i in range(10)),
    update(KEYED, {"id": "0"}, id="1", v=UNCHANGED, n="3"),
    insert(KEYED, id="7", v="twice", n="1"),
]


@pytest.mark.parametrize("choice", ["apply", "skip"] if LONG else ["apply"])
def test_conflicts_are_counted_over_slices(labs: tuple[Lab, Lab], choice: Any) -> None:
    whole, sliced = labs
    found = [lab.conflicts(*CONFLICTING, choice=choice) for lab in labs]
    assert found[0] == found[1]
    assert set(found[0]) == {"insert_exists", "update_exists", "update_missing", "delete_missing"}
    assert sliced.rows("keyed") == whole.rows("keyed")
    assert _history(sliced, "keyed") == _history(whole, "keyed")


def test_a_conflict_in_a_later_slice_refuses_the_batch(labs: tuple[Lab, Lab]) -> None:
    _, lab = labs
    batch = lab.batch(*(insert(KEYED, id=str(i), v="new", n="1") for i in (10, 11, 12, 13, 14, 15, 3)))
    with pytest.raises(ApplyError, match="insert_exists 1"):
        lab.apply(batch, "fail")
    metadata = _metadata(lab, "keyed")
    assert metadata["refs"]["stage"]["snapshot-id"] == metadata["refs"]["main"]["snapshot-id"]
