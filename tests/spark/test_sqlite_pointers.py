"""A look at a SQLite catalog finds what anyone has changed, and reads nothing if nobody has."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.catalog.sqlite_pointers import sqlite_pointers
from slotlake.spark.lake import LakeSettings

pytestmark = pytest.mark.fast
# Some of what the transaction changes is in the file, and so is the counter, when the writer dies.
_KILLED = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("PRAGMA cache_size = 1")
connection.execute("PRAGMA cache_spill = 1")
connection.execute("UPDATE iceberg_tables SET metadata_location = 'lost'")
for number in range(2000):
    connection.execute(
        "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location) "
        "VALUES ('lake', 'shop', ?, 'lost')", (f"lost{number:05}" + "x" * 200,))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def lake(tmp_path: Path) -> LakeSettings:
    lake = LakeSettings("lake", f"sqlite:///{tmp_path}/catalog.db", f"file://{tmp_path}/lake", "shop")
    with open_catalog(lake):
        pass
    return lake


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What SQLite was asked by looks."""
    asked: list[str] = []
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect

    def counted(place: str, **arguments: Any) -> sqlite3.Connection:
        asked.append(place)
        return connect(place, **arguments)

    monkeypatch.setattr(sqlite3, "connect", counted)
    return asked


def _file(lake: LakeSettings) -> str:
    return lake.uri.removeprefix("sqlite:///")


def _put(lake: LakeSettings, **locations: str) -> None:
    with closing(sqlite3.Connection(_file(lake))) as connection, connection:
        for name, location in locations.items():
            connection.execute(
                "INSERT OR REPLACE INTO iceberg_tables (catalog_name, table_namespace, table_name, "
                "metadata_location) VALUES ('lake', 'shop', ?, ?)",
                (name, location),
            )


def _look(lake: LakeSettings) -> dict[str, str]:
    texts = sqlite_pointers(lake)
    assert texts is not None
    rows = texts.rows()
    assert rows is not None
    return {name: location for _, name, location in rows}


def test_a_look_asks_again_only_after_a_change(lake: LakeSettings, questions: list[str]) -> None:
    for number in range(3):
        _put(lake, a=str(number))
        for _ in range(3):
            assert _look(lake) == {"a": str(number)}
        assert len(questions) == number + 1
    with closing(sqlite3.Connection(_file(lake))) as writer:
        writer.execute("UPDATE iceberg_tables SET metadata_location = 'not yet'")
        assert _look(lake) == {"a": "2"}
        writer.rollback()
    assert _look(lake) == {"a": "2"}
    assert len(questions) == 3


def test_each_catalog_in_a_file_has_its_own(lake: LakeSettings) -> None:
    _put(lake, a="1")
    other = LakeSettings("another", lake.uri, lake.warehouse, "shop")
    assert (_look(lake), _look(other)) == ({"a": "1"}, {})


def test_with_a_write_ahead_log_each_look_asks(lake: LakeSettings, questions: list[str]) -> None:
    with closing(sqlite3.Connection(_file(lake))) as connection:
        assert connection.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
        for number in range(3):
            _put(lake, a=str(number))
            assert (_look(lake), _look(lake)) == ({"a": str(number)}, {"a": str(number)})
    assert len(questions) == 6


def test_another_file_in_its_place_is_read(lake: LakeSettings, tmp_path: Path) -> None:
    _put(lake, a="1")
    shutil.copy(_file(lake), tmp_path / "copy.db")
    _put(lake, a="2")
    assert _look(lake) == {"a": "2"}
    (tmp_path / "copy.db").rename(_file(lake))
    _put(lake, b="as often")  # the counter of the other file is now that of the first
    assert _look(lake) == {"a": "1", "b": "as often"}


def test_what_a_killed_writer_left_is_never_seen(lake: LakeSettings, questions: list[str]) -> None:
    _put(lake, a="1")
    assert _look(lake) == {"a": "1"}
    ended = subprocess.run([sys.executable, "-c", _KILLED, _file(lake)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert Path(f"{_file(lake)}-journal").stat().st_size > 0
    assert b"lost0" in Path(_file(lake)).read_bytes()  # else this test shows nothing
    for _ in range(2):
        texts = sqlite_pointers(lake)
        assert texts is None or texts.locations == "1"
        with open_catalog(lake) as catalog:
            assert list(catalog.pointers().values()) == ["1"]
    _put(lake, a="2")  # rolls back, and counts as the lost transaction did
    assert _look(lake) == {"a": "2"}
