"""A look at a SQLite catalog is read again after every change, whoever made it, and only then."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from slotlake.spark.catalog import sqlite_looks
from slotlake.spark.catalog.open import already_open, catalog_stays_open, open_catalog
from slotlake.spark.catalog.pointer_texts import ALL_TEXTS_OF_SQLITE, TEXTS_OF_SQLITE, PointerTexts
from slotlake.spark.catalog.pointers import read_listing
from slotlake.spark.catalog.sqlite_looks import SqliteLooks, texts_of_sqlite
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


class _Counted:
    """A connection's looks, and how many times the tables were read for them."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection, self.looks, self.reads = connection, SqliteLooks(), 0

    def ask(self, query: str, asked: Mapping[str, str]) -> object:
        self.reads += query == ALL_TEXTS_OF_SQLITE
        return self.connection.execute(query, asked).fetchone()

    def look(self) -> str | None:
        return self.looks.texts(self.connection, self.ask, ASKED).locations


def test_a_look_is_read_again_after_a_change_of_anybody(file: Path, own: sqlite3.Connection) -> None:
    counted = _Counted(own)
    assert [counted.look() for _ in range(3)] == ["1\x1e1"] * 3
    assert counted.reads == 1
    _change(file, "UPDATE iceberg_tables SET metadata_location = '2' WHERE table_name = 'a'")
    assert [counted.look() for _ in range(2)] == ["2\x1e1"] * 2
    assert counted.reads == 2
    with own:
        own.execute("UPDATE iceberg_tables SET metadata_location = '3' WHERE table_name = 'b'")
    assert [counted.look() for _ in range(2)] == ["2\x1e3"] * 2
    assert counted.reads == 3


def test_what_changes_while_it_is_read_is_read_again(file: Path, own: sqlite3.Connection) -> None:
    counted = _Counted(own)
    plain, changes = counted.ask, iter(["4", "5"])

    def ask(query: str, asked: Mapping[str, str]) -> object:
        row = plain(query, asked)
        if query == ALL_TEXTS_OF_SQLITE and (value := next(changes, None)):
            _change(file, f"UPDATE iceberg_tables SET metadata_location = '{value}'")
        return row

    counted.ask = ask  # type: ignore[method-assign]
    assert [counted.look() for _ in range(4)] == ["1\x1e1", "4\x1e4", "5\x1e5", "5\x1e5"]
    assert counted.reads == 3


def test_a_look_over_another_connection_is_another_look(file: Path, own: sqlite3.Connection) -> None:
    counted = _Counted(own)
    assert counted.look() == "1\x1e1"
    with closing(sqlite3.connect(file)) as other:
        counted.connection = other
        assert counted.look() == "1\x1e1"
    assert counted.reads == 2


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


def test_a_thread_that_keeps_a_catalog_open_looks_by_it(
    lake: LakeSettings, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    plain = sqlite_looks.texts_of_sqlite

    def counted(ask: sqlite_looks.Asking, asked: Mapping[str, str]) -> PointerTexts:
        reads.append("all")
        return plain(ask, asked)

    monkeypatch.setattr(sqlite_looks, "texts_of_sqlite", counted)
    assert already_open(lake) is None
    with catalog_stays_open():
        assert already_open(lake) is None
        with open_catalog(lake) as catalog:
            first = catalog.listing()
            assert read_listing(lake) is first
            assert len(reads) == 1
            _change(file, "UPDATE iceberg_tables SET metadata_location = '2' WHERE table_name = 'a'")
            assert read_listing(lake).changed_since(first) == {LakeName("shop", "a")}
            assert read_listing(lake).names is first.names  # none came or went
            _change(file, "UPDATE iceberg_tables SET table_name = 'c' WHERE table_name = 'a'")
            assert read_listing(lake).names == {LakeName("shop", "b"), LakeName("shop", "c")}
            assert len(reads) == 3
    assert already_open(lake) is None
