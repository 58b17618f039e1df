"""The initial copy: the published rows and columns, lossless, in files Iceberg can take."""

from __future__ import annotations

import struct
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slotlake.decoder.catalog.publications import SourceTable, source_tables
from slotlake.decoder.copy.frames import CopyFrames
from slotlake.decoder.copy.parts import Part, plan_parts
from slotlake.decoder.copy.table import CopiedFile
from slotlake.decoder.errors import ChangedMeanwhileError, ChangeLogError, ProtocolError, SourceError
from slotlake.decoder.server.privileges import require_readable
from slotlake.decoder.server.source import connect
from slotlake.decoder.slots.slot import create_slot
from slotlake.decoder.types.representations import Representation
from slotlake.decoder.types.table import column_type, to_text
from tests.conftest import Database
from tests.decoder import copied as copied_table
from tests.decoder.copied import copy_query, copy_table
from tests.decoder.sources import settings
from tests.decoder.test_bad_input_source import refused, role, small_disk


@dataclass(frozen=True)
class Place:
    """As the lake gives it: names and ids that are not the source's."""

    directory: Path
    table: SourceTable

    @property
    def names(self) -> dict[str, str]:
        return {column.name: f"lake {column.name}" for column in self.table.columns}

    @property
    def representations(self) -> dict[str, Representation]:
        return {}

    @property
    def field_ids(self) -> dict[str, int]:
        return {column.name: 2 * i + 1 for i, column in enumerate(self.table.columns)}

    @property
    def exact_names(self) -> dict[str, str]:
        return {column.name: f"lake {column.name}__exact" for column in self.table.columns}

    @property
    def exact_field_ids(self) -> dict[str, int]:
        return {column.name: 2 * i + 2 for i, column in enumerate(self.table.columns)}

    @property
    def inner_ids(self) -> dict[str, list[int]]:
        return {}


def copied(database: Database, directory: Path, **more: Any) -> tuple[SourceTable, list[CopiedFile]]:
    """Copy the one table of publication p."""
    source = settings(database)
    directory.mkdir(exist_ok=True)
    with connect(source.dsn) as connection:
        (table,) = source_tables(connection, ("p",))
    with create_slot(source, temporary=True) as cut:
        return table, copy_table(source.dsn, cut.snapshot, table, Place(directory, table), **more)


def texts(table: SourceTable, files: list[CopiedFile]) -> list[tuple[Any, ...]]:
    """The rows as PostgreSQL would print them."""
    rows: list[tuple[Any, ...]] = []
    for file in files:
        data = pq.read_table(file.path)
        assert data.num_rows == file.rows
        columns = []
        for column in table.columns:
            name = f"lake {column.name}__exact"
            exact = data[name] if name in data.column_names else None
            kind = column_type(column.type_oid, column.typmod)
            columns.append(to_text(data[f"lake {column.name}"], exact, kind).to_pylist())
        rows += zip(*columns, strict=True)
    return rows


WIDE = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE t (
  id int PRIMARY KEY, i2 int2, i8 int8, f4 float4, f8 float8, n numeric(12,3), nn numeric, b bool, c char(5),
  v varchar(20), x text, y bytea, d date, ts timestamp, tz timestamptz, j jsonb, u uuid, a int[], m mood,
  r int4range, iv interval, ip inet, tm time, nm name, q "char");
INSERT INTO t SELECT i, i, -i, i / 3.0, i / 7.0, i / 11.0, i * 1e30, i % 2 = 0, 'c' || i, 'vär' || i,
  E'a\\tb\\n"' || i, int4send(i), date '2000-01-01' + i, timestamp '2000-01-01' + i * interval '1.5 s',
  timestamptz '2000-01-01' + i * interval '1.5 s', jsonb_build_object('k', i), md5(i::text)::uuid,
  ARRAY[i, NULL], 'ok', int4range(i, i + 5), i * interval '1 hour', '10.0.0.1/8', '12:34:56.7', 'n' || i, 'q'
FROM generate_series(1, 1000) i;
INSERT INTO t (id) VALUES (0);
INSERT INTO t (id, n, d, ts, tz, f4, f8) VALUES
  (-1, 'NaN', 'infinity', '-infinity', '0044-03-15 BC', 'NaN', '-Infinity'),
  (-2, 5, '20000-01-01', '12000-01-01', '12000-01-01', '-0', 0);
CREATE PUBLICATION p FOR TABLE t;
"""


def test_every_kind_of_value_comes_through(database: Database, tmp_path: Path) -> None:
    database.execute(WIDE)
    table, files = copied(database, tmp_path)
    query = "COPY (SELECT * FROM t) TO STDOUT"
    with connect(database.dsn) as connection, connection.cursor() as cursor, cursor.copy(query) as copy:
        expected = [tuple(row) for row in copy.rows()]
    assert sorted(texts(table, files), key=str) == sorted(expected, key=str)
    assert sum(file.rows for file in files) == 1003
    assert {name for file in files for name in file.exact} == {"n", "d", "ts", "tz"}
    schema = pq.read_schema(files[-1].path)
    ids = {field.name: int((field.metadata or {})[b"PARQUET:field_id"]) for field in schema}
    assert (ids["lake id"], ids["lake n"], ids["lake n__exact"]) == (1, 11, 12)
    assert schema.field("lake tz").type == pa.timestamp("us", "UTC")
    assert schema.field("lake ts").type == pa.timestamp("us")
    assert schema.field("lake n").type == pa.decimal128(12, 3)


def test_filter_columns_and_generated(database: Database, tmp_path: Path) -> None:
    database.execute(
        """
        CREATE TABLE t (id int PRIMARY KEY, hidden text, g int GENERATED ALWAYS AS (id * 2) STORED,
                        "A b" text);
        CREATE TABLE child () INHERITS (t);
        INSERT INTO t (id, "A b") SELECT i, 'x' FROM generate_series(1, 10) i;
        INSERT INTO child (id) VALUES (7);
        CREATE PUBLICATION p FOR TABLE ONLY t (id, "A b") WHERE (id > 5)
        """
    )
    table, files = copied(database, tmp_path)
    assert sorted(texts(table, files)) == [(str(i), "x") for i in (10, 6, 7, 8, 9)]
    assert " FROM ONLY " in copy_query(table)


def test_a_partitioned_table_through_its_root(database: Database, tmp_path: Path) -> None:
    database.execute(
        """
        CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id);
        CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10);
        CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (10) TO (20);
        INSERT INTO t VALUES (1), (11);
        CREATE PUBLICATION p FOR TABLE t WITH (publish_via_partition_root)
        """
    )
    table, files = copied(database, tmp_path)
    assert sorted(texts(table, files)) == [("1",), ("11",)]


def test_the_snapshot_is_what_is_copied(database: Database, tmp_path: Path) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1); CREATE PUBLICATION p FOR TABLE t"
    )
    source = settings(database)
    with connect(source.dsn) as connection:
        (table,) = source_tables(connection, ("p",))
    with create_slot(source, temporary=True) as cut:
        database.execute("INSERT INTO t VALUES (2); UPDATE t SET id = 9 WHERE id = 1")
        files = copy_table(source.dsn, cut.snapshot, table, Place(tmp_path, table))
    assert texts(table, files) == [("1",)]
    refused(
        SourceError,
        "does not exist any more",
        lambda: copy_table(source.dsn, cut.snapshot, table, Place(tmp_path, table)),
    )
    assert list(tmp_path.iterdir()) == [files[0].path] or list(tmp_path.iterdir()) == []


def test_a_partition_that_gets_anothers_name_is_not_read_for_it(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the parts were cut, and before they are read by name."""
    database.execute(
        """
        CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id);
        CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10);
        CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (10) TO (20);
        INSERT INTO t VALUES (1), (11);
        CREATE PUBLICATION p FOR TABLE t WITH (publish_via_partition_root)
        """
    )

    def cut_before(*given: Any) -> dict[SourceTable, list[Part]]:
        parts = plan_parts(*given)
        for step in ("t1 RENAME TO x", "t2 RENAME TO t1", "x RENAME TO t2"):
            database.execute(f"ALTER TABLE {step}")
        return parts

    monkeypatch.setattr(copied_table, "plan_parts", cut_before)
    refused(ChangedMeanwhileError, "renamed while it was copied", lambda: copied(database, tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_many_chunks_and_files(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A companion column that is first needed late begins a new file, and stays."""
    monkeypatch.setattr("slotlake.decoder.copy.table.CHUNK_BYTES", 20_000)
    monkeypatch.setattr("slotlake.decoder.stream.copy_data.DRAIN_BYTES", 20_000)
    database.execute(
        """
        CREATE TABLE t (id int, d date); CREATE PUBLICATION p FOR TABLE t;
        INSERT INTO t SELECT i, CASE WHEN i = 7000 THEN 'infinity' ELSE date '2000-01-01' + i END
        FROM generate_series(1, 10000) i
        """
    )
    reported: list[int] = []
    count = lambda _, rows, __: reported.append(rows)  # noqa: E731
    table, files = copied(database, tmp_path, rows_per_file=3000, report=count)
    assert len(files) >= 3
    assert files[0].exact == ()
    assert files[-1].exact == ("d",)
    rows = texts(table, files)
    assert len(rows) == 10_000
    assert ("7000", "infinity") in rows
    assert len(reported) > 3
    assert sum(reported) == 10_000


def test_an_empty_table_gives_no_file(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
    assert copied(database, tmp_path)[1] == []


def test_row_level_security_is_refused(database: Database, tmp_path: Path) -> None:
    database.execute(
        """
        CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2);
        ALTER TABLE t ENABLE ROW LEVEL SECURITY;
        CREATE POLICY one ON t USING (id = 1); CREATE PUBLICATION p FOR TABLE t
        """
    )
    with connect(database.dsn) as connection:
        (table,) = source_tables(connection, ("p",))  # a superuser sees all
    with role(database, "REPLICATION") as place:
        database.execute(f"GRANT SELECT ON t TO role_{database.name}")
        with connect(place) as connection:
            refused(
                SourceError, "hides rows", lambda: require_readable(connection, {table.relation_id: None})
            )
        with create_slot(settings(database), temporary=True) as cut:
            call = lambda: copy_table(place, cut.snapshot, table, Place(tmp_path, table))  # noqa: E731
            error = refused(SourceError, "row-level security", call)
    assert "BYPASSRLS" in error.way_out


def test_no_privilege(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
    with connect(database.dsn) as connection:
        (table,) = source_tables(connection, ("p",))
    with role(database, "REPLICATION") as place, create_slot(settings(database), temporary=True) as cut:
        call = lambda: copy_table(place, cut.snapshot, table, Place(tmp_path, table))  # noqa: E731
        error = refused(SourceError, "lacks a privilege", call)
    assert "GRANT" in error.way_out


def test_full_disk_leaves_no_file(database: Database) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a text); CREATE PUBLICATION p FOR TABLE t;"
        "INSERT INTO t SELECT i, md5(i::text) FROM generate_series(1, 100000) i"
    )
    with small_disk() as disk:
        refused(
            ChangeLogError,
            "cannot be written: (No space|File too large)",
            lambda: copied(database, disk / "t"),
        )
        assert list((disk / "t").iterdir()) == []


def test_connection_cut_leaves_no_file(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slotlake.decoder.copy.table.CHUNK_BYTES", 100_000)
    monkeypatch.setattr("slotlake.decoder.stream.copy_data.DRAIN_BYTES", 100_000)
    database.execute(
        "CREATE TABLE t (id int, a text); CREATE PUBLICATION p FOR TABLE t;"
        "INSERT INTO t SELECT i, md5(i::text) FROM generate_series(1, 300000) i"
    )

    def cut() -> None:
        query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'COPY (SELECT%' "
        for _ in range(1000):
            if database.execute(query + "AND datname = current_database() AND pid <> pg_backend_pid()"):
                return

    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        with pytest.raises((SourceError, psycopg.Error)) as caught:
            copied(database, tmp_path)
    finally:
        cutter.join()
    assert isinstance(caught.value, SourceError)
    assert list(tmp_path.iterdir()) == []


HEAD = b"PGCOPY\n\xff\r\n\0" + bytes(8)


def row(*fields: bytes | None) -> bytes:
    parts = [struct.pack(">i", -1) if f is None else struct.pack(">i", len(f)) + f for f in fields]
    return struct.pack(">h", len(fields)) + b"".join(parts)


@pytest.mark.fast
def test_frames_however_they_are_cut() -> None:
    data = HEAD + row(b"a", None) + row(b"", b"xyz") + struct.pack(">h", -1)
    for cut in range(19, len(data) + 1):
        frames = CopyFrames(2)
        found = []
        for part in (data[:cut], data[cut:]):
            rows, columns = frames.take(part, 10)
            for i in range(rows):
                values = [
                    (c.data[c.start[i] : c.start[i] + c.length[i]].tobytes(), c.length[i]) for c in columns
                ]
                found.append([None if length < 0 else value for value, length in values])
        frames.end()
        assert found == [[b"a", None], [b"", b"xyz"]]


@pytest.mark.fast
@pytest.mark.parametrize(
    "data",
    [
        b"PGCOPX" + bytes(20),
        HEAD[:11] + b"\0\0\0\1" + bytes(4),
        HEAD + row(b"a"),
        HEAD + row(b"a", b"b", b"c"),
        HEAD + struct.pack(">hii", 2, -2, 0),
        HEAD + struct.pack(">h", -1) + b"x",
        HEAD + row(b"a", b"b"),
        HEAD + row(b"a", b"b")[:-1],
        HEAD[:-4] + struct.pack(">I", 99),
    ],
)
def test_damaged_frames(data: bytes) -> None:
    frames = CopyFrames(2)
    with pytest.raises(ProtocolError):
        frames.take(data, 10)
        frames.end()
