"""What depends on where Spark is: how rows come to it, and sizes that follow the table and its heap."""

from __future__ import annotations

import socket
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from slotlake.decoder.errors import SetupError
from slotlake.spark.merge import rows as spark_rows
from slotlake.spark.merge import sizes
from slotlake.spark.merge.rows import frame_by_session, read_files, view_of_rows
from slotlake.spark.merge.sizes import broadcast_bytes_max, cores_of, partitions_of, shuffle_partitions
from slotlake.spark.properties import SHUFFLE_PARTITIONS, SparkChoices, require_answering, this_machine
from slotlake.spark.session import known_of, open_session, shares_files, sibling
from tests.cluster import CONF

_ROWS = pa.table(
    {
        "action": pa.array([1, 2, None], pa.int8()),
        "n0": pa.array([Decimal("1.50"), None, Decimal("-2.00")], pa.decimal128(10, 2)),
        "n1": pa.array([datetime(2020, 1, 1, tzinfo=UTC), None, datetime(1900, 1, 1, tzinfo=UTC)]).cast(
            pa.timestamp("us", "UTC")
        ),
        "n2": pa.array([b"\x00", b"", None]),
        "n3": pa.array([["a", None], [], None], pa.list_(pa.string())),
        "u0": pa.array([True, False, None]),
    }
)
_SCHEMA = "action tinyint, n0 decimal(10,2), n1 timestamp, n2 binary, n3 array<string>, u0 boolean"


def _metadata(size: int) -> dict[str, Any]:
    return {
        "current-snapshot-id": 1,
        "refs": {"main": {"snapshot-id": 1, "type": "branch"}},
        "snapshots": [{"snapshot-id": 1, "summary": {"total-files-size": str(size)}}],
    }


def test_rows_are_the_same_by_a_file_and_by_the_session(
    session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    for shares in (True, False):
        monkeypatch.setattr(spark_rows, "shares_files", lambda _, shares=shares: shares)
        folder = tmp_path / str(shares)
        with view_of_rows(session, _ROWS, _SCHEMA, folder, "folded") as view:
            frame = session.sql(f"SELECT * FROM {view}")
            read.append((frame.schema.simpleString(), sorted(map(str, frame.collect()))))
        assert any(folder.glob("*")) == shares
    assert read[0] == read[1]


@pytest.mark.server
@pytest.mark.parametrize("kind", ["driver", "connect"])
def test_empty_chunks_lose_no_rows(kind: str, request: pytest.FixtureRequest) -> None:
    """Spark by itself stops at the first empty batch."""
    if kind == "driver":
        own = request.getfixturevalue("session")
    else:
        own = open_session(remote=request.getfixturevalue("connect"))
        assert shares_files(own)  # it was started on this machine
    few, none = pa.array([1, 2], pa.int32()), pa.array([], pa.int32())
    for chunks in ([none, few], [few, none, few], [none, none], [none, few, none, none, few]):
        rows = pa.table({"n0": pa.chunked_array(chunks), "n1": pa.chunked_array(chunks)})
        frame = frame_by_session(own, rows, "n0 int, n1 int")
        assert frame.count() == rows.num_rows


@pytest.mark.server
@pytest.mark.parametrize("kind", ["driver", "connect"])
@pytest.mark.parametrize(("kilobytes", "tasks"), [(9, 2), (33, 4)])
def test_rows_travel_in_tasks_that_keep_all_cores_busy(
    kind: str,
    kilobytes: int,
    tasks: int,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two cores: no task is large, no core is idle at the end, and an INSERT writes few files."""
    if kind == "driver":
        own = request.getfixturevalue("session")
    else:
        own = open_session(remote=request.getfixturevalue("connect"))
        # It would see that all rows are known, and number their parts at once.
        rule = "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation"
        own.conf.set("spark.sql.optimizer.excludedRules", rule)
    monkeypatch.setattr(spark_rows, "shares_files", lambda _: False)
    monkeypatch.setattr(spark_rows, "_TASK_BYTES", 16 << 10)
    monkeypatch.setattr(spark_rows, "_TASK_BYTES_MIN", 4 << 10)
    names = (spark_rows._LEAVES, spark_rows._ROWS_OF_A_BATCH, spark_rows._FEW_BYTES)
    before = [own.conf.get(name, None) for name in names]
    rows = pa.table({"n0": pa.array(range(kilobytes << 7), pa.int64())})
    rows = pa.concat_tables([rows.slice(0, 100), rows.slice(100)])  # as several files give them
    with view_of_rows(own, rows, "n0 bigint", tmp_path, "folded") as view:
        numbered = f"SELECT spark_partition_id() AS part FROM {view}"
        parts = own.sql(f"SELECT count(*) FROM ({numbered}) GROUP BY part").collect()
        assert own.sql(f"SELECT sum(n0) FROM {view}").collect()[0][0] == sum(range(rows.num_rows))
    assert sum(part[0] for part in parts) == rows.num_rows
    assert len(parts) == tasks
    assert max(part[0] for part in parts) - min(part[0] for part in parts) < tasks
    assert [own.conf.get(name, None) for name in names] == before
    assert cores_of(own) == 2


@pytest.mark.server
@pytest.mark.parametrize(("sized", "plan"), [(True, "LocalTableScan"), (False, "Scan ExistingRDD")])
def test_many_small_rows_are_not_decoded_in_the_driver(
    sized: bool, plan: str, session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless Spark must know how much they are."""
    monkeypatch.setattr(spark_rows, "shares_files", lambda _: False)
    rows = pa.table({"n0": pa.array(range(spark_rows._ROWS_HERE_MAX), pa.int64())})
    for these, expected in ((rows, plan), (rows.slice(1), "LocalTableScan")):
        with view_of_rows(session, these, "n0 bigint", tmp_path, "folded", sized=sized) as view:
            explained = session.sql(f"EXPLAIN SELECT * FROM {view}").collect()[0][0]
            assert expected in explained
            assert session.table(view).count() == these.num_rows


def test_files_are_read_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow.parquet as pq

    monkeypatch.setattr(spark_rows, "SLICE_BYTES", 5000)
    monkeypatch.setattr(spark_rows, "_BATCH_ROWS", 100)
    pq.write_table(pa.table({"c0": range(1000), "c1": range(1000)}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"c0": range(1000, 1010), "x0": ["x"] * 10}), tmp_path / "2.parquet")
    slices = list(read_files(sorted(tmp_path.glob("*.parquet")), ["c0", "x0"]))
    assert len(slices) > 1
    assert [row for each in slices for row in each["c0"].to_pylist()] == list(range(1010))
    assert [row for each in slices for row in each["x0"].to_pylist()] == [None] * 1000 + ["x"] * 10


@pytest.mark.parametrize(
    ("size", "cores", "partitions"),
    [
        (0, 64, 4),
        (256 << 20, 2, 4),
        (1 << 30, 2, 16),
        (1 << 40, 2, 16384),
        (1 << 50, 2, 20000),
        (32 << 20, 64, 4),
        (256 << 20, 64, 32),
        (1 << 30, 64, 128),
        (1 << 40, 64, 16384),
    ],
)
def test_a_large_table_is_shuffled_in_more_parts(
    session: Any, size: int, cores: int, partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "cores_of", lambda _: cores)
    metadata = _metadata(size)
    assert partitions_of(session, metadata) == partitions
    with shuffle_partitions(session, metadata):
        assert session.conf.get(SHUFFLE_PARTITIONS) == str(partitions)
    assert session.conf.get(SHUFFLE_PARTITIONS) == "4"


def test_a_users_partitions_stay(session: Any) -> None:
    own = sibling(session)
    known_of(own).given = {SHUFFLE_PARTITIONS: "7"}
    own.conf.set(SHUFFLE_PARTITIONS, "7")
    with shuffle_partitions(own, _metadata(1 << 40)):
        assert own.conf.get(SHUFFLE_PARTITIONS) == "7"


def test_what_is_broadcast_follows_the_smallest_heap(session: Any) -> None:
    if shares_files(session):
        assert broadcast_bytes_max(session) == (1 << 30) // 10
    else:
        assert broadcast_bytes_max(session) == (640 << 20) // 10
        assert CONF["spark.executor.memory"] == "640m"
    assert cores_of(session) == 2


def test_a_master_that_does_not_answer_is_an_error_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        closed = taken.getsockname()[1]
    with pytest.raises(SetupError, match="does not answer") as raised:
        require_answering(f"spark://127.0.0.1:{closed},127.0.0.1:{closed}")
    assert str(closed) in raised.value.where
    require_answering("yarn")


def test_another_mount_namespace_is_another_machine() -> None:
    assert this_machine() == this_machine()
    assert "repr" not in repr(SparkChoices(conf={"spark.x": "repr"}))
