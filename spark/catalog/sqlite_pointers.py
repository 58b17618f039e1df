"""The pointers of all tables in a SQLite catalog, without SQLAlchemy and pyiceberg.

Those take half a second to import, which is most of what a small question takes.  Anything unusual (no such
file, another driver, a locked database) is left to `open_catalog`, which names what is wrong.

A sync looks six times, and only two of the looks find what is new.  SQLite says in the first bytes of the
file how often it has been changed (its file format: the file change counter), so a look reads these first.

Invariant: pointers are remembered only if the counter was the same before and after they were read, under
SQLite's own lock.  A writer that is killed leaves a counter that nobody remembers: SQLite rolls it back
before it answers.  With a write-ahead log the counter stands still, so nothing is remembered then.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from slotlake.spark.catalog.pointer_texts import TEXTS_OF_SQLITE, PointerTexts
from slotlake.spark.lake import SQLITE_BUSY_SECONDS, LakeSettings

_PREFIXES = ("sqlite:////", "sqlite+pysqlite:////")
_MAGIC = b"SQLite format 3\0"
_VERSIONS, _COUNTER = slice(18, 20), slice(24, 28)
_WITHOUT_WAL = b"\1\1"
_HEADER_BYTES = 28

_Stamp = tuple[int, int, bytes]
_remembered: dict[tuple[Path, str], tuple[_Stamp, PointerTexts]] = {}


def sqlite_pointers(lake: LakeSettings) -> PointerTexts | None:
    """Return all pointers as one look shows them; None if this is not a plain SQLite file that can be read.

    Args:
        lake: the lake.
    """
    prefix = next((each for each in _PREFIXES if lake.uri.startswith(each)), None)
    if prefix is None or "?" in lake.uri:
        return None
    path = Path("/") / lake.uri.removeprefix(prefix)
    stamp = _stamp(path)
    key = path, lake.catalog
    remembered = _remembered.get(key)
    if remembered is not None and remembered[0] == stamp:
        return remembered[1]
    try:
        with closing(
            sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=SQLITE_BUSY_SECONDS)
        ) as connection:
            texts = PointerTexts(*connection.execute(TEXTS_OF_SQLITE, {"catalog": lake.catalog}).fetchone())
    except sqlite3.Error:
        return None
    if stamp is not None and _stamp(path) == stamp:
        _remembered[key] = stamp, texts
    return texts


def _stamp(path: Path) -> _Stamp | None:
    """Which file this is and how often it was changed; None if SQLite does not count that."""
    try:
        with path.open("rb", buffering=0) as file:
            header = file.read(_HEADER_BYTES)
            status = path.stat()
    except OSError:
        return None
    counts = header.startswith(_MAGIC) and header[_VERSIONS] == _WITHOUT_WAL
    return (status.st_dev, status.st_ino, header[_COUNTER]) if counts else None
