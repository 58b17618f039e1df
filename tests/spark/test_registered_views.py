"""Pinned views on a REST server, through batches, maintenance, a rewind, and ended in the middle."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slotlake.decoder.errors import LakeError
from slotlake.decoder.failpoints import happening
from slotlake.spark.catalog import view_spaces
from slotlake.spark.catalog.base import load
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.catalog.rest.views import RestViews
from slotlake.spark.catalog.tags import tags
from slotlake.spark.lake import KeepPoints, LakeSettings
from slotlake.spark.maintenance.expiry import Grace
from slotlake.spark.maintenance.plan import Care
from slotlake.spark.maintenance.removal import drop_tables
from slotlake.spark.maintenance.rewrite import maintain_table
from slotlake.spark.names import LakeName
from slotlake.spark.publish.publication import lake_position
from slotlake.spark.publish.rewind import rewind_position
from slotlake.spark.read.point import ReadPoint
from tests.spark.lake_lab import PIPELINE, Lab, delete, insert, relation, update

ONE = relation("one", ["id"], id="int8", v="int8")
TWO = relation("two", ["id"], id="int8", v="int8")
SALES = relation("sales.three", ["id"], id="int8", v="int8")
LATE = relation("late", ["id"], id="int8", v="int8")
WIDE = relation("one", ["id"], id="int8", v="int8", more="text")
FIRST = {table: [{"id": str(i), "v": "250"} for i in (1, 2)] for table in (ONE, TWO)}
LONG = bool(os.environ.get("SLOTLAKE_TEST_LONG"))


class EndedError(BaseException):
    """In place of a kill."""


@pytest.fixture
def viewed(session: Any, rest: str, tmp_path: Path) -> Lab:
    """A lake with views that keeps four points."""
    own = "v" + "".join(c for c in tmp_path.name.lower() if c.isalnum())
    lake = LakeSettings("lake", rest, f"file://{tmp_path}/warehouse", own, views=True, keep=KeepPoints(4))
    return Lab.on(session, lake)


@pytest.fixture(autouse=True)
def _at_every_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each point gets a namespace that stays."""
    monkeypatch.setattr(view_spaces, "SECONDS_APART", 0.0)


@contextmanager
def _catalog(lab: Lab) -> Iterator[Any]:
    """The catalog that readers see, as pyiceberg has it."""
    with open_catalog(replace(lab.lake, staging="")) as catalog:
        yield catalog.iceberg


def _spaces(lab: Lab) -> list[str]:
    with _catalog(lab) as catalog:
        names = [space[0] for space in catalog.list_namespaces()]
    return sorted(name for name in names if name.startswith(lab.lake.namespace))


def _values(lab: Lab, namespace: str, table: str) -> list[tuple[Any, ...]]:
    with _catalog(lab) as catalog:
        rows = catalog.load_table((namespace, table)).scan().to_arrow().to_pylist()
    return sorted((tuple(value for value in row.values() if value is not None) for row in rows), key=str)


def _shown(lab: Lab, space: str = "__at") -> tuple[list[tuple[Any, ...]], ...]:
    return tuple(_values(lab, f"{lab.lake.namespace}{space}", table) for table in ("one", "two"))


def _at(position: int) -> str:
    return view_spaces.point_namespace("", position)


def _points(lab: Lab) -> dict[str, int | None]:
    """The namespaces of views by the end of their names, and their points."""
    with open_catalog(lab.lake) as catalog:
        spaces = catalog.view_namespaces()
    return {space.name.removeprefix(lab.lake.namespace): space.position for space in spaces}


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_views_show_each_point_and_follow_the_lake(viewed: Lab) -> None:
    lab, own = viewed, viewed.lake.namespace
    lab.init({**FIRST, SALES: [{"id": "7", "v": "7"}]})
    assert _points(lab) == {f"{s}{at}": lab.position for s in ("", "__sales") for at in ("__at", _at(0x1000))}
    expected = {}
    for changes in (
        [update(ONE, id="1", v="1"), update(TWO, id="2", v="2")],
        [insert(TWO, id="9", v="0")],
        [delete(TWO, id="9"), update(WIDE, id="2", v="5", more="x")],
        [update(WIDE, id="1", v="3", more="y")],
    ):
        lab.sync(*changes)
        expected[lab.position] = _values(lab, own, "one"), _values(lab, own, "two")
        assert _shown(lab) == expected[lab.position]
    assert expected[lab.position] == ([(1, 3, "y"), (2, 5, "x")], [(1, 250), (2, 2)])
    _maintained(lab)
    for position, rows in expected.items():
        assert _shown(lab, _at(position)) == rows
        assert _values(lab, f"{own}__sales{_at(position)}", "three") == [(7, 7)]
    points = {_at(position): position for position in expected} | {"__at": lab.position}
    assert _points(lab) == {f"{space}{at}": p for space in ("", "__sales") for at, p in points.items()}
    pinned = {name.table for name in ReadPoint.latest(lab.lake).pinned}
    assert pinned == {"commits", "one", "two", "three"}
    with open_catalog(lab.lake) as catalog:
        assert {name.namespace for name in catalog.names()} == {own, f"{own}__sales"}
    _others_hand(lab)
    _off_on_and_dropped(lab)


def _maintained(lab: Lab) -> None:
    """Nothing that views need goes."""
    for table in ("one", "two"):
        maintain_table(
            lambda: lab.session,
            lab.lake,
            LakeName(lab.lake.namespace, table),
            PIPELINE,
            Care(Grace(0.0, 0.0)),
        )


def _others_hand(lab: Lab) -> None:
    """A view that somebody dropped, or replaced by another table, is right after the table's next change."""
    own = lab.lake.namespace
    with _catalog(lab) as catalog:
        catalog.drop_table((f"{own}__at", "one"))
        two = catalog.load_table((f"{own}__at", "two"))
        catalog.drop_table((f"{own}__at", "two"))
        catalog.create_table((f"{own}__at", "two"), two.schema())
    lab.sync(update(WIDE, id="1", v="4", more="z"), update(TWO, id="1", v="4"))
    assert _shown(lab) == ([(1, 4, "z"), (2, 5, "x")], [(1, 4), (2, 2)])


def _off_on_and_dropped(lab: Lab) -> None:
    own = lab.lake.namespace
    without = replace(lab.lake, views=False)
    with open_catalog(without) as catalog:
        catalog.bring_views()
    assert _spaces(lab) == [own, f"{own}__sales"]
    with open_catalog(lab.lake) as catalog:
        catalog.bring_views()
    assert _points(lab).keys() == {f"{s}{at}" for s in ("", "__sales") for at in ("__at", _at(lab.position))}
    drop_tables(lab.lake, PIPELINE, [LakeName(own, "one")])
    with _catalog(lab) as pyiceberg:
        assert sorted(table for _, table in pyiceberg.list_tables(f"{own}__at")) == ["commits", "two"]
    drop_tables(lab.lake, PIPELINE)
    assert _spaces(lab) == []


def test_ended_between_failed_and_taken_back(viewed: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = viewed
    lab.init(FIRST)
    lab.sync(update(ONE, id="1", v="1"))
    lab.sync(update(TWO, id="1", v="2"))
    before = lab.position
    _joined(lab)
    _ended(lab, monkeypatch)
    with open_catalog(lab.lake) as catalog:
        commits = load(catalog.pointers(), LakeName(lab.lake.namespace, "commits"))
        tagged = list(tags(commits.metadata))
    assert (len(tagged), tagged[-1]) == (4, lab.position)
    assert _points(lab) == {"__at": lab.position} | {_at(position): position for position in tagged}
    rows = _shown(lab)
    rewind_position(lab.lake, PIPELINE, before - 1)
    remaining = {_at(position): position for position in tagged if position < before}
    assert _points(lab) == {"__at": before - 1} | remaining
    assert _shown(lab) == rows, "rows stay, their position is lower"
    assert _shown(lab, _at(0x1100)) == ([(1, 1), (2, 250)], [(1, 250), (2, 250)])
    lab.position = before - 1
    lab.sync(update(ONE, id="2", v="8"))
    assert _shown(lab) == _shown(lab, _at(lab.position)) == ([(1, 3), (2, 8)], rows[1])


def _joined(lab: Lab) -> None:
    """A table that joins at a point is in that point's views, and has its tag."""
    lab.init({LATE: [{"id": "1", "v": "1"}]})
    for space in ("__at", _at(lab.position)):
        assert _values(lab, f"{lab.lake.namespace}{space}", "late") == [(1, 1)]
    with open_catalog(lab.lake) as catalog:
        late = load(catalog.pointers(), LakeName(lab.lake.namespace, "late"))
    assert list(tags(late.metadata)) == [lab.position]
    assert lab.rows("late", lab.position) == [("1", "1")]


def _ended(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ended while views are moved: the tables are published, and the next sync makes what is missing."""
    batch = lab.batch(update(ONE, id="1", v="3"))
    lab.apply(batch)
    with happening("publish.between_views", _end), pytest.raises(EndedError):
        lab.publish(batch)
    lab.position = lake_position(lab.lake) or 0
    assert _at(lab.position) not in _points(lab)
    with open_catalog(lab.lake) as catalog:  # another one, ended while one that stays is filled
        places: Any = vars(catalog)["_places"]
        places.make_space(f"{lab.lake.namespace}{_at(lab.position)}", {
            view_spaces.OWNER: lab.lake.namespace, view_spaces.MADE: "1.0"
        })  # fmt: skip
        assert _points(lab)[_at(lab.position)] is None
        catalog.bring_views()
    assert _shown(lab) == _shown(lab, _at(lab.position)) == ([(1, 3), (2, 250)], [(1, 2), (2, 250)])
    _failed(lab, monkeypatch)


def _failed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the server refuses of views stops no publication; the next sync says it."""
    shown = _shown(lab)
    with monkeypatch.context() as patched:
        patched.setattr(RestViews, "show", _refuse)
        with open_catalog(lab.lake) as catalog:
            batch = lab.batch(update(TWO, id="1", v="7"), size=0x50)
            lab.apply(batch)
            lab.publish(batch)
            assert lake_position(lab.lake) == lab.position
            assert _shown(lab) == shown
            with pytest.raises(LakeError, match="refused"):
                catalog.bring_views()
    with open_catalog(lab.lake) as catalog:
        catalog.bring_views()
    assert _shown(lab) == _shown(lab, _at(lab.position)) == (shown[0], [(1, 7), (2, 250)])


def _end(*_: object) -> None:
    raise EndedError


def _refuse(*_: object, **__: object) -> None:
    raise LakeError("refused", where="", way_out="")


def test_a_lake_that_is_not_there_gets_no_staging_catalog_by_looking(rest: str, tmp_path: Path) -> None:
    staging = tmp_path / "state" / "staging.db"
    lake = LakeSettings(
        "lake", rest, f"file://{tmp_path}/warehouse", "nobody", staging=f"sqlite:///{staging}", views=True
    )
    with open_catalog(lake) as catalog:
        catalog.require_room_for_views()
        assert LakeName("nobody", "commits") not in catalog.pointers()
    assert not staging.parent.exists()
