"""The change log on disk: batches as directories that exist whole or not at all, and their reader.

A batch ``<start>-<end>`` (16 upper-case hex digits each) has exactly the transactions whose commit
record starts at ``start`` or later and before ``end``:

    manifest.json          describes the batch: identity of the source, positions, relations, digests
    transactions.parquet   one row per transaction that is not empty, in commit order
    messages.parquet       logical messages, if there are any
    r<n>.<part>.parquet    row changes of relation version n

A RELATION VERSION MAY HAVE SEVERAL FILES ("files" in the manifest).  Optional columns (old values,
"unchanged" flags, exact texts) appear only if a row needs them, and a file's first rows decide its
columns; if a later row needs one more, a further part begins.  `Batch.relation_table` hides
this: it returns one table with the union of the columns.

Invariant: a batch is written under ``.incoming-<machine>-<pid>-<start time of the process>-…``, every file
and directory is fsynced, then it is renamed.  A reader trusts a name only with a manifest that matches
it; `Batch.verify` checks every byte against the digests.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from slotlake.decoder.changelog.pieces import bytes_in_memory, row_groups, rows_between
from slotlake.decoder.errors import ChangeLogError
from slotlake.decoder.lsn import format_lsn, parse_lsn

FORMAT = 1
MANIFEST = "manifest.json"
TRANSACTIONS = "transactions.parquet"
MESSAGES = "messages.parquet"
_NAME = re.compile(r"^([0-9A-F]{16})-([0-9A-F]{16})$")


@dataclass(frozen=True)
class BatchColumn:
    """A column of a relation version; ``in_key``: part of the replica identity."""

    name: str
    type_oid: int
    typmod: int
    type_name: str
    in_key: bool


@dataclass(frozen=True)
class BatchRelation:
    """One relation version of a batch.

    Attributes:
        ordinal: its number in the batch, in order of first appearance.
        key: columns that identify a row: primary key, else those of the replica identity's index;
            under REPLICA IDENTITY USING INDEX always the index's; () if there are none.
        files: file names, in order; empty if the version was described but no row changed.
        rows: row changes, including one for each time that the table was truncated.
    """

    ordinal: int
    relation_id: int
    schema: str
    table: str
    replica_identity: str
    key: tuple[str, ...]
    columns: tuple[BatchColumn, ...]
    files: tuple[str, ...]
    rows: int
    inserts: int
    updates: int
    deletes: int
    truncates: int


class Batch:
    """A whole batch.

    Attributes:
        path: its directory (it does not exist for an `empty` batch, which has no length).
        manifest: the manifest as read.
        name, digest, start_lsn, end_lsn: as in the manifest; positions are integers.
        relations: the relation versions in order of first appearance.
    """

    def __init__(self, path: Path, manifest: Mapping[str, Any]) -> None:
        self.path = path
        self.manifest = manifest
        self.name = path.name
        self.digest = str(manifest["digest"])
        self.start_lsn = parse_lsn(manifest["start_lsn"])
        self.end_lsn = parse_lsn(manifest["end_lsn"])
        self.relations = tuple(_relation(entry) for entry in manifest["relations"])

    @classmethod
    def open(cls, path: Path) -> Batch:
        """Read a batch's manifest.

        Raises:
            ChangeLogError: no manifest, an unknown format, or the manifest of another batch.
        """
        try:
            manifest = json.loads((path / MANIFEST).read_text("utf-8"))
            if manifest["format"] != FORMAT:
                raise _unknown_format(path, manifest["format"])
            batch = cls(path, manifest)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _damaged(path, f"its manifest cannot be read ({type(error).__name__})") from None
        if batch_name(batch.start_lsn, batch.end_lsn) != path.name:
            raise _damaged(path, "its manifest belongs to another batch")
        return batch

    @property
    def empty(self) -> bool:
        """True if start and end are the same: there was nothing to pull."""
        return self.start_lsn == self.end_lsn

    @property
    def transactions(self) -> int:
        return int(self.manifest["transactions"])

    @property
    def unreadable(self) -> dict[tuple[str, str], tuple[str, str]]:
        """Tables with a value that could not be read; the batch lacks rows of them.

        (schema, table) → (what was wrong, where).
        """
        entries = self.manifest.get("unreadable", ())
        return {(each["schema"], each["table"]): (each["what"], each["where"]) for each in entries}

    @property
    def changes(self) -> int:
        return int(self.manifest["changes"])

    @property
    def bytes(self) -> int:
        """Size of the files, the manifest not counted."""
        return sum(int(file["bytes"]) for file in self.manifest["files"])

    def relation_table(self, relation: BatchRelation) -> pa.Table:
        """All row changes of one relation version, ordered by ``seq``.

        Columns: seq int64, op int8 ('I','U','D','T' as ASCII), txn int32, lsn int64, old int8, then
        n<i>, and o<i>, u<i>, xn<i>, xo<i> where a row needs them; i indexes ``relation.columns``.

        Raises:
            ChangeLogError: a file is missing or damaged, or has another number of rows.
        """
        parts = list(self.relation_parts(relation))
        table = pa.concat_tables(parts, promote_options="default") if parts else pa.table({})
        if table.num_rows != relation.rows:
            raise _damaged(
                self.path, f"{', '.join(relation.files)} have {table.num_rows} rows, not {relation.rows}"
            )
        return _ordered(table)

    def relation_parts(self, relation: BatchRelation) -> Iterator[pa.Table]:
        """The same row changes file by file, each with the file's own columns."""
        for name in relation.files:
            yield self._read(name)

    def relation_bytes(self, relation: BatchRelation) -> int:
        """About how many bytes `relation_table` would take; reads no row.

        Raises:
            ChangeLogError: a file is missing or damaged.
        """
        with self._reading(", ".join(relation.files)):
            return sum(bytes_in_memory(self.path / name) for name in relation.files)

    def relation_pieces(self, relation: BatchRelation) -> Iterator[pa.Table]:
        """The row changes of `relation_table` piece by piece, each with the columns of its file.

        Raises:
            ChangeLogError: a file is missing or damaged.
        """
        for name in relation.files:
            with self._reading(name):
                yield from row_groups(self.path / name)

    def distinct_texts(self, relation: BatchRelation, index: int) -> set[str]:
        """The texts of one text column in old and new rows; reads nothing else.

        Raises:
            ChangeLogError: a file is missing or damaged.
        """
        texts: set[str] = set()
        for name in relation.files:
            present = self._names(name).intersection((f"n{index}", f"o{index}"))
            for values in self._read(name, sorted(present)).columns if present else ():
                texts.update(pc.unique(values).drop_null().to_pylist())
        return texts

    def transaction_table(self) -> pa.Table:
        """xid, commit_lsn, end_lsn, commit_time, origin; row i is transaction number i."""
        return self._read(TRANSACTIONS)

    def transactions_between(self, first: int, last: int) -> pa.Table:
        """The rows ``first`` to ``last`` (without it) of `transaction_table`; reads little more than these.

        Raises:
            ChangeLogError: the file is missing or damaged.
        """
        with self._reading(TRANSACTIONS):
            return rows_between(self.path / TRANSACTIONS, first, last)

    def xids(self) -> pa.ChunkedArray:
        """The ids of its transactions, in commit order."""
        return self._read(TRANSACTIONS, ["xid"]).column(0)

    def message_table(self) -> pa.Table | None:
        """seq, txn, lsn, transactional, prefix, content; None if the batch has no messages."""
        return self._read(MESSAGES) if (self.path / MESSAGES).exists() else None

    def _read(self, name: str, columns: list[str] | None = None) -> pa.Table:
        with self._reading(name):
            return pq.read_table(self.path / name, columns=columns, memory_map=True, partitioning=None)

    def _names(self, name: str) -> set[str]:
        with self._reading(name):
            return set(pq.read_schema(self.path / name, memory_map=True).names)

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise _damaged(self.path, f"{name} cannot be read ({type(error).__name__})") from None

    def verify(self) -> None:
        """Compare every file with its digest.

        Raises:
            ChangeLogError: a file is missing, unknown or changed.
        """
        digests = {str(file["name"]): str(file["sha256"]) for file in self.manifest["files"]}
        if digest_of(digests) != self.digest:
            raise _damaged(self.path, "the manifest's digest does not match its list of files")
        if self.empty:
            return
        present = {entry.name for entry in self.path.iterdir()} - {MANIFEST}
        if present != digests.keys():
            names = ", ".join(sorted(present ^ digests.keys()))
            raise _damaged(self.path, f"these files are missing or unknown: {names}")
        for name, digest in digests.items():
            if sha256_of(self.path / name) != digest:
                raise _damaged(self.path, f"{name} was changed: its digest is another one")


def batch_name(start: int, end: int) -> str:
    """Directory name of the batch from ``start`` to ``end``."""
    return f"{start:016X}-{end:016X}"


def batch_positions(name: str) -> tuple[int, int] | None:
    """Start and end of a batch by its directory's name; None for anything else."""
    match = _NAME.match(name)
    return None if match is None else (int(match[1], 16), int(match[2], 16))


def batches(directory: Path) -> list[Path]:
    """All batches in a change log, by start and end."""
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if batch_positions(path.name) is not None)


def batch_starting_at(directory: Path, start: int, end: int | None = None) -> Batch | None:
    """Return the longest batch on disk that starts at a position; None if there is none.

    Args:
        start: an LSN.
        end: an LSN; only a batch that ends there counts.
    """
    paths = [path for path in batches(directory) if path.name.startswith(f"{start:016X}-")]
    if end is not None:
        paths = [path for path in paths if path.name == batch_name(start, end)]
    return Batch.open(paths[-1]) if paths else None


def digest_of(files: Mapping[str, str]) -> str:
    """The batch's digest: SHA-256 over the sorted lines ``<file name> <file's SHA-256>``."""
    lines = "".join(f"{name} {sha256}\n" for name, sha256 in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hex.

    Raises:
        ChangeLogError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _damaged(path.parent, f"{path.name} cannot be read ({error.strerror})") from None


def _relation(entry: Mapping[str, Any]) -> BatchRelation:
    numbers = ("rows", "inserts", "updates", "deletes", "truncates")
    return BatchRelation(
        ordinal=entry["ordinal"],
        relation_id=entry["relation_id"],
        schema=entry["schema"],
        table=entry["table"],
        replica_identity=entry["replica_identity"],
        key=tuple(entry["key"]),
        columns=tuple(BatchColumn(**column) for column in entry["columns"]),
        files=tuple(file["name"] for file in entry["files"]),
        **{name: int(entry[name]) for name in numbers},
    )


_GROUPS = {"n": 0, "o": 1, "u": 2, "xn": 3, "xo": 4}


def _ordered(table: pa.Table) -> pa.Table:
    """The table with its columns in their fixed order, because parts have optional columns in any order."""

    def rank(name: str) -> tuple[int, int]:
        group = name.rstrip("0123456789")
        return (_GROUPS[group], int(name[len(group) :])) if group in _GROUPS else (-1, 0)

    return table.select(sorted(table.column_names, key=rank)) if table.num_columns else table


def _damaged(path: Path, what: str) -> ChangeLogError:
    start = batch_positions(path.name)
    place = f" from {format_lsn(start[0])}" if start else ""
    return ChangeLogError(
        f"the change log batch{place} is damaged: {what}",
        where=str(path),
        way_out="if the lake does not have this batch yet, run `slotlake recover`: it moves the batch to "
        "another folder, and the slot still has its changes; else restore the batch's folder from a copy",
    )


def _unknown_format(path: Path, written: object) -> ChangeLogError:
    return ChangeLogError(
        f"the change log batch has format {written}, but this version of slotlake reads only format {FORMAT}",
        where=str(path),
        way_out="install the version of slotlake that wrote the batch, or a later one",
    )
