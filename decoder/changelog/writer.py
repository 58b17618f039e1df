"""Writes one change log batch: chunk by chunk; at the end the batch exists whole or not at all.

Owns the ``.incoming-…`` directory of a batch until it is renamed or removed.  Memory is limited to
one decoded chunk, whatever the size of a transaction: each chunk becomes a row group.

Invariant: after `finish` the batch has its final name and all of it is on disk (fsync before rename,
and of the directory after it); after `abandon`, or a crash and the next `remove_leftovers`, nothing
of it is left.  Every failure to write is a ChangeLogError.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from slotlake.decoder.changelog.batches import (
    FORMAT,
    MANIFEST,
    MESSAGES,
    TRANSACTIONS,
    Batch,
    batch_name,
    digest_of,
    sha256_of,
)
from slotlake.decoder.changelog.incoming import incoming_path, make_incoming, release_renamed
from slotlake.decoder.columnar.decoder import MESSAGES_SCHEMA, TRANSACTIONS_SCHEMA, DecodedChunk
from slotlake.decoder.compiled.arrays import integers
from slotlake.decoder.errors import ChangeLogError, ProtocolError
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.protocol.relations import RelationVersion

_SYNCED_TOGETHER = 8
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OPERATIONS = {"inserts": "I", "updates": "U", "deletes": "D", "truncates": "T"}
# A batch is written once and read once or twice soon: fast writing matters more than a small size.
_PARQUET: dict[str, Any] = {
    "compression": "lz4",
    "use_dictionary": False,
    "write_statistics": False,
    "store_schema": True,
}


@dataclass(frozen=True)
class BatchIdentity:
    """The source of a batch, for its manifest.

    Attributes:
        quiet: a position, and the transaction id below which all had ended before it; None if an older one
            was open.
    """

    pipeline: str
    system_identifier: str
    timeline: int
    database: str
    slot: str
    server_version: str
    quiet: tuple[int, str] | None = None


class _Parts:
    """The Parquet files of one table; a new part begins if a chunk has a column that the last part lacks."""

    def __init__(self, directory: Path, stem: str) -> None:
        self.files: list[str] = []
        self.rows = 0
        self._directory, self._stem = directory, stem
        self._writer: pq.ParquetWriter | None = None
        self._schema: pa.Schema | None = None

    def append(self, table: pa.Table) -> None:
        if self._writer is None or self._schema is None or not _has_columns(self._schema, table.schema):
            self._next_part(table.schema)
        assert self._writer is not None
        assert self._schema is not None
        self._writer.write_table(_with_columns(table, self._schema))
        self.rows += table.num_rows

    def _next_part(self, schema: pa.Schema) -> None:
        if self._schema is not None:
            # A column that was needed once is needed again: with all columns so far, there are few parts.
            schema = pa.unify_schemas([schema, self._schema])
        self.close()
        name = f"{self._stem}.{len(self.files)}.parquet"
        self.files.append(name)
        self._schema = schema
        self._writer = pq.ParquetWriter(self._directory / name, schema, **_PARQUET)

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


def _has_columns(schema: pa.Schema, needed: pa.Schema) -> bool:
    return set(needed.names) <= set(schema.names)


def _with_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    if table.schema.names == schema.names:
        return table
    missing = [name for name in schema.names if name not in set(table.schema.names)]
    for name in missing:
        table = table.append_column(name, pa.nulls(table.num_rows, schema.field(name).type))
    return table.select(schema.names)


@dataclass
class _Relation:
    version: RelationVersion
    parts: _Parts
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_OPERATIONS, 0))

    def append(self, table: pa.Table) -> None:
        self.parts.append(table)
        counts = np.bincount(integers(table["op"]), minlength=128)
        for name, letter in _OPERATIONS.items():
            self.counts[name] += int(counts[ord(letter)])


class BatchWriter:
    """A batch that is being written. Its methods raise ChangeLogError if the disk refuses to write."""

    def __init__(self, directory: Path, identity: BatchIdentity, start: int) -> None:
        self._identity, self._start = identity, start
        self._log = directory
        self._relations: dict[RelationVersion, _Relation] = {}
        self._messages: _Parts | None = None
        self._message_count = 0
        self._times: list[datetime] = []
        self._path = incoming_path(directory, secrets.token_hex(4))
        with writing(self._path):
            make_incoming(self._path)
            self._transactions = pq.ParquetWriter(self._path / TRANSACTIONS, TRANSACTIONS_SCHEMA, **_PARQUET)
        self._transaction_count = 0

    def append(self, chunk: DecodedChunk) -> None:
        """Add a decoded chunk; chunks come in order."""
        with writing(self._path):
            for version, table in chunk.rows.items():
                self._relation(version).append(table)
            if chunk.messages is not None:
                self._append_messages(chunk.messages)
            self._append_transactions(chunk.transactions)

    def _relation(self, version: RelationVersion) -> _Relation:
        if version not in self._relations:
            parts = _Parts(self._path, f"r{len(self._relations)}")
            self._relations[version] = _Relation(version, parts)
        return self._relations[version]

    def _append_messages(self, messages: pa.Table) -> None:
        if self._messages is None:
            self._messages = _Parts(self._path, "messages")
        self._messages.append(messages.cast(MESSAGES_SCHEMA))
        self._message_count += messages.num_rows

    def _append_transactions(self, transactions: pa.Table) -> None:
        if transactions.num_rows == 0:
            return
        self._transactions.write_table(transactions)
        self._transaction_count += transactions.num_rows
        micros = integers(transactions["commit_time"].cast(pa.int64()))
        self._times += [_EPOCH + timedelta(microseconds=int(end)) for end in (micros.min(), micros.max())]

    def finish(
        self,
        end: int,
        keys: Mapping[RelationVersion, Sequence[str]],
        *,
        prepared: Sequence[Mapping[str, Any]] = (),
        resolved: Sequence[Mapping[str, Any]] = (),
        unreadable: Mapping[tuple[str, str], ProtocolError] = MappingProxyType({}),
    ) -> Batch:
        """Close and sync everything, then give the batch its name.

        Args:
            keys: per relation version the columns that identify a row.
            prepared: transactions prepared in this batch that wait for their outcome (prepared.py).
            unreadable: tables of which the batch lacks rows, and the reason.
        """
        final = self._log / batch_name(self._start, end)
        with writing(self._path):
            self._close_files()
            manifest = self._manifest(end, keys)
            manifest["prepared"], manifest["resolved"] = list(prepared), list(resolved)
            manifest["unreadable"] = [
                {"schema": schema, "table": table, "what": error.what, "where": error.where}
                for (schema, table), error in unreadable.items()
            ]
            text = json.dumps(manifest, indent=1, ensure_ascii=False)
            (self._path / MANIFEST).write_text(text + "\n", "utf-8")
            _sync_files(list(self._path.iterdir()))
            sync_path(self._path)
            if final.exists():  # the same transactions, from an earlier pull
                shutil.rmtree(final)
            self._path.rename(final)
            release_renamed()
            sync_path(self._log)
        return Batch(final, manifest)

    def _close_files(self) -> None:
        for relation in self._relations.values():
            relation.parts.close()
        if self._messages is not None:
            self._messages.close()
            (self._path / self._messages.files[0]).rename(self._path / MESSAGES)
        self._transactions.close()

    def _manifest(self, end: int, keys: Mapping[RelationVersion, Sequence[str]]) -> dict[str, Any]:
        files = [_file(path) for path in sorted(self._path.iterdir())]
        by_name = {file["name"]: file for file in files}
        relations = [
            _relation_entry(i, relation, keys.get(relation.version, ()), by_name)
            for i, relation in enumerate(self._relations.values())
        ]
        return {
            "format": FORMAT,
            "pipeline": self._identity.pipeline,
            "system_identifier": self._identity.system_identifier,
            "timeline": self._identity.timeline,
            "database": self._identity.database,
            "slot": self._identity.slot,
            "server_version": self._identity.server_version,
            **_next_xid(self._identity, end),
            "start_lsn": format_lsn(self._start),
            "end_lsn": format_lsn(end),
            "first_commit_time": min(self._times).isoformat() if self._times else None,
            "last_commit_time": max(self._times).isoformat() if self._times else None,
            "transactions": self._transaction_count,
            "changes": sum(entry["rows"] for entry in relations),
            "messages": self._message_count,
            "relations": relations,
            "files": files,
            "digest": digest_of({file["name"]: file["sha256"] for file in files}),
        }

    def abandon(self) -> None:
        """Remove everything that was written."""
        for closing in [*(r.parts.close for r in self._relations.values()), self._transactions.close]:
            with suppress(OSError, pa.ArrowException):
                closing()
        if self._messages is not None:
            with suppress(OSError, pa.ArrowException):
                self._messages.close()
        shutil.rmtree(self._path, ignore_errors=True)
        release_renamed()


def _next_xid(identity: BatchIdentity, end: int) -> dict[str, str]:
    """What a batch that ends there says about the source's transaction ids."""
    return {"next_xid": identity.quiet[1]} if identity.quiet is not None and end >= identity.quiet[0] else {}


def empty_batch(directory: Path, identity: BatchIdentity, position: int) -> Batch:
    """Return a batch of no length, which is not on disk: there was nothing to pull.

    Args:
        identity: what the manifest says about the source.
    """
    manifest = {
        "format": FORMAT,
        "pipeline": identity.pipeline,
        "system_identifier": identity.system_identifier,
        "timeline": identity.timeline,
        "database": identity.database,
        "slot": identity.slot,
        "server_version": identity.server_version,
        "start_lsn": format_lsn(position),
        "end_lsn": format_lsn(position),
        "first_commit_time": None,
        "last_commit_time": None,
        "transactions": 0,
        "changes": 0,
        "messages": 0,
        "relations": [],
        "files": [],
        "digest": digest_of({}),
    }
    return Batch(directory / batch_name(position, position), manifest)


def _relation_entry(
    ordinal: int, relation: _Relation, key: Sequence[str], files: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    version = relation.version
    return {
        "ordinal": ordinal,
        "relation_id": version.relation_id,
        "schema": version.schema,
        "table": version.table,
        "replica_identity": version.replica_identity,
        "key": list(key),
        "columns": [
            {
                "name": column.name,
                "type_oid": column.type_oid,
                "typmod": column.typmod,
                "type_name": column.type_name,
                "in_key": column.in_key,
            }
            for column in version.columns
        ],
        "files": [files[name] for name in relation.parts.files],
        "rows": relation.parts.rows,
        **relation.counts,
    }


def _file(path: Path) -> dict[str, Any]:
    return {"name": path.name, "bytes": path.stat().st_size, "sha256": sha256_of(path)}


def _sync_files(files: Sequence[Path]) -> None:
    """Sync files in parallel: one commit of the file system's journal then serves several files."""
    with ThreadPoolExecutor(min(len(files), _SYNCED_TOGETHER), thread_name_prefix="slotlake-sync") as threads:
        list(threads.map(sync_path, files))


def sync_path(path: Path) -> None:
    """Wait until a file, or the entries of a directory, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn any error of writing ``path`` into a ChangeLogError that names its directory.

    Raises:
        ChangeLogError: it cannot be written.
    """
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        number = getattr(error, "errno", None)
        reason = os.strerror(number) if number else str(error)
        raise ChangeLogError(
            f"the change log batch cannot be written: {reason}",
            where=str(path.parent),
            way_out="free space on the disk, or enlarge it, or correct the permissions of the folder; then "
            "run the same command again. The unfinished batch was removed, and nothing was confirmed to the "
            "server",
        ) from None
