"""Iceberg table metadata as JSON, and the few ways in which this project moves it on.

Spark writes all data and makes all snapshots.  What it cannot do is to move several tables at once,
so the last step is done here: the next metadata file of each table is the present one with a
reference moved and the two logs appended (Iceberg table spec, "Table Metadata Fields", "Snapshot
References"), and all pointers to them are then swapped in one catalog transaction (spark/catalog/open.py).

Functions take and return plain dicts and never change their argument.
"""

from __future__ import annotations

import gzip
import json
import threading
import time
import uuid
import zlib
from collections import OrderedDict
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath
from typing import Any

from slotlake.decoder.errors import LAKE_ALTERED, LakeError
from slotlake.decoder.lsn import parse_lsn
from slotlake.spark import lake_files
from slotlake.spark.storage.location import Location

Metadata = dict[str, Any]

MAIN, STAGE = "main", "stage"
LSN = "slotlake.lsn"
_PREVIOUS_VERSIONS_MAX = "write.metadata.previous-versions-max"
_PREVIOUS_VERSIONS_DEFAULT = 100
_CLOCKS_APART_MS = 30_000
# Parsed they take several times as much.
_RECENT_BYTES_MAX = 16 * 1024 * 1024
# Room for 10,000 tables: every batch looks at all of them in turn; with room for fewer none would be there.
_RECENT_TOPS_BYTES_MAX = 192 * 1024 * 1024
_RECENT_TOPS_OF_A_TABLE = 2
_READ_AT_ONCE = 8
_TOP_BYTES = 2048  # about, beside its properties


class _Recent:
    """Metadata files read lately, by location: a file of this kind is never changed once it is there.

    Of a thousand tables a batch changes ten, and all of them are looked at several times in it.
    """

    def __init__(self, bytes_max: int, of_a_table: int | None = None) -> None:
        self._bytes_max = bytes_max
        self._of_a_table = of_a_table
        self._tables: dict[str, list[str]] = {}
        self._found: OrderedDict[str, tuple[Metadata, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, location: str) -> Metadata | None:
        with self._lock:
            if location not in self._found:
                return None
            self._found.move_to_end(location)
            return self._found[location][0]

    def put(self, location: str, metadata: Metadata, size: int) -> None:
        with self._lock:
            if location not in self._found:
                self._found[location] = metadata, size
                self._bytes += size
                self._remove_older(location)
            while self._bytes > self._bytes_max:
                self._bytes -= self._found.popitem(last=False)[1][1]

    def _remove_older(self, location: str) -> None:
        """Let go of a table's older files: nobody asks for them again, and their room is others'."""
        if self._of_a_table is None:
            return
        files = self._tables.setdefault(location.rpartition("/")[0], [])
        if location not in files:
            files.append(location)
        while len(files) > self._of_a_table:
            _, size = self._found.pop(files.pop(0), (None, 0))
            self._bytes -= size


_recent = _Recent(_RECENT_BYTES_MAX)
_recent_tops = _Recent(_RECENT_TOPS_BYTES_MAX, _RECENT_TOPS_OF_A_TABLE)


def load(location: str) -> Metadata:
    """Read a metadata file, compressed or not. What is returned may be another caller's too.

    Raises:
        LakeError: it cannot be read, or is no table metadata.
    """
    cached = _recent.get(location)
    if cached is not None:
        return cached
    content = lake_files.read(location)
    metadata = _parsed(content, location)
    _recent.put(location, metadata, len(content))
    return metadata


def remember(location: str, metadata: Metadata, size: int) -> None:
    """Keep metadata that a server has sent, so that its file is not read.

    Args:
        size: about how many bytes it has.
    """
    _recent.put(location, metadata, size)


def load_top(location: str) -> Metadata:
    """As :func:`load`, but of main only what lies down to the snapshot that its newest point made of it.

    The properties are there, and the reference ``main``; no schemas, no other references.  A batch looks at
    this much of every table; the whole is a hundred times as much where a hundred points are kept.

    Raises:
        LakeError: as :func:`load`.
    """
    cached = _recent_tops.get(location)
    if cached is not None:
        return cached
    metadata = load(location)
    chain = ancestry(metadata)
    above = next((i for i, snapshot in enumerate(chain) if LSN in summary(snapshot)), len(chain) - 1)
    main = ref(metadata, MAIN)
    top = {
        "format-version": metadata["format-version"],
        "properties": metadata.get("properties", {}),
        "current-snapshot-id": main,
        "refs": {} if main is None else {MAIN: {"snapshot-id": main, "type": "branch"}},
        "snapshots": chain[: above + 1],
    }
    size = _TOP_BYTES * (1 + above) + sum(len(value) for value in top["properties"].values())
    _recent_tops.put(location, top, size)
    return top


def read_ahead(locations: Iterable[str], *, whole: bool = False) -> None:
    """Read the tops of many tables that are not remembered; several at a time, if they are in a store.

    A process that has just begun remembers none, and each is a request that mostly waits.

    Args:
        whole: read all of each file, for those who are about to :func:`load` it.

    Raises:
        LakeError: as :func:`load`.
    """
    unread = [each for each in locations if _recent.get(each) is None]
    if not whole:
        unread = [each for each in unread if _recent_tops.get(each) is None]
    if len(unread) > 1 and Location(unread[0]).is_in_bucket:
        with ThreadPoolExecutor(_READ_AT_ONCE) as pool:
            for _ in pool.map(load if whole else load_top, unread):
                pass


def _parsed(content: bytes, location: str) -> Metadata:
    try:
        metadata = json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise LakeError("a table's metadata file is damaged", where=location, way_out=LAKE_ALTERED) from error
    if not isinstance(metadata, dict) or "format-version" not in metadata:
        raise LakeError("a table's metadata file is damaged", where=location, way_out=LAKE_ALTERED)
    return metadata


def snapshot(metadata: Metadata, snapshot_id: int | None) -> Metadata | None:
    """A snapshot by id."""
    matching = (s for s in metadata.get("snapshots", ()) if s["snapshot-id"] == snapshot_id)
    return next(matching, None)


def ref(metadata: Metadata, name: str) -> int | None:
    """The snapshot id a branch points at."""
    entry = metadata.get("refs", {}).get(name)
    if entry is not None:
        return int(entry["snapshot-id"])
    current = metadata.get("current-snapshot-id")
    return int(current) if name == MAIN and current not in (None, -1) else None


def head(metadata: Metadata, name: str = MAIN) -> Metadata | None:
    """The snapshot a branch points at."""
    return snapshot(metadata, ref(metadata, name))


def is_staged(metadata: Metadata) -> bool:
    """Return whether something is staged that is not published.

    What was published last stays in ``stage``; a compaction may have moved main on since.
    """
    staged = ref(metadata, STAGE)
    return staged is not None and all(s["snapshot-id"] != staged for s in ancestry(metadata))


def ancestry(metadata: Metadata, name: str = MAIN) -> list[Metadata]:
    """The snapshots of a branch, newest first."""
    by_id = {s["snapshot-id"]: s for s in metadata.get("snapshots", ())}
    chain = []
    current = by_id.get(ref(metadata, name))
    while current is not None:
        chain.append(current)
        current = by_id.get(current.get("parent-snapshot-id"))
    return chain


def summary(of: Metadata | None) -> dict[str, str]:
    """A snapshot's summary; empty if there is no snapshot."""
    return dict(of.get("summary", {})) if of else {}


def live_rows(snapshot: Metadata | None) -> int | None:
    """How many rows a snapshot shows, by its totals; None if it has none."""
    totals = summary(snapshot)
    if "total-records" not in totals:
        return None
    return int(totals["total-records"]) - int(totals.get("total-position-deletes", 0))


def newest_of_a_point(metadata: Metadata) -> Metadata | None:
    """The snapshot of the point that last changed a table; a compaction may lie on top of it."""
    return next((s for s in ancestry(metadata) if LSN in summary(s)), None)


def newest_position(metadata: Metadata) -> int | None:
    """The position of the point that last changed a table; None if no point has."""
    newest = newest_of_a_point(metadata)
    return parse_lsn(summary(newest)[LSN]) if newest else None


def with_ref(metadata: Metadata, name: str, snapshot_id: int | None) -> Metadata:
    """Return the metadata with a branch at another snapshot; moving main is logged, and makes it current.

    Args:
        snapshot_id: the snapshot; None drops the branch.
    """
    refs = dict(metadata.get("refs", {}))
    if snapshot_id is None:
        refs.pop(name, None)
        return {**metadata, "refs": refs}
    refs[name] = {**refs.get(name, {"type": "branch"}), "snapshot-id": snapshot_id}
    moved = {**metadata, "refs": refs}
    if name == MAIN and metadata.get("current-snapshot-id") != snapshot_id:
        now = _now_ms(metadata)
        moved["current-snapshot-id"] = snapshot_id
        moved["last-updated-ms"] = now
        moved["snapshot-log"] = [
            *metadata.get("snapshot-log", []),
            {"snapshot-id": snapshot_id, "timestamp-ms": now},
        ]
    return moved


def with_properties(metadata: Metadata, properties: dict[str, str | None]) -> Metadata:
    """Set table properties; None drops one."""
    merged = {**metadata.get("properties", {}), **properties}
    return {**metadata, "properties": {k: v for k, v in merged.items() if v is not None}}


def with_summary(metadata: Metadata, snapshot_id: int, entries: dict[str, str]) -> Metadata:
    """Add entries to a snapshot's summary, for snapshots made by procedures that take none."""
    changed = [
        {**s, "summary": {**s.get("summary", {}), **entries}} if s["snapshot-id"] == snapshot_id else s
        for s in metadata["snapshots"]
    ]
    return {**metadata, "snapshots": changed}


def without_unreferenced(metadata: Metadata, also: Collection[int] = ()) -> Metadata:
    """Drop the snapshots that no branch's head and no tag is, nor one of ``also``; their files stay.

    Also the history before the newest of those dropped, as Iceberg does: a history with gaps would say that
    a snapshot was current while another was.
    """
    referenced = {ref["snapshot-id"] for ref in metadata.get("refs", {}).values()}
    referenced |= {metadata.get("current-snapshot-id"), *also}
    logged: list[Any] = []
    for entry in metadata.get("snapshot-log", []):
        logged = [*logged, entry] if entry["snapshot-id"] in referenced else []
    snapshots = [s for s in metadata.get("snapshots", ()) if s["snapshot-id"] in referenced]
    return {**metadata, "snapshots": snapshots, "snapshot-log": logged}


def write_next(metadata: Metadata, present: str) -> str:
    """Write metadata as the version after the one at ``present``; nobody sees it before the swap.

    Returns:
        The new file's location.
    """
    logged = [
        *metadata.get("metadata-log", []),
        {"metadata-file": present, "timestamp-ms": metadata["last-updated-ms"]},
    ]
    keep = int(metadata.get("properties", {}).get(_PREVIOUS_VERSIONS_MAX, _PREVIOUS_VERSIONS_DEFAULT))
    following = {**metadata, "metadata-log": logged[-keep:], "last-updated-ms": _now_ms(metadata)}
    location = _next_location(present)
    lake_files.write_new(location, json.dumps(following, separators=(",", ":"), ensure_ascii=False).encode())
    return location


def _next_location(present: str) -> str:
    """``…/metadata/00007-<uuid>.metadata.json`` → ``…/metadata/00008-<uuid>.metadata.json``."""
    folder, _, name = present.rpartition("/")
    version = PurePosixPath(name).name.split("-", 1)[0]
    number = int(version) if version.isdigit() else 0
    return f"{folder}/{number + 1:05d}-{uuid.uuid4()}.metadata.json"


def in_present(metadata: Metadata) -> Metadata:
    """Return the metadata without times that this machine's clock is more than half a minute behind.

    A clock that was ahead left them.  Iceberg's Java refuses a change that is a minute older than the last
    one, so Spark could change the table again only when the clock has come there.
    """
    now = int(time.time() * 1000)
    if metadata["last-updated-ms"] <= now + _CLOCKS_APART_MS:
        return metadata
    logs = ("snapshots", "snapshot-log", "metadata-log")
    past = {
        log: [{**each, "timestamp-ms": min(each["timestamp-ms"], now)} for each in metadata[log]]
        for log in logs
        if log in metadata
    }
    return {**metadata, **past, "last-updated-ms": now}


def _now_ms(metadata: Metadata) -> int:
    # Iceberg refuses a log that goes back in time, as a clock set back would make it.
    logged = [entry["timestamp-ms"] for entry in metadata.get("snapshot-log", [])[-1:]]
    return int(max(time.time() * 1000, metadata["last-updated-ms"], *logged))
