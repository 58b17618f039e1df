"""What belongs to a batch beside its changes, so that it is always applied with its own schema.

A batch says which columns its rows have by name.  When a table's columns changed, names are not enough: the
annex says which column of the source each of them is (its attribute number).  And what no change tells, rows
that were rewritten, is in the annex as a copy of the table, read at the batch's end.

It lies beside the batch in the change log, ``<batch>.annex/``: ``annex.json``, and per copied table a
directory of Parquet files.  Invariant: like a batch it is there as a whole or not at all, and never changed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from decoder.batch_writer import incoming_path
from decoder.errors import ChangeLogError
from spark import lake_files
from spark.initial_place import CopyTarget
from spark.tables import TableSchema

_SUFFIX, _FILE = ".annex", "annex.json"
_FORMAT = 1
# Of the companions, which share a file with the columns.
_EXACT_IDS = 100_000


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
            exact_field_ids={column.name: _EXACT_IDS + i for i, column in inexact},
            forms={column.name: column.kept for _, column in columns if column.form},
        )


@dataclass(frozen=True)
class Annex:
    """What belongs to a batch.

    Attributes:
        numbers: relation version (its ordinal) → column name → attribute number.
        marks: table as PostgreSQL writes it → what of the catalog is to be compared from then on.
        copies: tables that are replaced as a whole; their changes in the batch are in the copy.
        drops: tables of which columns that are gone leave the lake too.
        left: tables that the source publishes no more, of whose last changes nothing can be made.
        constants: table as PostgreSQL writes it → attribute number of a column that joins in the batch →
            what the rows from before hold in it, as PostgreSQL writes it.
    """

    numbers: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    marks: Mapping[str, str] = field(default_factory=dict)
    copies: tuple[Copied, ...] = ()
    drops: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()
    constants: Mapping[str, Mapping[int, str]] = field(default_factory=dict)


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
        return Annex(numbers, told["marks"], copies, drops, left, constants)
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
    return lake_files.make_directory(incoming)


def finish(batch: Path, incoming: Path, annex: Annex) -> Annex:
    """Make what is in ``incoming`` the batch's annex; copies lie in directories of it."""
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
    }
    for file in incoming.rglob("*.parquet"):
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
    for copy in annex.copies:
        lake_files.sync_directory(copy.directory)
    lake_files.write_new(str(incoming / _FILE), json.dumps(told, ensure_ascii=False).encode())
    where = place(batch)
    shutil.rmtree(where, ignore_errors=True)
    incoming.rename(where)
    lake_files.sync_directory(where.parent)
    return replace(annex, copies=tuple(replace(c, directory=where / c.directory.name) for c in annex.copies))
