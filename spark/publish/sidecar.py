"""The batch sidecar: what applying a batch needs to know in addition to the batch's changes.

A batch names the columns of its rows.  When a table's columns changed, names are not enough: the sidecar has
the source's attribute number of each column.  And the rows of a table that was rewritten, of which no change
says anything, are in the sidecar as a copy of the table, read at the batch's end.

The sidecar lies next to the batch in the change log, ``<batch>.annex/``: ``annex.json``, and per copied table
a directory of Parquet files.  Invariant: like a batch it exists whole or not at all, and never changes; only
the record of tables to pass over grows, when a table is set aside before the batch is published
(`pass_over`).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from slotlake.decoder.changelog.incoming import incoming_path, make_incoming
from slotlake.decoder.changelog.writer import writing
from slotlake.decoder.errors import ChangeLogError
from slotlake.spark import exchange
from slotlake.spark.publish.place import CopyTarget
from slotlake.spark.storage.folder import sync_directory
from slotlake.spark.tables.change import Types
from slotlake.spark.tables.schema import TableSchema

_SUFFIX, _FILE = ".annex", "annex.json"
_FORMAT = 1
# Of the companions, which share a file with the columns.
EXACT_IDS = 100_000


@dataclass(frozen=True)
class TableCopy:
    """A table's rows at the end of a batch.

    Attributes:
        schema: the table there.
        directory: its Parquet files; columns ``c<i>`` and ``x<i>`` (exact text) of the schema's i-th column.
        rows: how many rows the files have.
        why: the reason for the copy, for people.
    """

    schema: TableSchema
    directory: Path
    rows: int
    why: str

    @property
    def target(self) -> CopyTarget:
        """The directory for the copy's files, and the names of their columns."""
        columns = list(enumerate(self.schema.live))
        inexact = [(i, column) for i, column in columns if column.representation.inexact]
        return CopyTarget(
            lake_table=self.schema.source_name,
            directory=self.directory,
            names={column.name: f"c{i}" for i, column in columns},
            field_ids={column.name: 1 + i for i, column in columns},
            exact_names={column.name: f"x{i}" for i, column in inexact},
            exact_field_ids={column.name: EXACT_IDS + i for i, column in inexact},
            representations={column.name: column.representation for _, column in columns if column.form},
        )


@dataclass(frozen=True)
class BatchSidecar:
    """What applying a batch needs to know.

    Attributes:
        numbers: relation version (its ordinal) → column name → attribute number.
        fingerprints: table as PostgreSQL writes it → its catalog fingerprint after the batch.
        copies: tables that are replaced as a whole; the copies have the batch's changes already.
        drops: tables whose dropped columns leave the lake too.
        passed_over: tables whose changes are not applied: the source no longer publishes them, and the last
            changes cannot be applied; or they are set aside.
        constants: table as PostgreSQL writes it → attribute number of a column that joins in the batch → the
            value of the older rows, as PostgreSQL writes it.
        promoted: table as PostgreSQL writes it → attribute number → the column's type after the batch (OID,
            modifier, name); the source rewrote its rows for it, and their values are proven to be the same.
    """

    numbers: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    copies: tuple[TableCopy, ...] = ()
    drops: frozenset[str] = frozenset()
    passed_over: frozenset[str] = frozenset()
    constants: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    promoted: Mapping[str, Types] = field(default_factory=dict)


NOTHING = BatchSidecar()


def place(batch: Path) -> Path:
    """Return where a batch's sidecar is, or would be."""
    return batch.with_name(batch.name + _SUFFIX)


def read(batch: Any) -> BatchSidecar:
    """Return the sidecar of a batch; an empty one if it has none, as a batch that was never archived.

    Raises:
        ChangeLogError: it cannot be read.
    """
    path = getattr(batch, "path", None)
    if path is None or not place(path).is_dir():
        return NOTHING
    try:
        content = json.loads((place(path) / _FILE).read_text("utf-8"))
        if content["format"] != _FORMAT:
            raise _unknown_format(place(path), content["format"])
        copies = tuple(
            TableCopy(TableSchema.from_json(c["schema"]), place(path) / c["directory"], c["rows"], c["why"])
            for c in content["copies"]
        )
        numbers = {int(ordinal): dict(named) for ordinal, named in content["numbers"].items()}
        constants = {
            table: {int(number): str(text) for number, text in each.items()}
            for table, each in content.get("constants", {}).items()
        }
        drops, left = frozenset(content["drops"]), frozenset(content["left"])
        promoted = {
            table: {
                int(number): (int(oid), int(typmod), str(name))
                for number, (oid, typmod, name) in each.items()
            }
            for table, each in content.get("promoted", {}).items()
        }
        return BatchSidecar(numbers, content["marks"], copies, drops, left, constants, promoted)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ChangeLogError(
            f"a batch's sidecar cannot be read ({type(error).__name__})",
            where=str(place(path)),
            way_out="remove this directory if the batch is not published yet, then run: slotlake sync",
        ) from None


def _unknown_format(path: Path, written: object) -> ChangeLogError:
    return ChangeLogError(
        f"a batch's sidecar has format {written}, but this version of slotlake reads only format {_FORMAT}",
        where=str(path),
        way_out="install the version of slotlake that wrote it, or a later one (docs/upgrade.md)",
    )


def begin(batch: Path) -> Path:
    """Make an empty directory to fill; the next pull removes it if this process ends before `finish`."""
    incoming = incoming_path(batch.parent, batch.name + _SUFFIX)
    exchange.remove_directory(incoming)
    with writing(incoming):
        make_incoming(incoming)
    return incoming


def finish(batch: Path, incoming: Path, sidecar: BatchSidecar) -> BatchSidecar:
    """Make the content of ``incoming`` the batch's sidecar, and return it with the final directories.

    Args:
        incoming: the directory that `begin` made; the copies lie in directories of it.
    """
    for file in incoming.rglob("*.parquet"):
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
    for copy in sidecar.copies:
        sync_directory(copy.directory)
    exchange.write_file(incoming / _FILE, _to_json(sidecar))
    where = place(batch)
    shutil.rmtree(where, ignore_errors=True)
    incoming.rename(where)
    sync_directory(where.parent)
    return replace(
        sidecar, copies=tuple(replace(c, directory=where / c.directory.name) for c in sidecar.copies)
    )


def pass_over(batch: Any, tables: Collection[str]) -> None:
    """Note in the sidecar that applying or replaying the batch passes over these tables."""
    sidecar = read(batch)
    if sidecar.passed_over.issuperset(tables):
        return
    copies = tuple(copy for copy in sidecar.copies if copy.schema.source_name not in tables)
    now = replace(sidecar, passed_over=sidecar.passed_over | frozenset(tables), copies=copies)
    if not place(batch.path).is_dir():
        finish(batch.path, begin(batch.path), now)
        return
    new = place(batch.path) / f"{_FILE}.new"
    new.unlink(missing_ok=True)
    exchange.write_file(new, _to_json(now))
    new.replace(place(batch.path) / _FILE)
    sync_directory(place(batch.path))


def _to_json(sidecar: BatchSidecar) -> bytes:
    content = {
        "format": _FORMAT,
        "numbers": sidecar.numbers,
        "marks": sidecar.fingerprints,
        "copies": [
            {"schema": c.schema.to_json(), "directory": c.directory.name, "rows": c.rows, "why": c.why}
            for c in sidecar.copies
        ],
        "drops": sorted(sidecar.drops),
        "left": sorted(sidecar.passed_over),
        "constants": sidecar.constants,
        "promoted": sidecar.promoted,
    }
    return json.dumps(content, ensure_ascii=False).encode()
