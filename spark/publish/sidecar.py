"""What belongs to a batch beside its changes, so that it is always applied with its own schema.

A batch says which columns its rows have by name.  When a table's columns changed, names are not enough: the
annex says which column of the source each of them is (its attribute number).  And what no change tells, rows
that were rewritten, is in the annex as a copy of the table, read at the batch's end.

It lies beside the batch in the change log, ``<batch>.annex/``: ``annex.json``, and per copied table a
directory of Parquet files.  Invariant: like a batch it is there as a whole or not at all, and never changed;
but a table that is set aside before the batch is published is passed over in it from then on (`pass_over`).
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
from slotlake.spark import lake_files
from slotlake.spark.publish.place import CopyTarget
from slotlake.spark.tables.change import Types
from slotlake.spark.tables.schema import TableSchema

_SUFFIX, _FILE = ".annex", "annex.json"
_FORMAT = 1
# Of the companions, which share a file with the columns.
EXACT_IDS = 100_000


@dataclass(frozen=True)
class Copied:
    """A table's rows at the end of a batch.

    Attributes:
        schema: the table there.
        directory: its Parquet files; columns ``c<i>`` and ``x<i>`` (exact text) of the schema's i-th column.
        why: what made it necessary, for people.
    """

    schema: TableSchema
    directory: Path
    rows: int
    why: str

    @property
    def target(self) -> CopyTarget:
        """Where the copy's files go, and how their columns are called."""
        columns = list(enumerate(self.schema.live))
        inexact = [(i, column) for i, column in columns if column.kept.inexact]
        return CopyTarget(
            lake_table=self.schema.source_name,
            directory=self.directory,
            names={column.name: f"c{i}" for i, column in columns},
            field_ids={column.name: 1 + i for i, column in columns},
            exact_names={column.name: f"x{i}" for i, column in inexact},
            exact_field_ids={column.name: EXACT_IDS + i for i, column in inexact},
            representations={column.name: column.kept for _, column in columns if column.form},
        )


@dataclass(frozen=True)
class Annex:
    """What belongs to a batch.

    Attributes:
        numbers: relation version (its ordinal) → column name → attribute number.
        marks: table as PostgreSQL writes it → what of the catalog is to be compared from then on.
        copies: tables that are replaced as a whole; their changes in the batch are in the copy.
        drops: tables of which columns that are gone leave the lake too.
        left: tables whose changes are passed over: the source publishes them no more, and nothing can be made
            of the last ones; or they are set aside.
        constants: table as PostgreSQL writes it → attribute number of a column that joins in the batch →
            what the rows from before hold in it, as PostgreSQL writes it.
        promoted: table as PostgreSQL writes it → attribute number → type that the column has after the batch
            (its OID, modifier and name); the source's rows were written anew for it, and proven to say what
            they said.
    """

    numbers: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    marks: Mapping[str, str] = field(default_factory=dict)
    copies: tuple[Copied, ...] = ()
    drops: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()
    constants: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    promoted: Mapping[str, Types] = field(default_factory=dict)


NOTHING = Annex()


def place(batch: Path) -> Path:
    """Where a batch's annex is, or would be."""
    return batch.with_name(batch.name + _SUFFIX)


def read(batch: Any) -> Annex:
    """The annex of a batch; nothing if it has none, as a batch that was never archived.

    Raises:
        ChangeLogError: it cannot be read.
    """
    path = getattr(batch, "path", None)
    if path is None or not place(path).is_dir():
        return NOTHING
    try:
        told = json.loads((place(path) / _FILE).read_text("utf-8"))
        if told["format"] != _FORMAT:
            raise ValueError(told["format"])
        copies = tuple(
            Copied(TableSchema.from_json(c["schema"]), place(path) / c["directory"], c["rows"], c["why"])
            for c in told["copies"]
        )
        numbers = {int(ordinal): dict(named) for ordinal, named in told["numbers"].items()}
        constants = {
            table: {int(number): str(text) for number, text in each.items()}
            for table, each in told.get("constants", {}).items()
        }
        drops, left = frozenset(told["drops"]), frozenset(told["left"])
        promoted = {
            table: {
                int(number): (int(oid), int(typmod), str(name))
                for number, (oid, typmod, name) in each.items()
            }
            for table, each in told.get("promoted", {}).items()
        }
        return Annex(numbers, told["marks"], copies, drops, left, constants, promoted)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ChangeLogError(
            f"what belongs to a batch cannot be read ({type(error).__name__})",
            where=str(place(path)),
            way_out="remove this directory if the batch is not published yet, then run: slotlake sync",
        ) from None


def begin(batch: Path) -> Path:
    """A directory to fill, empty; the next pull removes it if this process ends before."""
    incoming = incoming_path(batch.parent, batch.name + _SUFFIX)
    lake_files.remove_tree(incoming)
    with writing(incoming):
        make_incoming(incoming)
    return incoming


def finish(batch: Path, incoming: Path, annex: Annex) -> Annex:
    """Make what is in ``incoming`` the batch's annex; copies lie in directories of it."""
    for file in incoming.rglob("*.parquet"):
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
    for copy in annex.copies:
        lake_files.sync_directory(copy.directory)
    lake_files.write_new(str(incoming / _FILE), _written(annex))
    where = place(batch)
    shutil.rmtree(where, ignore_errors=True)
    incoming.rename(where)
    lake_files.sync_directory(where.parent)
    return replace(annex, copies=tuple(replace(c, directory=where / c.directory.name) for c in annex.copies))


def pass_over(batch: Any, tables: Collection[str]) -> None:
    """Let these tables, as PostgreSQL writes them, be passed over when the batch is applied, or replayed."""
    annex = read(batch)
    if annex.left.issuperset(tables):
        return
    copies = tuple(copy for copy in annex.copies if copy.schema.source_name not in tables)
    now = replace(annex, left=annex.left | frozenset(tables), copies=copies)
    if not place(batch.path).is_dir():
        finish(batch.path, begin(batch.path), now)
        return
    new = place(batch.path) / f"{_FILE}.new"
    new.unlink(missing_ok=True)
    lake_files.write_new(str(new), _written(now))
    new.replace(place(batch.path) / _FILE)
    lake_files.sync_directory(place(batch.path))


def _written(annex: Annex) -> bytes:
    told = {
        "format": _FORMAT,
        "numbers": annex.numbers,
        "marks": annex.marks,
        "copies": [
            {"schema": c.schema.to_json(), "directory": c.directory.name, "rows": c.rows, "why": c.why}
            for c in annex.copies
        ],
        "drops": sorted(annex.drops),
        "left": sorted(annex.left),
        "constants": annex.constants,
        "promoted": annex.promoted,
    }
    return json.dumps(told, ensure_ascii=False).encode()
