"""Reads a table's files as Iceberg's specification says, by DuckDB's Avro reader, Arrow and pyroaring.

Nothing here is slotlake's, and nothing is what slotlake writes with, but for Arrow's Parquet reader.
"""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap

Json = dict[str, Any]
EXISTING, ADDED, DELETED = 0, 1, 2
DATA, POSITION_DELETES = 0, 1
ROW_ID, LAST_UPDATED, FILE_PATH, POSITION = 2147483540, 2147483539, 2147483546, 2147483545
_DV_MAGIC: Final = b"\xd1\xd3\x39\x64"


@dataclass(frozen=True)
class Entry:
    """A file as a manifest lists it, with what it inherits.

    Attributes:
        file: the struct `data_file`.
        sequence_number: of its data.
        first_row_id: of its first row; None in format 2.
    """

    status: int
    snapshot_id: int
    sequence_number: int
    file_sequence_number: int
    first_row_id: int | None
    file: Json
    manifest: Json

    @property
    def path(self) -> str:
        return str(self.file["file_path"])

    @property
    def rows(self) -> int:
        return int(self.file["record_count"])


@dataclass
class Snapshot:
    """A snapshot with all that its manifests list."""

    json: Json
    manifests: list[Json] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)

    @cached_property
    def data(self) -> dict[str, Entry]:
        """The live data files."""
        return {e.path: e for e in self.entries if e.status != DELETED and e.file["content"] == DATA}

    @cached_property
    def deletes(self) -> list[Entry]:
        """The live delete files and deletion vectors."""
        return [e for e in self.entries if e.status != DELETED and e.file["content"] != DATA]


class LakeFiles:
    """The files of one lake.

    Args:
        place: a location → where that file is on this machine's disk.
        duckdb: a connection that has the extension `avro`.
    """

    def __init__(self, place: Callable[[str], Path], duckdb: Any) -> None:
        self._place, self._duckdb = place, duckdb
        self._read: dict[str, list[Json]] = {}
        self._tables: dict[str, pa.Table] = {}

    def path(self, location: str) -> Path:
        return self._place(location)

    def metadata(self, location: str) -> Json:
        """A metadata file."""
        content = self._place(location).read_bytes()
        text = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        made: Json = json.loads(text)
        return made

    def snapshot(self, metadata: Json, snapshot: Json) -> Snapshot:
        """A snapshot of a table, with its manifests and their entries."""
        made = Snapshot(snapshot, self._avro(snapshot["manifest-list"]))
        for manifest in made.manifests:
            made.entries += self._entries(metadata, manifest)
        return made

    def _entries(self, metadata: Json, manifest: Json) -> Iterator[Entry]:
        next_row = manifest.get("first_row_id")
        for raw in self._avro(manifest["manifest_path"]):
            file = raw["data_file"]
            number, of_file = raw["sequence_number"], raw["file_sequence_number"]
            first = file.get("first_row_id")
            if (
                first is None
                and next_row is not None
                and file["content"] == DATA
                and raw["status"] != DELETED
            ):
                first, next_row = next_row, next_row + file["record_count"]
            yield Entry(
                raw["status"],
                manifest["added_snapshot_id"] if raw["snapshot_id"] is None else raw["snapshot_id"],
                manifest["sequence_number"] if number is None else number,
                manifest["sequence_number"] if of_file is None else of_file,
                first,
                file,
                manifest,
            )

    def _avro(self, location: str) -> list[Json]:
        """The records of a file, which never changes: it is read once."""
        if location not in self._read:
            path = str(self._place(location)).replace("'", "''")
            self._read[location] = (
                self._duckdb.execute(f"SELECT * FROM read_avro('{path}')").to_arrow_table().to_pylist()
            )
        return self._read[location]

    def rows_of(self, location: str) -> pa.Table:
        """A Parquet file, its columns named by their field ids (those of structs stay as they are)."""
        if location not in self._tables:
            table = pq.read_table(self._place(location), partitioning=None)
            self._tables[location] = table.rename_columns([str(field_id(f)) for f in table.schema])
        return self._tables[location]

    def deleted(self, snapshot: Snapshot) -> dict[str, npt.NDArray[np.int64]]:
        """Data file → the positions that delete files of the snapshot say of it, ascending."""
        found: dict[str, list[npt.NDArray[np.int64]]] = {}
        for entry in snapshot.deletes:
            for path, positions in self.positions(entry).items():
                data = snapshot.data.get(path)
                if data is not None and data.sequence_number <= entry.sequence_number:
                    found.setdefault(path, []).append(positions)
        return {path: np.unique(np.concatenate(parts)) for path, parts in found.items()}

    def positions(self, entry: Entry) -> dict[str, npt.NDArray[np.int64]]:
        """What one delete file says."""
        if str(entry.file["file_format"]).upper() == "PUFFIN":
            with self._place(entry.path).open("rb") as file:
                file.seek(entry.file["content_offset"])
                blob = file.read(entry.file["content_size_in_bytes"])
            return {entry.file["referenced_data_file"]: vector(blob)}
        rows = self.rows_of(entry.path)
        paths, positions = rows[str(FILE_PATH)].to_numpy(), rows[str(POSITION)].to_numpy()
        return {str(path): positions[paths == path] for path in np.unique(paths.astype(str))}

    def live_rows(self, snapshot: Snapshot) -> Iterator[tuple[Entry, pa.Table]]:
        """Each live data file with the rows that are not deleted, and their numbers (format 3)."""
        deleted = self.deleted(snapshot)
        for path, entry in snapshot.data.items():
            rows = self.rows_of(path)
            keep = np.ones(rows.num_rows, np.bool_)
            keep[deleted.get(path, np.empty(0, np.int64))] = False
            if entry.first_row_id is not None:
                rows = _numbered(rows, entry)
            yield entry, rows.filter(pa.array(keep))


def _numbered(rows: pa.Table, entry: Entry) -> pa.Table:
    """With each row's number and that of its last change: what the file has, else what it inherits."""
    assert entry.first_row_id is not None
    inherited = {
        str(ROW_ID): np.arange(rows.num_rows) + entry.first_row_id,
        str(LAST_UPDATED): np.full(rows.num_rows, entry.sequence_number),
    }
    for name, values in inherited.items():
        column = pa.chunked_array([pa.array(values, pa.int64())])
        if name in rows.column_names:
            own = rows[name].to_pylist()
            column = pa.chunked_array(
                [
                    pa.array(
                        [v if o is None else o for o, v in zip(own, values.tolist(), strict=True)], pa.int64()
                    )
                ]
            )
            rows = rows.set_column(rows.column_names.index(name), name, column)
        else:
            rows = rows.append_column(name, column)
    return rows


def field_id(of: pa.Field) -> int:
    """The field id of a Parquet column; -1 if it has none."""
    return int((of.metadata or {}).get(b"PARQUET:field_id", b"-1"))


def vector(blob: bytes) -> npt.NDArray[np.int64]:
    """A deletion vector (Puffin spec, "deletion-vector-v1"): the positions."""
    (size,) = struct.unpack(">i", blob[:4])
    assert blob[4:8] == _DV_MAGIC, "a deletion vector begins with another magic number"
    assert size == len(blob) - 8, "a deletion vector has another length than it says"
    (count,), at, parts = struct.unpack("<q", blob[8:16]), 16, []
    for _ in range(count):
        (high,) = struct.unpack("<i", blob[at : at + 4])
        bitmap = BitMap.deserialize(blob[at + 4 : -4])
        at += 4 + len(bitmap.serialize())
        parts.append(np.array(bitmap, np.int64) + (high << 32))
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def schema_of(metadata: Json, number: int | None = None) -> Json:
    """A schema of a table, the current one if none is named."""
    wanted = metadata["current-schema-id"] if number is None else number
    found: Json = next(s for s in metadata["schemas"] if s["schema-id"] == wanted)
    return found


def snapshots_in_use(metadata: Json) -> Sequence[Json]:
    """The snapshots that a branch or a tag names."""
    named: Mapping[str, Json] = metadata.get("refs", {})
    wanted = {ref["snapshot-id"] for ref in named.values()}
    return [s for s in metadata.get("snapshots", ()) if s["snapshot-id"] in wanted]


def as_map(pairs: Any) -> dict[int, Any]:
    """A map of Avro, whichever way DuckDB gives it."""
    if isinstance(pairs, Mapping):
        return {int(key): value for key, value in pairs.items()}
    if pairs and isinstance(pairs[0], tuple):
        return dict(pairs)
    return {int(pair["key"]): pair["value"] for pair in pairs or ()}
