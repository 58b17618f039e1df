"""Points that are kept can be read whatever is expired; others are refused, by name."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from slotlake.decoder.errors import LakeError
from slotlake.spark.catalog import tags as catalog_tags
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.direct import choice
from slotlake.spark.lake import KeepPoints
from slotlake.spark.names import LakeName
from slotlake.spark.publish import points
from slotlake.spark.publish.swap import load
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.tables.metadata import Metadata
from tests.spark.lake_lab import Lab, delete, insert, relation, truncate, update

ONE = relation("one", ["id"], id="int8", v="int4")
TWO = relation("two", ["id"], id="int8", v="int4")


def _tags(lab: Lab, table: str) -> dict[int, int]:
    return catalog_tags.tags(_metadata(lab, table))


def _metadata(lab: Lab, table: str) -> Metadata:
    with open_catalog(lab.lake) as catalog:
        return load(catalog.pointers(), LakeName("shop", table)).metadata


def _keep(lab: Lab, count: int, days: float = 7.0) -> None:
    lab.lake = replace(lab.lake, keep=KeepPoints(count, days))


def test_a_tag_is_a_points_lsn() -> None:
    assert catalog_tags.tag((0x1A << 32) | 0x2B3C) == "lsn_1A_2B3C"
    refs = {
        "lsn_1A_2B3C": {"snapshot-id": 5, "type": "tag"},
        "lsn_0_1": {"snapshot-id": 6, "type": "branch"},
        "mine": {"snapshot-id": 7, "type": "tag"},
    }
    assert catalog_tags.tags({"refs": refs}) == {(0x1A << 32) | 0x2B3C: 5}


def test_every_kept_point_has_its_tags_when_a_table_is_touched(lab: Lab) -> None:
    lab.init({ONE: [{"id": "1", "v": "0"}], TWO: [{"id": "1", "v": "0"}]})
    before = _metadata(lab, "two")
    for number in range(1, 4):
        lab.sync(update(ONE, id="1", v=str(number)))
    assert _metadata(lab, "two") == before  # a table that no point touches is not written
    assert list(_tags(lab, "one")) == list(_tags(lab, "commits")) == [0x1000, 0x1100, 0x1200, 0x1300]
    assert list(_tags(lab, "two")) == [0x1000]
    lab.sync(update(TWO, id="1", v="4"))
    two = _tags(lab, "two")
    assert list(two) == [0x1000, 0x1100, 0x1200, 0x1300, 0x1400]
    assert len({two[p] for p in (0x1000, 0x1100, 0x1200, 0x1300)}) == 1
    assert two[0x1400] == _metadata(lab, "two")["current-snapshot-id"]
    by_tag = f"SELECT v FROM lake.shop.one VERSION AS OF '{catalog_tags.tag(0x1200)}'"
    assert [row["v"] for row in lab.session.sql(by_tag).collect()] == [2]


def test_a_row_of_commits_pins_every_table(lab: Lab) -> None:
    lab.init({ONE: [{"id": "1", "v": "0"}], TWO: []})
    lab.sync(update(ONE, id="1", v="1"), insert(ONE, id="2", v="1"))
    lab.sync()
    lab.sync(insert(TWO, id="7", v="2"))
    rows = ReadPoint.latest(lab.lake).commits()
    assert [row["changed"] for row in rows] == [
        {"shop.one": 1, "shop.two": 0}, {"shop.one": 2}, {}, {"shop.two": 1},
    ]  # fmt: skip
    for row in rows:
        cut = ReadPoint.at(lab.lake, row["position"])
        assert row["tables"] == {f"shop.{t}": cut.snapshot_id(t) for t in ("one", "two")}


def test_points_beyond_the_count_are_let_go_in_the_same_publish(lab: Lab) -> None:
    _keep(lab, 3)
    lab.init({ONE: [{"id": "1", "v": "0"}], TWO: [{"id": "1", "v": "0"}]})
    for number in range(1, 6):
        lab.sync(update(ONE, id="1", v=str(number)))
        lab.sync()  # a point that changes nothing counts for nothing
    assert list(_tags(lab, "commits")) == list(_tags(lab, "one")) == [0x1500, 0x1700, 0x1900]
    assert list(_tags(lab, "two")) == [0x1000]  # what the kept points need, though older than they are
    assert len(_metadata(lab, "commits")["snapshots"]) == 4
    assert (lab.rows("one", at=0x1500), lab.rows("two", at=0x1500)) == ([("1", "3")], [("1", "0")])
    assert lab.rows("one", at=0x1A00) == [("1", "5")]
    with pytest.raises(LakeError, match="keeps nothing as old as 0/14FF: its oldest point is 0/1500"):
        ReadPoint.at(lab.lake, 0x14FF)
    lab.sync(update(TWO, id="1", v="9"))
    assert list(_tags(lab, "two")) == [0x1700, 0x1900, 0x1B00]


def test_points_beyond_the_age_are_let_go(lab: Lab) -> None:
    lab.init({ONE: [{"id": "1", "v": "0"}]})
    lab.sync(update(ONE, id="1", v="1"))
    _keep(lab, 100, days=1e-7)
    lab.sync(update(ONE, id="1", v="2"))
    assert list(_tags(lab, "one")) == list(_tags(lab, "commits")) == [0x1200]
    with pytest.raises(LakeError, match="its oldest point is 0/1200"):
        ReadPoint.at(lab.lake, 0x1100)


def test_expiry_takes_nothing_that_a_kept_point_needs(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(choice.SWITCH, choice.NEVER)
    _keep(lab, 3)
    lab.init({ONE: [{"id": str(i), "v": "0"} for i in range(50)], TWO: [{"id": "1", "v": "0"}]})
    for number in range(1, 5):  # several statements of the MERGE, so several snapshots, to a batch
        lab.sync(truncate(ONE), insert(ONE, id="1", v=str(number)), insert(ONE, id="2", v=str(number)))
    expected = {at: (lab.rows("one", at), lab.rows("two", at)) for at in (0x1200, 0x1300, 0x1400)}
    expired = 0
    for table in ("one", "two", "commits"):
        count = len(_metadata(lab, table)["snapshots"])
        lab.session.sql(
            f"CALL lake.system.expire_snapshots(table => 'lake.shop.{table}', "
            "older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)"
        ).collect()
        expired += count - len(_metadata(lab, table)["snapshots"])
    assert expired > 3
    for at, rows in expected.items():
        assert (lab.rows("one", at), lab.rows("two", at)) == rows
    lab.sync(delete(ONE, id="1"))
    assert lab.rows("one", at=0x1300) == expected[0x1300][0]


def test_a_compaction_is_part_of_the_table_and_commits_can_be_compacted_too(lab: Lab) -> None:
    lab.init({ONE: [{"id": "1", "v": "0"}]})
    for number in range(1, 4):
        lab.sync(update(ONE, id="1", v=str(number)))
    for table in ("one", "commits"):
        lab.session.sql(
            f"CALL lake.system.rewrite_data_files(table => 'lake.shop.{table}', "
            "options => map('rewrite-all', 'true'))"
        ).collect()
    assert ReadPoint.latest(lab.lake).position == 0x1300
    assert lab.rows("one", at=0x1200) == [("1", "2")]
    lab.sync(update(ONE, id="1", v="4"))
    rows = ReadPoint.latest(lab.lake).commits()
    assert [row["position"] for row in rows] == [0x1000, 0x1100, 0x1200, 0x1300, 0x1400]
    assert set(rows[-1]["tables"]) == {"shop.one"}
    assert lab.rows("one", at=0x1300) == [("1", "3")]


def test_a_moment_is_the_newest_point_committed_by_then(lab: Lab) -> None:
    lab.init({ONE: [{"id": "1", "v": "0"}]})
    with open_catalog(lab.lake) as catalog:
        copied = points.readable_points(load(catalog.pointers(), LakeName("shop", "commits")).metadata)[-1]
    times = [copied.committed + timedelta(seconds=s) for s in (10, 20, 20)]
    for number, moment in enumerate(times, 1):
        batch = lab.batch(update(ONE, id="1", v=str(number)))
        batch.manifest["last_commit_time"] = moment.isoformat()
        lab.apply(batch)
        lab.publish(batch)
    empty = lab.batch()
    empty.manifest["last_commit_time"] = None
    lab.apply(empty)
    lab.publish(empty)

    def seen(seconds: float) -> int:
        with open_catalog(lab.lake) as catalog:
            name = LakeName("shop", "commits")
            moment = copied.committed + timedelta(seconds=seconds)
            return points.choose(load(catalog.pointers(), name).metadata, name, moment)

    now = datetime.now(UTC)
    assert ReadPoint.of(lab.lake, now).position == 0x1000  # the others are, by their clock, not there yet
    assert [seen(s) for s in (0, 9.999, 10, 19, 20, 50)] == [0x1000, 0x1000, 0x1100, 0x1100, 0x1400, 0x1400]
    with pytest.raises(LakeError, match="keeps nothing as old as 2020-01-01"):
        ReadPoint.of(lab.lake, datetime(2020, 1, 1, tzinfo=UTC))
    with pytest.raises(LakeError, match="in the future"):
        ReadPoint.of(lab.lake, now + timedelta(days=1))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("latest", None),
        ("0/1A2B", 0x1A2B),
        (" 1/0 ", 1 << 32),
        ("2024-05-01", datetime(2024, 5, 1, tzinfo=UTC)),
        ("2024-05-01 12:30:00.5", datetime(2024, 5, 1, 12, 30, 0, 500000, tzinfo=UTC)),
        ("2024-05-01T12:30:00+02:00", datetime(2024, 5, 1, 10, 30, tzinfo=UTC)),
        ("2024-05-01 12:30:00Z", datetime(2024, 5, 1, 12, 30, tzinfo=UTC)),
    ],
)
def test_what_at_says(text: str, meant: object) -> None:
    assert points.parse_at(text) == meant


@pytest.mark.parametrize("text", ["", "yesterday", "0/", "0/XYZ", "12", "2024-13-01", "1/2/3", "123456789/0"])
def test_what_at_cannot_say(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        points.parse_at(text)
