"""Readers see all of a batch or nothing, and nothing is ever published twice."""

from __future__ import annotations

import json
import sqlite3
import threading
from pathlib import Path

import pytest

from slotlake.decoder.errors import ApplyError, LakeError
from slotlake.spark.lake import LakeSettings
from slotlake.spark.publish.publication import lake_position, pending, publish_batch
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.tables.metadata import is_staged
from tests.spark.lake_lab import PIPELINE, HandBatch, Lab, insert, relation, truncate, update

ONE = relation("one", ["id"], id="int8", v="int4")
TWO = relation("two", ["id"], id="int8", v="int4")
LOG = relation("log", [], v="int4")


def test_nothing_of_a_staged_batch_is_seen(lab: Lab) -> None:
    lab.init({ONE: [{"id": "1", "v": "1"}], LOG: []})
    batch = lab.batch(update(ONE, id="1", v="2"), insert(LOG, v="2"))
    lab.apply(batch)
    assert lab.rows("one") == [("1", "1")]
    assert lab.rows("log") == []
    assert pending(lab.lake, batch, PIPELINE)
    published = lab.publish(batch)
    assert not published.already
    assert set(published.snapshots) == {"shop.one", "shop.log"}
    assert not pending(lab.lake, batch, PIPELINE)
    assert (lab.rows("one"), lab.rows("log")) == ([("1", "2")], [("2",)])


def test_publishing_and_applying_again_change_nothing(lab: Lab) -> None:
    lab.init({ONE: [], LOG: []})
    batch = lab.batch(insert(ONE, id="1", v="1"), insert(LOG, v="1"))
    lab.apply(batch)
    lab.apply(batch)
    lab.publish(batch)
    before = _pointers(lab.lake)
    assert lab.publish(batch).already
    assert lab.apply(batch).already_published
    assert _pointers(lab.lake) == before
    assert (lab.rows("one"), lab.rows("log")) == ([("1", "1")], [("1",)])


def test_a_batch_of_the_same_name_and_other_content_is_refused(lab: Lab) -> None:
    lab.init({ONE: []})
    batch = lab.sync(insert(ONE, id="1", v="1"))
    other = HandBatch(batch.start_lsn, batch.end_lsn, [insert(ONE, id="2", v="2")], digest="other")
    with pytest.raises(ApplyError, match="another batch of the same name"):
        lab.apply(other)


def test_a_batch_that_leaves_a_gap_is_refused(lab: Lab) -> None:
    lab.init({ONE: []})
    later = HandBatch(lab.position + 0x10, lab.position + 0x20, [insert(ONE, id="1", v="1")])
    with pytest.raises(ApplyError, match="begins at 0/1010, but the lake stands at 0/1000"):
        lab.apply(later)
    with pytest.raises(ApplyError, match="the lake stands at"):
        publish_batch(lab.lake, later, PIPELINE)


def test_a_stale_stage_is_refused(lab: Lab) -> None:
    lab.init({ONE: [], TWO: []})
    first = HandBatch(lab.position, lab.position + 0x10, [insert(ONE, id="1", v="1")])
    second = HandBatch(
        lab.position, lab.position + 0x20, [insert(ONE, id="1", v="1"), insert(TWO, id="1", v="1")]
    )
    lab.apply(first)
    with pytest.raises(LakeError, match=r"is not staged, but .* is"):
        publish_batch(lab.lake, second, PIPELINE)
    assert lake_position(lab.lake) == lab.position
    lab.apply(second)
    lab.publish(second)
    assert lab.rows("two") == [("1", "1")]


def test_a_statement_that_commits_late_is_noticed(lab: Lab) -> None:
    """As when a killed client's INSERT goes on running in a Spark server."""
    lab.init({LOG: [{"v": "0"}]})
    batch = lab.batch(truncate(LOG), insert(LOG, v="1"))
    lab.apply(batch)
    for key, value in {"slotlake.batch": batch.name, "slotlake.digest": batch.digest}.items():
        lab.session.conf.set(f"spark.sql.iceberg.snapshot-property.{key}", value)
    lab.session.conf.set("spark.sql.iceberg.snapshot-property.slotlake.lsn", "0/1100")
    lab.session.conf.set("spark.sql.iceberg.snapshot-property.slotlake.steps", "2")
    lab.session.conf.set("spark.sql.iceberg.snapshot-property.slotlake.run", "the killed one's")
    lab.session.sql("INSERT INTO lake.shop.log.branch_stage VALUES (1)")
    with pytest.raises(LakeError, match="another run wrote to what is staged"):
        publish_batch(lab.lake, batch, PIPELINE)
    for key in ("batch", "digest", "lsn", "steps", "run"):
        lab.session.conf.unset(f"spark.sql.iceberg.snapshot-property.slotlake.{key}")
    lab.apply(batch)
    lab.publish(batch)
    assert lab.rows("log") == [("1",)]


def test_a_table_moved_by_someone_else_stops_the_swap(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.init({ONE: [], TWO: []})
    batch = lab.batch(insert(ONE, id="1", v="1"), insert(TWO, id="1", v="1"))
    lab.apply(batch)
    before = _pointers(lab.lake)

    def meddle(name: str) -> None:
        if name == "publish.before_swap":
            lab.session.sql("ALTER TABLE lake.shop.two SET TBLPROPERTIES ('someone' = 'else')")

    monkeypatch.setattr("slotlake.spark.publish.swap.reach", meddle)
    with pytest.raises(LakeError, match="changed by someone else") as caught:
        publish_batch(lab.lake, batch, PIPELINE)
    assert caught.value.retryable
    assert _pointers(lab.lake)["one"] == before["one"]
    assert lab.rows("one") == []
    monkeypatch.undo()
    lab.publish(batch)
    assert lab.rows("two") == [("1", "1")]


def test_a_reader_never_sees_two_positions(lab: Lab) -> None:
    lab.init({ONE: [{"id": "1", "v": "0"}], TWO: [{"id": "1", "v": "0"}]})
    seen: list[tuple[int, str | None, str | None]] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            cut = ReadPoint.latest(lab.lake)
            seen.append((cut.position, next(cut.rows("one"))[1], next(cut.rows("two"))[1]))

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(1, 6):
        lab.sync(update(ONE, id="1", v=str(number)), update(TWO, id="1", v=str(number)))
    stop.set()
    reader.join()
    assert len(seen) > 20
    assert all(one == two == str((position - 0x1000) // 0x100) for position, one, two in seen)
    assert len({position for position, _, _ in seen}) >= 4


def test_commits_tells_every_point(lab: Lab) -> None:
    lab.init({ONE: [], TWO: []})
    batch = lab.sync(insert(ONE, id="1", v="1"))
    empty = lab.sync()
    points = ReadPoint.latest(lab.lake).commits()
    assert [(p["kind"], p["position"]) for p in points] == [
        ("copy", 0x1000),
        ("batch", 0x1100),
        ("batch", 0x1200),
    ]
    assert [p["batch"] for p in points][1:] == [batch.name, empty.name]
    assert set(points[0]["tables"]) == {"shop.one", "shop.two"}
    cut = ReadPoint.at(lab.lake, 0x1100)
    assert points[1]["tables"] == {f"shop.{table}": cut.snapshot_id(table) for table in ("one", "two")}
    assert points[1]["changed"] == {"shop.one": 1}
    assert points[1]["commit_time"].isoformat() == "2024-05-01T12:00:00+00:00"
    assert (points[2]["tables"], points[2]["changed"]) == (points[1]["tables"], {})


def test_spark_and_pyiceberg_go_on_from_a_swapped_table(lab: Lab) -> None:
    lab.init({ONE: [{"id": "1", "v": "1"}]})
    for number in range(3):
        lab.sync(insert(ONE, id=str(10 + number), v="1"), update(ONE, id="1", v=str(number)))
    lab.session.sql(
        "CALL lake.system.rewrite_data_files(table => 'lake.shop.one', options => map('rewrite-all', 'true'))"
    )
    assert lab.session.sql("SELECT count(*) FROM lake.shop.one").collect()[0][0] == 4
    location = _pointers(lab.lake)["one"]
    metadata = json.loads(Path(location.removeprefix("file:")).read_text())
    assert metadata["refs"]["stage"] != metadata["refs"]["main"]  # it stays at what was published last
    assert not is_staged(metadata)
    assert [e["snapshot-id"] for e in metadata["snapshot-log"]][-1] == metadata["current-snapshot-id"]
    lab.sync(update(ONE, id="1", v="9"))
    assert ("1", "9") in lab.rows("one")


def _pointers(lake: LakeSettings) -> dict[str, str]:
    with sqlite3.connect(lake.uri.removeprefix("sqlite:///")) as connection:
        return dict(connection.execute("SELECT table_name, metadata_location FROM iceberg_tables"))
