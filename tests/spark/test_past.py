"""Many kept points: the tables' metadata stays small, and every kept point can be read as before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import StaticTable

from slotlake.bench.points import publish_by_hand
from slotlake.decoder.errors import LakeError
from slotlake.spark import lake_files
from slotlake.spark.catalog import tags as catalog_tags
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.lake import KeepPoints
from slotlake.spark.maintenance.expiry import Grace
from slotlake.spark.maintenance.integrity import find_damage
from slotlake.spark.maintenance.plan import Care
from slotlake.spark.maintenance.rewrite import maintain_table, tables_to_maintain
from slotlake.spark.names import LakeName
from slotlake.spark.publish import commits_trim, past
from slotlake.spark.publish.past import past_files
from slotlake.spark.publish.points import positions_to_keep, readable_points
from slotlake.spark.publish.rewind import rewind_position
from slotlake.spark.publish.swap import load
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.read.query import query
from slotlake.spark.replay.scratch import prepare_scratch, scratch_of
from slotlake.spark.tables.metadata import Metadata, head
from tests.spark.lake_lab import PIPELINE, Lab, delete, insert, relation, update

BUSY = relation("busy", ["id"], id="int8", v="int4")
IDLE = relation("idle", ["id"], id="int8", v="int4")
_FIELDS = (("id", pa.int64()), ("v", pa.int32()))
_NOW = Care(Grace(unused=0.0, orphan=0.0))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two to four points in a table, four in a past file."""
    for name, value in (("LIVE", 2), ("_LIVE_MAX", 4), ("_SNAPSHOTS_MAX", 6), ("_FILE_POINTS", 4)):
        monkeypatch.setattr(past, name, value)


def _metadata(lab: Lab, table: str) -> Metadata:
    with open_catalog(lab.lake) as catalog:
        return load(catalog.pointers(), LakeName("shop", table)).metadata


def _head(lab: Lab, table: str) -> Metadata:
    main = head(_metadata(lab, table))
    assert main is not None
    return main


def _overwrite(location: str, content: bytes) -> None:
    lake_files.remove([location])
    lake_files.write_new(location, content)


def _live(lab: Lab, batches: int, seen: dict[int, Any]) -> None:
    """Batches, of which each seventh is Spark's, and changes the other table too."""
    for number in range(batches):
        if number % 7 == 6:
            lab.sync(update(BUSY, id="1", v=str(lab.position)), update(IDLE, id="1", v=str(lab.position)))
        else:
            _insert(lab)
        seen[lab.position] = _seen(lab)


def _insert(lab: Lab) -> None:
    """A row for the busy table, without Spark."""
    name, end = LakeName("shop", "busy"), lab.position + 0x100
    fields = [pa.field(n, k, metadata={"PARQUET:field_id": str(i)}) for i, (n, k) in enumerate(_FIELDS, 1)]
    row = pa.Table.from_arrays([pa.array([end]), pa.array([0], pa.int32())], schema=pa.schema(fields))
    path = lab.lake.warehouse_path / "shop" / "busy" / "data" / f"{end}.parquet"
    pq.write_table(row, path)
    lab.position = publish_by_hand(lab.lake, PIPELINE, name, lab.position, end, [path])


def _seen(lab: Lab, at: int | None = None) -> Any:
    return lab.rows("busy", at), lab.rows("idle", at)


def _keep(lab: Lab, count: int) -> None:
    lab.lake = replace(lab.lake, keep=KeepPoints(count), unused_seconds=0.0)


def _kept(lab: Lab) -> list[int]:
    return [point.position for point in readable_points(_metadata(lab, "commits"))]


def _all_as_seen(lab: Lab, seen: dict[int, Any]) -> None:
    assert {at: _seen(lab, at) for at in _kept(lab)} == {at: seen[at] for at in _kept(lab)}


def _maintained(lab: Lab) -> None:
    for name in tables_to_maintain(lab.lake, PIPELINE):
        maintain_table(lambda: lab.session, lab.lake, name, PIPELINE, _NOW)


def test_kept_points_that_are_past(lab: Lab) -> None:
    _keep(lab, 9)
    lab.init({BUSY: [{"id": "1", "v": "0"}], IDLE: [{"id": "1", "v": "0"}]})
    seen = {lab.position: _seen(lab)}
    _live(lab, 14, seen)
    kept = _kept(lab)
    assert kept == sorted(seen)[-9:]
    for table in ("busy", "commits"):
        metadata = _metadata(lab, table)
        assert len(metadata["snapshots"]) <= 6
        assert 2 <= len(catalog_tags.tags(metadata)) <= 4
        assert 1 <= len(past_files(metadata)) <= 4
    _all_as_seen(lab, seen)
    with pytest.raises(LakeError, match="its oldest point is"):
        ReadPoint.at(lab.lake, kept[0] - 1)
    old = kept[1]
    found = query(lab.session, lab.lake, "SELECT v FROM busy WHERE id = 1", old)
    assert (found.position, [row[0] for row in found.rows]) == (old, [dict(seen[old][0])["1"]])
    _other_readers(lab, old, seen)
    prepare_scratch(ReadPoint.at(lab.lake, old), scratch_of(lab.lake, "scratch"), PIPELINE)
    scratch = replace(lab, lake=replace(lab.lake, namespace="scratch"))
    assert _seen(scratch) == seen[old]
    _live(lab, 5, seen)
    _maintained(lab)
    assert _kept(lab) == sorted(seen)[-9:]
    _all_as_seen(lab, seen)
    _keep(lab, 3)
    _live(lab, 1, seen)
    assert _kept(lab) == sorted(seen)[-3:]
    assert [past_files(_metadata(lab, table)) for table in ("busy", "commits")] == [[], []]
    _maintained(lab)
    _all_as_seen(lab, seen)


def _other_readers(lab: Lab, at: int, seen: dict[int, Any]) -> None:
    """As docs/reading.md says: by pin or tag, in the past file that the table's property names."""
    (pins,) = [row["tables"] for row in ReadPoint.latest(lab.lake).commits() if row["position"] == at]
    (file,) = [f for f in past_files(_metadata(lab, "busy")) if f.first <= at <= f.last]
    expected = sorted((int(id_), int(v)) for id_, v in seen[at][0])
    by_pin = StaticTable.from_metadata(file.location).scan(snapshot_id=pins["shop.busy"]).to_arrow()
    assert sorted(map(tuple, by_pin.select(["id", "v"]).to_pandas().itertuples(index=False))) == expected
    reader = lab.session.read.format("iceberg").option("versionAsOf", catalog_tags.tag(at))
    assert sorted((row["id"], row["v"]) for row in reader.load(file.location).collect()) == expected


def test_a_history_that_was_given_up_leaves_no_point_in_the_past(lab: Lab) -> None:
    _keep(lab, 15)
    lab.init({BUSY: [{"id": "1", "v": "0"}], IDLE: [{"id": "1", "v": "0"}]})
    seen = {lab.position: _seen(lab)}
    _live(lab, 12, seen)
    latest = seen[lab.position]
    back = sorted(seen)[3] + 1
    rewind_position(lab.lake, PIPELINE, back)
    lab.position = back
    kept = {at: seen[at] for at in seen if at < back} | {back: latest}
    assert {at: _seen(lab, at) for at in kept} == kept
    _live(lab, 9, kept)
    lab.sync(delete(BUSY, id="1"))
    kept[lab.position] = _seen(lab)
    assert set(_kept(lab)) <= set(kept)
    _all_as_seen(lab, kept)


def test_whoever_lets_go_of_a_snapshot_may_remove_its_list(lab: Lab) -> None:
    """Also after the position went back, at which main has the same files; a damaged list stops nobody."""
    lab.init({BUSY: [{"id": "1", "v": "0"}], IDLE: [{"id": "1", "v": "0"}]})
    lab.sync(insert(BUSY, id="2", v="7"), update(IDLE, id="1", v="8"))
    rows, before = _seen(lab), _head(lab, "busy")["manifest-list"]
    damaged = _head(lab, "idle")["manifest-list"]
    whole = lake_files.read(damaged)
    _overwrite(damaged, whole[:40])
    lab.position -= 1
    assert set(rewind_position(lab.lake, PIPELINE, lab.position)) >= {
        LakeName("shop", "busy"), LakeName("shop", "idle"),
    }  # fmt: skip
    assert lab.position == ReadPoint.latest(lab.lake).position
    _overwrite(damaged, whole)
    lake_files.remove([before])
    assert _seen(lab) == rows
    lab.sync(insert(BUSY, id="3", v="9"), update(IDLE, id="1", v="10"))
    assert _seen(lab) != rows


def test_rows_of_commits_go_once_nobody_can_stand_there(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits_trim, "_WORTH_IT", 5)
    _keep(lab, 6)
    lab.init({BUSY: [{"id": "1", "v": "0"}], IDLE: [{"id": "1", "v": "0"}]})
    rows = ReadPoint.latest(lab.lake).commits()
    for count, left in ((4, 5), (8, 6), (3, 9), (4, 6)):
        for _ in range(count):
            _insert(lab)
            rows.append(ReadPoint.latest(lab.lake).commits()[-1])
        times = ReadPoint.latest(lab.lake).newest_times()
        _maintained(lab)
        found = ReadPoint.latest(lab.lake).commits()
        assert found == rows[-left:]
        assert found[0]["position"] <= _kept(lab)[0]
        assert ReadPoint.latest(lab.lake).newest_times() == times
        assert find_damage(lab.lake, PIPELINE, files=True) == []
        assert ReadPoint.latest(lab.lake).commits(_kept(lab)[-2], pins=False)[-1]["position"] == lab.position
    prepare_scratch(ReadPoint.at(lab.lake, _kept(lab)[1]), scratch_of(lab.lake, "scratch"), PIPELINE)


def test_which_points_are_kept_is_known_from_one_file(lab: Lab) -> None:
    _keep(lab, 15)
    lab.init({BUSY: [{"id": "1", "v": "0"}], IDLE: [{"id": "1", "v": "0"}]})
    seen: dict[int, Any] = {lab.position: None}
    for _ in range(20):
        _insert(lab)
        seen[lab.position] = None
    commits = _metadata(lab, "commits")
    for count in (1, 2, 4, 7, 14, 15):
        found = positions_to_keep(commits, lab.position + 0x100, True, KeepPoints(count))
        assert found[-1] == lab.position + 0x100
        assert found[0] == [*sorted(seen), found[-1]][-count]
    days = KeepPoints(15, days=1e-9)
    assert positions_to_keep(commits, lab.position + 0x100, True, days) == [lab.position + 0x100]
