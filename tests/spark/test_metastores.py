"""Catalogs that swap one table at a time: a Hive Metastore, and AWS Glue as moto plays it (long form)."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from slotlake.decoder.changelog.batches import BatchRelation
from slotlake.decoder.errors import LakeError
from slotlake.decoder.failpoints import happening
from slotlake.spark.catalog.base import PointerMovedError, load
from slotlake.spark.catalog.metastore.catalog import MetastorePointers, PartlyMovedError
from slotlake.spark.catalog.metastore.entries import type_name
from slotlake.spark.catalog.open import check_lake, open_catalog
from slotlake.spark.catalog.probe import probe_catalog
from slotlake.spark.copy.initial import InitialCopy
from slotlake.spark.copy.owner import is_initialised
from slotlake.spark.lake import KeepPoints, LakeSettings
from slotlake.spark.maintenance.expiry import Grace
from slotlake.spark.maintenance.plan import Care
from slotlake.spark.maintenance.removal import drop_tables
from slotlake.spark.maintenance.rewrite import maintain_table, tables_to_maintain
from slotlake.spark.names import LakeName
from slotlake.spark.publish.swap import lake_position
from slotlake.spark.read.query import query
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.schema import TableSchema
from tests.catalogs import GLUE_URI
from tests.spark.lake_lab import PIPELINE, Lab, delete, insert, relation, update, write_rows

ONE = relation("one", ["id"], id="int8", n="numeric", Mixed="text")
TWO = relation("odd schema.two", ["id"], id="int8", v="int4")
LATE = relation("late", ["id"], id="int8", v="int4")
CAPITAL = relation("Late", ["id"], id="int8", v="int4")
FIRST: dict[BatchRelation, list[dict[str, Any]]] = {
    ONE: [{"id": "1", "n": "1.5", "Mixed": "a"}, {"id": "3", "n": "3", "Mixed": None}],
    TWO: [{"id": "1", "v": "0"}],
}
LONG = bool(os.environ.get("SLOTLAKE_TEST_LONG"))


class Killed(BaseException):
    """Between two tables."""


@pytest.fixture(params=["hive", "glue"] if LONG else ["hive"])
def lab(request: pytest.FixtureRequest, session: Any, tmp_path: Path) -> Lab:
    """A lake on each of these catalogs."""
    make: Callable[[], LakeSettings] = {
        "hive": lambda: _lake(str(request.getfixturevalue("hive")), tmp_path),
        "glue": lambda: replace(
            _lake(GLUE_URI, tmp_path), glue={"endpoint": str(request.getfixturevalue("glue"))}
        ),
    }[request.param]
    return Lab.on(session, make())


def _lake(uri: str, folder: Path) -> LakeSettings:
    namespace = "s" + "".join(c for c in folder.name if c.isalnum()).lower()
    return LakeSettings(
        "lake", uri, f"file://{folder}/warehouse", namespace, KeepPoints(3), publish="per_table"
    )


def test_a_life(lab: Lab) -> None:
    """With a table of somebody else in the namespace, races, a kill between two tables, and the end."""
    probe_catalog(lab.lake)
    others = _others_table(lab)
    lab.init(FIRST, modes={"public.one": ["history"]})
    lab.sync(update(ONE, id="1", n="2.5", Mixed="b"), update(TWO, id="1", v="1"))
    lab.sync(insert(ONE, id="2", n="NaN", Mixed="c"), delete(ONE, id="3"))
    assert lab.rows("one") == [("1", "2.5", "b"), ("2", "NaN", "c")]
    assert lab.rows("one", 0x1000) == [("1", "1.5", "a"), ("3", "3", None)]
    assert lab.rows('"odd schema".two', 0x1000) == [("1", "0")]
    _no_capital(lab)
    _joins_after_a_kill(lab)
    _killed_between_tables(lab)
    _a_lost_race(lab)
    joined = "SELECT max(one.Mixed) FROM one JOIN late USING (id)"
    assert query(lab.session, lab.lake, joined, lab.position - 0x100).rows == [("b",)]
    assert query(lab.session, lab.lake, joined).rows == [("k",)]
    _maintained(lab)
    assert drop_tables(lab.lake, PIPELINE)
    assert not is_initialised(lab.lake, PIPELINE)
    with open_catalog(lab.lake) as catalog:
        assert catalog.names() == {others}
        assert load(catalog.pointers(), others).metadata["location"].endswith("/elsewhere/others")


def _others_table(lab: Lab) -> LakeName:
    name = LakeName(lab.lake.namespace, "others")
    with open_catalog(lab.lake) as catalog:
        catalog.make_namespace(name.namespace)
        catalog.make_namespace(name.namespace)
        catalog.iceberg.create_table(
            (name.namespace, name.table),
            Schema(NestedField(1, "x", LongType())),
            location=f"{lab.lake.root}/elsewhere/others",
        )
        assert catalog.pointer(LakeName(name.namespace, "Others")) is None
        assert catalog.pointer(LakeName("nosuch", "others")) is None
    return name


def _no_capital(lab: Lab) -> None:
    """`Late` would be the table `late` there: it is refused before anything is made."""
    with open_catalog(lab.lake) as catalog:
        before = set(catalog.names())
    with pytest.raises(LakeError, match="letters a to z") as refused:
        InitialCopy.begin(lab.session, lab.lake, PIPELINE, [TableSchema.of(CAPITAL)])
    assert refused.value.table == ("public", "Late")
    with open_catalog(lab.lake) as catalog:
        assert set(catalog.names()) == before


def _joins_after_a_kill(lab: Lab) -> None:
    """The first attempt has published the table, and `commits` knows nothing of it."""
    with pytest.raises(Killed), happening("publish.between_tables", _die):
        _join(lab)
    assert "late" not in _pinned(lab)
    _join(lab)
    assert lab.rows("late") == [("1", "7")]


def _join(lab: Lab) -> None:
    schema = TableSchema.of(LATE)
    with InitialCopy.begin(lab.session, lab.lake, PIPELINE, [schema]) as copy:
        write_rows(copy.target(schema), LATE, [{"id": "1", "v": "7"}])
        copy.register(schema)
        copy.publish(lab.point("copy", "late"))


def _pinned(lab: Lab) -> set[str]:
    from slotlake.spark.publish.commits import commits_name, pins_of

    with open_catalog(lab.lake) as catalog:
        return {name.table for name in pins_of(load(catalog.pointers(), commits_name(lab.lake.namespace)))}


def _die() -> None:
    raise Killed


def _killed_between_tables(lab: Lab) -> None:
    """One table is at the new point, `commits` is not: readers see the old point, the next run goes on."""
    batch = lab.batch(update(ONE, id="1", n="9", Mixed="k"), update(TWO, id="1", v="9"))
    lab.apply(batch)
    with pytest.raises(Killed), happening("publish.between_tables", _die):
        lab.publish(batch)
    assert (lake_position(lab.lake), lab.rows("one")[0]) == (lab.position, ("1", "2.5", "b"))
    assert lab.rows('"odd schema".two') == [("1", "1")]
    lab.apply(batch)
    lab.publish(batch)
    assert (lab.rows("one")[0], lab.rows('"odd schema".two')) == (("1", "9", "k"), [("1", "9")])


def _a_lost_race(lab: Lab) -> None:
    """What somebody else has changed is refused: all of it where nothing was changed yet, else named."""
    one, two = LakeName(lab.lake.namespace, "one"), LakeName(f"{lab.lake.namespace}__odd_x20_schema", "two")
    with open_catalog(lab.lake) as catalog, ExitStack() as stack:
        assert isinstance(catalog, MetastorePointers)
        moves = [_touched(catalog, name, "mine") for name in (one, two)]
        other = stack.enter_context(open_catalog(lab.lake))
        other.move([_touched(other, two, "theirs")])
        with pytest.raises(PointerMovedError):
            catalog.move(moves)
        catalog.forget(moves)
        assert [_mark(lab, name) for name in (one, two)] == [None, "theirs"]
        # After the check: only the server can still refuse.
        moves = [_touched(catalog, name, "mine") for name in (one, two)]
        entries = catalog.entries([one, two])
        stack.enter_context(pytest.MonkeyPatch.context()).setattr(catalog, "_unchanged", lambda _: entries)
        other.move([_touched(other, two, "again")])
        with pytest.raises(PartlyMovedError, match="1 of 2 tables"):
            catalog.move(moves)
        assert [_mark(lab, name) for name in (one, two)] == ["mine", "again"]


def _touched(catalog: Any, name: LakeName, mark: str) -> Any:
    table = load(catalog.pointers(), name)
    return catalog.prepared(table, catalog_metadata.with_properties(table.metadata, {"mark": mark}))


def _mark(lab: Lab, name: LakeName) -> str | None:
    with open_catalog(lab.lake) as catalog:
        assert isinstance(catalog, MetastorePointers)
        entry = catalog.entries([name])[name]
        mark: str | None = load({name: entry.location}, name).metadata["properties"].get("mark")
        return mark


def _maintained(lab: Lab) -> None:
    for number in range(3):
        lab.sync(update(ONE, id="1", n="0", Mixed=str(number)))
    rows = {at: lab.rows("one", at) for at in range(lab.position - 0x200, lab.position + 1, 0x100)}
    now = Care(Grace(unused=0.0, orphan=3600.0))
    done = [
        maintain_table(lambda: lab.session, lab.lake, name, PIPELINE, now)
        for name in tables_to_maintain(lab.lake, PIPELINE)
    ]
    assert any(table.expired_snapshots for table in done)
    assert {at: lab.rows("one", at) for at in rows} == rows
    lab.sync(insert(ONE, id="7", n="7", Mixed="z"))
    assert ("7", "7", "z") in lab.rows("one")


def test_another_publication_is_refused(tmp_path: Path) -> None:
    for uri in ("thrift://127.0.0.1:1", GLUE_URI) if LONG else ("thrift://127.0.0.1:1",):
        lake = replace(_lake(uri, tmp_path), publish="atomic")
        with pytest.raises(LakeError, match="several tables at once"), open_catalog(lake):
            pass


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="cannot be reached") as refused:
        check_lake(_lake("thrift://127.0.0.1:1", tmp_path))
    assert refused.value.retryable


def test_types_by_hives_names() -> None:
    struct = {"type": "struct", "fields": [{"name": "a", "type": "decimal(9, 2)"}]}
    for given, name in {
        "long": "bigint",
        "timestamptz": "timestamp",
        "fixed[16]": "binary",
        "decimal(38, 2)": "decimal(38,2)",
    }.items():
        assert type_name(given) == name
    assert type_name({"type": "list", "element": struct}) == "array<struct<a:decimal(9,2)>>"
    assert type_name({"type": "map", "key": "string", "value": "uuid"}) == "map<string,string>"
