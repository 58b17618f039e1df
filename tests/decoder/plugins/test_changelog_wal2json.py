"""A lake's batches through wal2json as Debian has it (2.5), and large transactions through either plugin."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from slotlake.decoder.assembly.spool import SpoolRoom
from slotlake.decoder.changelog.batches import Batch
from slotlake.decoder.errors import ChangeLogError, SourceError
from slotlake.decoder.lsn import parse_lsn
from slotlake.decoder.plugins import gathering
from slotlake.decoder.plugins.changelog import pull_rows
from slotlake.decoder.server.source import SourceSettings
from slotlake.decoder.stream.pull import pull
from slotlake.infra.local.postgres import EmbeddedPostgres
from tests.decoder.plugins import servers
from tests.decoder.plugins.test_changelog import tables

pytestmark = pytest.mark.server
PLUGINS = ("pgoutput", "test_decoding", "wal2json")


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    if lacking := servers.missing():
        pytest.skip(f"no server with all plugins here: {', '.join(lacking)} missing")
    with servers.plugin_server() as running:
        yield running


class Sources:
    """A database with a publication, and a slot of each plugin."""

    def __init__(self, server: EmbeddedPostgres, name: str, setup: str) -> None:
        with psycopg.connect(server.dsn(), autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {name}".encode())
        self._dsn = server.dsn(name)
        self.run(setup)
        self._starts = {}
        self._sources = {}
        for plugin in PLUGINS:
            slot = f"{name}_{plugin}"
            (row,) = self.run(f"SELECT lsn FROM pg_create_logical_replication_slot('{slot}', '{plugin}')")
            self._starts[plugin] = parse_lsn(str(row[0]))
            self._sources[plugin] = SourceSettings(self._dsn, ("p",), slot, plugin=plugin)

    def run(self, statements: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            for statement in statements.split(";\n"):
                cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def batch(self, plugin: str, folder: Path, until: int | None = None, **more: Any) -> Batch:
        way = pull if plugin == "pgoutput" else pull_rows
        made = way(
            self._sources[plugin], "test", folder / plugin, start=self._starts[plugin], until=until, **more
        )
        made.verify()
        return made


def test_the_same_batch_where_no_number_may_be_null(server: EmbeddedPostgres, tmp_path: Path) -> None:
    sources = Sources(
        server,
        "same",
        "CREATE TABLE t (id int PRIMARY KEY, r real NOT NULL, d float8 NOT NULL, n numeric NOT NULL,"
        " t text);\n"
        "CREATE TABLE whole (r numeric(8,2) NOT NULL, i bigint, t text);\n"
        "ALTER TABLE whole REPLICA IDENTITY FULL;\n"
        "CREATE TABLE other (id int PRIMARY KEY, n numeric);\n"
        "CREATE PUBLICATION p FOR TABLE t, whole",
    )
    sources.run(
        "INSERT INTO t VALUES (1, 1.5, -0.1, 1234567890123456789.10, NULL), (2, 1e-7, 1e300, 0.000, 'x');\n"
        "INSERT INTO other VALUES (1, NULL);\n"  # not published: none of the lake's
        "INSERT INTO whole VALUES (1.10, NULL, NULL), (2, 7, 'y');\n"
        "UPDATE t SET id = 3, n = 5 WHERE id = 2;\n"
        "UPDATE whole SET i = 8 WHERE i = 7;\n"
        "DELETE FROM whole WHERE i IS NULL;\n"
        "DELETE FROM t WHERE id = 1;\n"
        "TRUNCATE t"
    )
    expected = sources.batch("pgoutput", tmp_path)
    found = sources.batch("wal2json", tmp_path, expected.end_lsn)
    assert expected.changes == found.changes == 9
    assert tables(found) == tables(expected)
    assert found.transaction_table().to_pylist() == expected.transaction_table().to_pylist()


def test_a_number_that_may_be_null_is_refused_beforehand(server: EmbeddedPostgres, tmp_path: Path) -> None:
    sources = Sources(
        server,
        "nullable",
        "CREATE TABLE t (id int PRIMARY KEY, n numeric, f float8);\nCREATE PUBLICATION p FOR TABLE t (id, f)",
    )
    sources.run("INSERT INTO t VALUES (1, 1, 1)")
    with pytest.raises(SourceError, match=r"column 'f' of public\.t has type double precision") as caught:
        sources.batch("wal2json", tmp_path)
    assert "wal2json 2.6" in caught.value.way_out
    sources.run("ALTER TABLE t ALTER f SET NOT NULL")
    assert sources.batch("wal2json", tmp_path).changes == 1


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_what_is_printed_as_null_is_refused_when_it_comes(
    server: EmbeddedPostgres, tmp_path: Path, value: str
) -> None:
    sources = Sources(
        server,
        "hidden" + value.strip("-").lower() + str(len(value)),
        "CREATE TABLE t (id int PRIMARY KEY, f float8 NOT NULL);\nCREATE PUBLICATION p FOR TABLE t",
    )
    sources.run(f"INSERT INTO t VALUES (1, 1), (2, '{value}')")
    with pytest.raises(ChangeLogError, match="column 'f' has a null, which wal2json before"):
        sources.batch("wal2json", tmp_path)
    assert list((tmp_path / "wal2json").iterdir()) == []


def test_a_large_transaction_goes_by_the_disk_or_straight_through(
    server: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "CHUNK_BYTES", 200_000)
    monkeypatch.setattr(gathering, "_PIECE_BYTES", 20_000)
    spilled: list[int] = []
    ended = SpoolRoom.close_all

    def close_all(room: SpoolRoom) -> None:
        spilled.append(room.spilled_files)
        ended(room)

    monkeypatch.setattr(SpoolRoom, "close_all", close_all)
    sources = Sources(
        server, "large", "CREATE TABLE t (id int PRIMARY KEY, t text);\nCREATE PUBLICATION p FOR TABLE t"
    )
    sources.run(
        "INSERT INTO t VALUES (-1, 'before');\n"
        "INSERT INTO t SELECT n, repeat('x', n % 50) FROM generate_series(1, 6000) n;\n"
        "BEGIN; UPDATE t SET t = 'y' WHERE id % 2 = 0; SAVEPOINT s; DELETE FROM t; ROLLBACK TO s; COMMIT;\n"
        "INSERT INTO t VALUES (-2, 'after')"
    )
    expected = sources.batch("pgoutput", tmp_path)
    spilled.clear()
    for plugin in ("test_decoding", "wal2json"):
        found = sources.batch(plugin, tmp_path, expected.end_lsn, memory_bytes=50_000)
        assert tables(found) == tables(expected), plugin
        assert found.transactions == expected.transactions == 4
        assert [path.name for path in (tmp_path / plugin).iterdir()] == [found.name]
    assert spilled[0] > 3
    assert spilled[1] == 0, "its begin tells where it commits"


def test_a_transaction_beyond_the_end_leaves_nothing(server: EmbeddedPostgres, tmp_path: Path) -> None:
    sources = Sources(
        server, "beyond", "CREATE TABLE t (id int PRIMARY KEY);\nCREATE PUBLICATION p FOR TABLE t"
    )
    sources.run("INSERT INTO t VALUES (1)")
    ((end,),) = sources.run("SELECT pg_current_wal_insert_lsn()")
    sources.run("INSERT INTO t SELECT generate_series(2, 100)")
    for plugin in ("test_decoding", "wal2json"):
        assert sources.batch(plugin, tmp_path, parse_lsn(str(end))).changes == 1
