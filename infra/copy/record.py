"""The record of an initial copy on disk, range by range, so that one that was cut off is continued.

One line of JSON is appended, and fsynced, when a table's ranges are fixed and when a range's files are whole
and on disk:

    {"table": oid, "fingerprint": text, "partitions": text, "parts": [part…]}   begins the table again
    {"table": oid, "more": [part…], "partitions": text}         partitions that joined
    {"table": oid, "part": number, "files": [{name, rows, bytes, exact, received, sha256}…]}

Where several machines make the copy, the last kind of line is a note of its own (`infra.copy.ranges`), and
the first kind has a text "beginning" by which these notes know that they are of these ranges.

Invariant: a range that has a line here is whole; a line that a crash tore is no line.  The files are compared
with their digests before anything is built on them.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.changelog.batches import sha256_of
from slotlake.decoder.copy.files import CopiedFile
from slotlake.decoder.copy.parts import Part
from slotlake.decoder.copy.table import CopyJob
from slotlake.decoder.errors import ChangeLogError
from slotlake.infra.copy.ranges import DoneRanges
from slotlake.infra.state.notes import shared_place

if TYPE_CHECKING:
    from slotlake.spark.publish.place import CopyTarget
    from slotlake.spark.tables.schema import TableSchema

_RANGES = "ranges.jsonl"
_DONE = "done"


@dataclass(frozen=True)
class Recorded:
    """A table as it was recorded.

    Attributes:
        fingerprint: what its files depend on.
        partitions: as `TableSchema.partitions`.
        parts: its ranges.
        files: number of a range that is done → its files, as recorded.
        beginning: another text each time that the table was begun, if several machines make the copy.
    """

    fingerprint: str
    partitions: str
    parts: tuple[Part, ...]
    files: dict[int, list[Mapping[str, Any]]] = field(default_factory=dict)
    beginning: str = ""

    @property
    def names(self) -> set[str]:
        """The names of all its files."""
        return {str(file["name"]) for files in self.files.values() for file in files}

    def whole(
        self, directory: Path, delivered: Mapping[str, int] | None = None
    ) -> dict[int, list[CopiedFile]]:
        """The ranges whose files are those that were written.

        Args:
            directory: where the files were written.
            delivered: name → bytes of the files in an object store, if that is where they are by now; an
                object does not change.
        """
        return {
            number: [recorded_file(directory, file) for file in files]
            for number, files in self.files.items()
            if all(_intact(directory / str(file["name"]), file, delivered) for file in files)
        }


@dataclass
class TableWork:
    """What is to be done for one table.

    Attributes:
        fingerprint: what its files depend on (`fingerprint`).
        parts: its ranges.
        done: number of a range → its files, if they are there.
        stale_keys: keys whose rows in these files are read again; None when all is read now.
        jobs: what is still to be read.
        reread_files: files with the rows of the stale keys.
    """

    table: SourceTable
    schema: TableSchema
    target: CopyTarget
    fingerprint: str
    parts: list[Part] = field(default_factory=list)
    done: dict[int, list[CopiedFile]] = field(default_factory=dict)
    stale_keys: pa.Table | None = None
    jobs: list[CopyJob] = field(default_factory=list)
    reread_files: list[CopiedFile] = field(default_factory=list)

    @property
    def files(self) -> list[CopiedFile]:
        """All files of the table."""
        return [file for number in sorted(self.done) for file in self.done[number]] + self.reread_files

    @property
    def names(self) -> set[str]:
        """The names of the files of its ranges."""
        return {file.path.name for files in self.done.values() for file in files}

    @property
    def is_whole(self) -> bool:
        """Whether all its ranges are done."""
        return len(self.done) == len(self.parts)


class CopyRecord:
    """The record in a folder, which is made when something is written to it.

    Args:
        folder: of the record.
        shared: whether several machines may make the copy.

    Attributes:
        ranges: what each of them notes of a range that it has copied; None if one machine makes the copy.
    """

    def __init__(self, folder: Path, *, shared: bool = False) -> None:
        self.folder = folder
        self.ranges = DoneRanges(folder / _DONE) if shared else None
        self._lock = threading.Lock()
        self._end: int | None = None

    @property
    def tables(self) -> dict[int, Recorded]:
        """The tables recorded, by OID."""
        tables = self.planned
        if self.ranges is not None:
            done = self.ranges.look()
            for table in tables.values():
                noted = self.ranges.entries(table.beginning, done.get(table.beginning, ()))
                table.files.update({part: entry["files"] for part, entry in noted.items()})
        return tables

    @property
    def planned(self) -> dict[int, Recorded]:
        """The tables recorded, by OID, with those of their files that lines name."""
        tables: dict[int, Recorded] = {}
        for line in self._lines():
            oid = line["table"]
            if "part" in line:
                tables[oid].files[line["part"]] = line["files"]
                continue
            parts = tuple(Part(**part) for part in line["more" if "more" in line else "parts"])
            if "more" in line:
                parts = (*tables[oid].parts, *parts)
                tables[oid] = replace(tables[oid], partitions=line["partitions"], parts=parts)
            else:
                beginning = line.get("beginning", str(oid))
                tables[oid] = Recorded(line["fingerprint"], line["partitions"], parts, beginning=beginning)
        return tables

    @property
    def started(self) -> bool:
        """Return whether a range is done."""
        return any(table.files for table in self.tables.values())

    def begin(self, table: int, fingerprint: str, partitions: str, parts: Sequence[Part]) -> None:
        """Record that a table is copied in these ranges, none of which is done.

        Args:
            table: OID of the source table.
            fingerprint: what its files depend on.
            partitions: as `TableSchema.partitions`.
        """
        fields = {"fingerprint": fingerprint, "partitions": partitions}
        if self.ranges is not None:
            fields["beginning"] = secrets.token_hex(4)
        self._append({"table": table, **fields, "parts": [part.as_dict() for part in parts]})

    def extend(self, table: int, partitions: str, parts: Sequence[Part]) -> None:
        """Record partitions that have joined a table since.

        Args:
            table: OID of the source table.
            partitions: as `TableSchema.partitions`, with the new ones.
        """
        self._append({"table": table, "partitions": partitions, "more": [part.as_dict() for part in parts]})

    def done(
        self,
        table: int,
        part: int,
        files: Iterable[CopiedFile],
        deliver: Callable[[], None] = lambda: None,
    ) -> None:
        """Record that a range's files are whole and where they are to be.

        Args:
            table: OID of the source table.
            part: number of the range.
            files: its files, on disk.
            deliver: called before they are recorded; brings them to an object store.
        """
        entries = [_entry(file) for file in files]
        deliver()
        self._append({"table": table, "part": part, "files": entries})

    def forget(self) -> None:
        """Remove the record: the copy is published, or given up."""
        if (place := shared_place(self.folder)) is not None:
            place[0].remove_folder(place[1])
        else:
            shutil.rmtree(self.folder, ignore_errors=True)
        self._end = None

    def _lines(self) -> list[dict[str, Any]]:
        if (place := shared_place(self.folder / _RANGES)) is not None:
            written = place[0].lines(place[1])
        else:
            try:
                written = (self.folder / _RANGES).read_bytes()
            except FileNotFoundError:
                return []
        return [json.loads(line) for line in written[: written.rfind(b"\n") + 1].splitlines()]

    def _append(self, line: Mapping[str, Any]) -> None:
        text = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            if (place := shared_place(self.folder / _RANGES)) is not None:
                place[0].append(place[1], text)
                return
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                handle = os.open(self.folder / _RANGES, os.O_RDWR | os.O_CREAT, 0o644)
                try:
                    end = _whole_bytes(handle) if self._end is None else self._end
                    os.pwrite(handle, text, end)
                    os.fsync(handle)
                    self._end = end + len(text)
                finally:
                    os.close(handle)
            except OSError as error:
                raise ChangeLogError(
                    f"what is copied cannot be recorded: {error.strerror}",
                    where=str(self.folder),
                    way_out="free the disk (or correct its permissions), then run the same command again",
                ) from None


def range_note(table: int, part: int, files: Iterable[CopiedFile]) -> dict[str, Any]:
    """Return what this machine notes of a range that it has copied for several.

    Args:
        table: OID of the source table.
        part: number of the range.
        files: its files, still on this machine.
    """
    return {
        "table": table,
        "part": part,
        "files": [_entry(file) for file in files],
        "machine": socket.gethostname(),
    }


def _whole_bytes(handle: int) -> int:
    """Return where the last whole line ends, and remove what a crash tore behind it."""
    size = os.fstat(handle).st_size
    end = os.pread(handle, size, 0).rfind(b"\n") + 1
    if end < size:
        os.ftruncate(handle, end)
    return end


def _entry(file: CopiedFile) -> dict[str, Any]:
    return {
        "name": file.path.name,
        "rows": file.rows,
        "bytes": file.bytes,
        "exact": list(file.exact),
        "lossy": list(file.lossy),
        "received": file.received,
        "sha256": sha256_of(file.path),
    }


def recorded_file(directory: Path, file: Mapping[str, Any]) -> CopiedFile:
    """The file that a line of the record describes."""
    return CopiedFile(
        directory / file["name"],
        int(file["rows"]),
        int(file["bytes"]),
        tuple(file["exact"]),
        int(file.get("received", 0)),
        tuple(file.get("lossy", file["exact"])),
    )


def _intact(path: Path, file: Mapping[str, Any], delivered: Mapping[str, int] | None) -> bool:
    if delivered is not None:
        return delivered.get(path.name) == int(file["bytes"])
    return path.is_file() and path.stat().st_size == file["bytes"] and sha256_of(path) == file["sha256"]
