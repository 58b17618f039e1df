"""A look at a SQLite catalog that takes no time while nobody has changed it.

To read all pointers of 10,000 tables takes SQLite 8 ms, and a sync looks six times.  SQLite itself tells
whether somebody has committed since (``PRAGMA data_version``).  So this process keeps a connection to the
file that only looks; it needs neither SQLAlchemy nor pyiceberg, which take half a second to import.

Invariant: SQLite was asked for its number before what is remembered was read, by the connection that read; so
this is what is there now, as long as the number is the same.  A file that has been put in the place of
another is another file.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from slotlake.spark.catalog.sql.pointer_texts import ALL_TEXTS_OF_SQLITE, TEXTS_OF_SQLITE, PointerTexts
from slotlake.spark.catalog.view_spaces import OWNER
from slotlake.spark.lake import SQLITE_BUSY_SECONDS, LakeSettings

# Answers a query with its first row; None: there is none.
Asking: TypeAlias = Callable[[str, Mapping[str, str]], Any]
_PREFIXES: Final = ("sqlite:////", "sqlite+pysqlite:////")
_CONNECTIONS_MAX: Final = 8  # connections of one process


@dataclass
class _Looking:
    """A connection to one file, and the last look over it.

    Attributes:
        file: what tells the file from another one of its name.
        version: SQLite's number before that look.
    """

    connection: sqlite3.Connection
    file: tuple[int, int]
    lock: threading.Lock = field(default_factory=threading.Lock)
    version: int | None = None
    texts: PointerTexts | None = None

    def look(self, asked: Mapping[str, str]) -> PointerTexts:
        with self.lock:
            version = self._version()
            if self.texts is not None and self.version == version:
                return self.texts
            self.version, self.texts = version, texts_of_sqlite(self._ask, asked)
            return self.texts

    def close(self) -> None:
        with self.lock:
            self.connection.close()

    def _ask(self, query: str, parameters: Mapping[str, str]) -> Any:
        return self.connection.execute(query, parameters).fetchone()

    def _version(self) -> int:
        (number,) = self._ask("PRAGMA data_version", {})
        return int(number)


_Key: TypeAlias = tuple[Path, str]


class _Connections:
    """The connections of this process; those that it has been forked with are never used, nor closed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looking: dict[_Key, _Looking] = {}
        self._not_ours: list[dict[_Key, _Looking]] = []
        os.register_at_fork(after_in_child=self._leave)

    def looking(self, path: Path, catalog: str) -> _Looking:
        """The connection to a file.

        Raises:
            OSError: there is no such file.
            sqlite3.Error: it cannot be opened.
        """
        status = path.stat()
        file, key = (status.st_dev, status.st_ino), (path, catalog)
        with self._lock:
            looking = self._looking.pop(key, None)
            if looking is not None and looking.file != file:
                looking.close()
                looking = None
            self._looking[key] = looking = looking or _Looking(_connect(path), file)
            if len(self._looking) > _CONNECTIONS_MAX:
                self._looking.pop(next(iter(self._looking))).close()
            return looking

    def forget(self, path: Path, catalog: str) -> None:
        """Close the connection to a file, if there is one."""
        with self._lock:
            if (looking := self._looking.pop((path, catalog), None)) is not None:
                looking.close()

    def _leave(self) -> None:
        self._not_ours.append(self._looking)
        self._looking, self._lock = {}, threading.Lock()


_connections = _Connections()


def texts_of_file(lake: LakeSettings) -> PointerTexts | None:
    """Return the pointers of all tables, read again if anything in the file has changed.

    Returns:
        The pointers; None if the catalog is not a plain SQLite file that can be read.
    """
    prefix = next((each for each in _PREFIXES if lake.uri.startswith(each)), None)
    if prefix is None or "?" in lake.uri:
        return None
    path = Path("/") / lake.uri.removeprefix(prefix)
    try:
        return _connections.looking(path, lake.catalog).look(asked_of(lake))
    except (sqlite3.Error, OSError):
        _connections.forget(path, lake.catalog)
        return None


def texts_of_sqlite(ask: Asking, asked: Mapping[str, str]) -> PointerTexts:
    """Read the pointers of all tables.

    Args:
        asked: as `asked_of` gives it.
    """
    row = ask(ALL_TEXTS_OF_SQLITE, asked)
    if row is None:  # something else is in the file, too
        row = ask(TEXTS_OF_SQLITE, asked)
    return PointerTexts(*row)


def asked_of(lake: LakeSettings) -> dict[str, str]:
    """Return what these queries ask for: the catalog, and the property that marks namespaces of views."""
    return {"catalog": lake.catalog, "owner": OWNER}


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:{quote(str(path))}?mode=ro", uri=True, timeout=SQLITE_BUSY_SECONDS, check_same_thread=False
    )
