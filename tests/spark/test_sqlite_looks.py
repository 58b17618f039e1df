"""A look at a SQLite catalog is read again after every change, whoever made it, and only then."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from slotlake.spark.catalog.open import open_catalog, read_listing
from slotlake.spark.catalog.sql import sqlite_looks
from slotlake.spark.catalog.sql.pointer_texts import ALL_TEXTS_OF_SQLITE, TEXTS_OF_SQLITE, PointerTexts
from slotlake.spark.catalog.sql.sqlite_looks import texts_of_file, texts_of_sqlite
from slotlake.spark.catalog.view_spaces import OWNER
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import LakeName

pytestmark = pytest.mark.fast
ASKED = {"catalog": "lake", "owner": OWNER}
INSERT = "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location) VALUES "


@pytest.fixture
def lake(tmp_path: Path) -> LakeSettings:
    return LakeSettings("lake", f"sqlite:///{tmp_path}/catalog.db", f"file://{tmp_path}/lake", "shop")


@pytest.fixture
def file(lake: LakeSettings, tmp_path: Path) -> Path:
    """A catalog of two tables."""
    with open_catalog(lake):
        pass
    path = tmp_path / "catalog.db"
    _change(path, INSERT + "('lake', 'shop', 'a', '1'), ('lake', 'shop', 'b', '1')")
    return path


@pytest.fixture
def own(file: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(file)) as connection:
        yield connection


def _change(file: Path, statement: str) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(statement)


def _texts(connection: sqlite3.Connection) -> PointerTexts:
    return texts_of_sqlite(lambda query, asked: connection.execute(query, asked).fetchone(), ASKED)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A word for each time that all tables were read."""
    counted: list[str] = []
    plain = sqlite_looks.texts_of_sqlite

    def read(ask: sqlite_looks.Asking, asked: Mapping[str, str]) -> PointerTexts:
        counted.append("all")
        return plain(ask, asked)

    monkeypatch.setattr(sqlite_looks, "texts_of_sqlite", read)
    return counted


def _look(lake: LakeSettings) -> str | None:
    texts = texts_of_file(lake)
    assert texts is not None
    return texts.locations


def test_a_look_is_read_again_after_a_change_of_anybody(
    lake: LakeSettings, file: Path, reads: list[str]
) -> None:
    assert [_look(lake) for _ in range(3)] == ["1\x1e1"] * 3
    assert len(reads) == 1
    _change(file, "UPDATE iceberg_tables SET metadata_location = '2' WHERE table_name = 'a'")
    assert [_look(lake) for _ in range(2)] == ["2\x1e1"] * 2
    assert len(reads) == 2
    with open_catalog(lake) as catalog:  # this process, by another connection
        catalog.drop([LakeName("shop", "a")])
    assert [_look(lake) for _ in range(2)] == ["1"] * 2
    assert len(reads) == 3


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_other_processes_are_seen_whatever_the_journal(
    lake: LakeSettings, file: Path, reads: list[str], journal: str
) -> None:
    _change(file, f"PRAGMA journal_mode = {journal}")
    assert _look(lake) == "1\x1e1"
    statement = "UPDATE iceberg_tables SET metadata_location = '2'"
    program = f"import sqlite3; c = sqlite3.connect({str(file)!r}); c.execute({statement!r}); c.commit()"
    subprocess.run([sys.executable, "-c", program], check=True)
    assert [_look(lake) for _ in range(2)] == ["2\x1e2"] * 2
    assert len(reads) == 2


def test_what_is_not_committed_is_not_seen(lake: LakeSettings, own: sqlite3.Connection) -> None:
    assert _look(lake) == "1\x1e1"
    own.execute("UPDATE iceberg_tables SET metadata_location = '2'")
    assert _look(lake) == "1\x1e1"
    own.rollback()
    assert _look(lake) == "1\x1e1"
    with own:
        own.execute("UPDATE iceberg_tables SET metadata_location = '3'")
    assert _look(lake) == "3\x1e3"


def test_what_changes_while_it_is_read_is_read_again(
    lake: LakeSettings, file: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, changes = sqlite_looks.texts_of_sqlite, iter(["4", "5"])

    def read(ask: sqlite_looks.Asking, asked: Mapping[str, str]) -> PointerTexts:
        texts = plain(ask, asked)
        if value := next(changes, None):
            _change(file, f"UPDATE iceberg_tables SET metadata_location = '{value}'")
        return texts

    monkeypatch.setattr(sqlite_looks, "texts_of_sqlite", read)
    assert [_look(lake) for _ in range(4)] == ["1\x1e1", "4\x1e4", "5\x1e5", "5\x1e5"]
    assert len(reads) == 3


def test_another_file_in_its_place_is_looked_at(lake: LakeSettings, file: Path, tmp_path: Path) -> None:
    assert _look(lake) == "1\x1e1"
    other = tmp_path / "other.db"
    shutil.copy(file, other)
    _change(other, "UPDATE iceberg_tables SET metadata_location = '7'")
    assert _look(lake) == "1\x1e1"
    other.rename(file)
    assert _look(lake) == "7\x1e7"
    file.unlink()
    assert texts_of_file(lake) is None


def test_the_connections_of_a_process_are_few(tmp_path: Path) -> None:
    for number in range(20):
        uri = f"sqlite:///{tmp_path}/catalog{number}.db"
        each = LakeSettings("lake", uri, f"file://{tmp_path}/lake", "shop")
        with open_catalog(each):
            pass
        assert _look(each) is None
    open_ones = [link.resolve() for link in Path("/proc/self/fd").iterdir() if link.exists()]
    assert len([path for path in open_ones if path.parent == tmp_path]) == 8


def test_a_child_of_the_process_looks_by_a_connection_of_its_own(
    lake: LakeSettings, file: Path, own: sqlite3.Connection
) -> None:
    assert _look(lake) == "1\x1e1"
    child = os.fork()
    if not child:
        os._exit(0 if _look(lake) == "1\x1e1" and len(sqlite_looks._connections._not_ours) == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    with own:
        own.execute("UPDATE iceberg_tables SET metadata_location = '2'")
    assert _look(lake) == "2\x1e2"


def test_threads_look_at_the_same_time(lake: LakeSettings, file: Path) -> None:
    stop, seen = threading.Event(), set[str | None]()

    def look() -> None:
        while not stop.is_set():
            seen.add(_look(lake))

    with ThreadPoolExecutor(4) as pool:
        looks = [pool.submit(look) for _ in range(4)]
        for number in range(2, 40):
            _change(file, f"UPDATE iceberg_tables SET metadata_location = '{number}'")
        stop.set()
        for each in looks:
            each.result()
    assert all(text is not None and len(set(text.split("\x1e"))) == 1 for text in seen)
    assert _look(lake) == "39\x1e39"


@pytest.mark.parametrize(
    ("change", "are_all"),
    [
        (INSERT + "('lake', 'shop', 'c', '1')", True),
        (INSERT + "('lake', 'shop', 'c', NULL)", False),
        (INSERT + "('another', 'shop', 'c', '1')", False),
        (INSERT + "('lakes', 'shop', 'c', '1')", False),
        (f"INSERT INTO iceberg_namespace_properties VALUES ('lake', 'shop', '{OWNER}', 'x')", False),
        (f"INSERT INTO iceberg_namespace_properties VALUES ('another', 'shop', '{OWNER}', 'x')", True),
        ("DELETE FROM iceberg_tables", False),
    ],
)
def test_all_rows_are_read_without_conditions_only_if_all_fulfil_them(
    file: Path, own: sqlite3.Connection, change: str, are_all: bool
) -> None:
    _change(file, change)
    quick = own.execute(ALL_TEXTS_OF_SQLITE, ASKED).fetchone()
    assert (quick is not None) == are_all
    assert _texts(own) == own.execute(TEXTS_OF_SQLITE, ASKED).fetchone()
    assert quick in {None, _texts(own)}


def test_the_readers_and_the_catalog_look_by_the_same_connection(
    lake: LakeSettings, file: Path, reads: list[str]
) -> None:
    with open_catalog(lake) as catalog:
        first = catalog.listing()
        assert read_listing(lake) is first
        assert len(reads) == 1
        _change(file, "UPDATE iceberg_tables SET metadata_location = '2' WHERE table_name = 'a'")
        assert read_listing(lake).changed_since(first) == {LakeName("shop", "a")}
        assert read_listing(lake).names is first.names  # none came or went
        _change(file, "UPDATE iceberg_tables SET table_name = 'c' WHERE table_name = 'a'")
        assert catalog.own_names(None) == {LakeName("shop", "b"), LakeName("shop", "c")}
        assert len(reads) == 3
