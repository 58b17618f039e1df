"""Replaces single rows of a lake table by what the source has, read again at an exact LSN.

The rows of some keys go, and rows come, in the branch ``stage``; published like a batch.  Whoever begins says
which: this module compares nothing.  A key that stands there twice goes twice.  Tables beside the mirror
(spark/history/modes.py) take in the same: versions of these keys end and begin, the change log has each.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import pyarrow as pa
from pyspark.sql import SparkSession

from slotlake.decoder.errors import LakeError
from slotlake.decoder.failpoints import reach
from slotlake.spark import lake_files
from slotlake.spark.catalog.base import load, load_one
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.history.modes import MODES, with_mirror_fields
from slotlake.spark.history.new_tables import copy_source
from slotlake.spark.history.reserved_columns import rename_reserved_columns
from slotlake.spark.lake import LakeSettings
from slotlake.spark.merge.bounds import Markers, value_range
from slotlake.spark.merge.run import Work, run_statements, shape, view_of
from slotlake.spark.names import LakeName, quote
from slotlake.spark.publish.commits import Point
from slotlake.spark.publish.derived_tables import load_derived_tables
from slotlake.spark.publish.place import CopyTarget, companions_in
from slotlake.spark.publish.sidecar import Copied
from slotlake.spark.publish.swap import require_owner, reset_stage
from slotlake.spark.tables.metadata import STAGE, head, live_rows
from slotlake.spark.tables.schema import LakeColumn, TableSchema, schema_of

EXACT = "__exact"


class Amendment:
    """``with Amendment.begin(...) as it``: write files to ``it.target``, then ``it.stage(point, gone)``.

    Attributes:
        schema: the table as the lake has it; its shape stays as it is.
        target: where the files go, and how their columns are called.
    """

    def __init__(
        self, session: SparkSession, lake: LakeSettings, name: LakeName, schema: TableSchema
    ) -> None:
        self._session = session
        self._lake = lake
        self._name = name
        self._directory = lake_files.control_directory(lake, "amend", name.namespace, name.table)
        self.schema = schema
        self.target: CopyTarget = Copied(schema, self._directory / "rows", 0, "asked for").target

    @classmethod
    def begin(cls, session: SparkSession, lake: LakeSettings, pipeline: str, name: LakeName) -> Amendment:
        """Make a place for the rows that come, empty.

        Raises:
            LakeError: the lake has no such table, or it is not this pipeline's.
        """
        with open_catalog(lake) as catalog:
            pointers = catalog.pointers()
            table = load(pointers, name)
            require_owner(table, pipeline)
            table, _ = rename_reserved_columns(catalog, table, load_derived_tables(pointers, name))
        amendment = cls(session, lake, name, schema_of(table.metadata, name))
        lake_files.remove_tree(amendment._directory)
        lake_files.make_directory(amendment.target.directory)
        return amendment

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        lake_files.remove_tree(self._directory)

    def stage(self, point: Point, gone: pa.Table, fewer: int | None = None) -> list[LakeName]:
        """Stage that the rows of some keys go and the files' rows come; the tables to be published then.

        Args:
            gone: the typed values of the key's columns by source name, and their exact text, if the
                table keeps one, as ``<name>__exact``.
            fewer: how many rows fewer the table has then; None if that is not known.

        Raises:
            LakeError: Spark failed, or took away more or fewer rows.
        """
        with open_catalog(self._lake) as catalog:
            pointers = catalog.pointers()
            table = load(pointers, self._name)
            beside = load_derived_tables(pointers, self._name)
            reset_stage(catalog, [table, *beside.values()])
        work = Work(self._session, self._lake, point, table, self._directory)
        files = sorted(self.target.directory.glob("*.parquet"))
        schema = self.schema.with_exact(companions_in(files, self.target))
        companions = shape(work, schema)
        with self._came(schema, companions, files) as came, _gone(work, schema, companions, gone) as going:
            _stage_mirror(work, came if files else None, going)
            if fewer is not None:
                _require_fewer(work, fewer)
            for mode, each in beside.items():
                _stage_beside(replace(work, table=each), mode, schema, came, going)
        return [*(each.name for each in beside.values()), self._name]

    @contextmanager
    def _came(
        self, schema: TableSchema, companions: Collection[str], files: Sequence[Path]
    ) -> Iterator[_Rows]:
        """A view of the rows that come, with the lake's fields."""
        fields = _fields(schema.live, companions)
        if files:
            target = self.target
            definitions = [f"{target.names[c.name]} {c.kept.spark}" for c in schema.live]
            definitions += [f"{name} string" for name in target.exact_names.values()]
            reader = self._session.read.schema(", ".join(definitions))
            frame = reader.parquet(*(str(file) for file in files))
            given = {quote(c.lake_name): target.names[c.name] for c in schema.live}
            given |= {quote(c.exact_name): target.exact_names.get(c.name, "") for c in schema.live}
            taken = [given[quote(name)] or "CAST(NULL AS STRING)" for name, _ in fields]
        else:
            frame = self._session.sql("SELECT 1 WHERE false")
            taken = [f"CAST(NULL AS {kind})" for _, kind in fields]
        shown = [f"{value} AS {quote(name)}" for value, (name, _) in zip(taken, fields, strict=True)]
        view = f"came_{uuid.uuid4().hex}"
        frame.selectExpr(*shown).createOrReplaceTempView(view)
        try:
            yield _Rows(view, [name for name, _ in fields])
        finally:
            self._session.catalog.dropTempView(view)


@dataclass(frozen=True)
class _Rows:
    """A view, and the lake's fields that it has; ``rows``: how many, where that is known.

    Attributes:
        bounds: conditions that all rows meet, ``t`` being the lake's table; ``markers``: what they name.
    """

    view: str
    fields: Sequence[str]
    rows: int = 0
    bounds: Sequence[str] = ()
    markers: Markers = field(default_factory=Markers)


def _fields(columns: Iterable[LakeColumn], companions: Collection[str]) -> list[tuple[str, str]]:
    """Fields of the lake, and their types in Spark SQL."""
    found = []
    for column in columns:
        found.append((column.lake_name, column.kept.spark))
        if column.exact_name in companions:
            found.append((column.exact_name, "string"))
    return found


@contextmanager
def _gone(work: Work, schema: TableSchema, companions: Collection[str], keys: pa.Table) -> Iterator[_Rows]:
    """A view of the keys that go, with the lake's fields."""
    arrays, bounds, markers = [], [], Markers()
    columns = [schema.column(name) for name in schema.key]
    for column in columns:
        exact = f"{column.name}{EXACT}"
        text = keys[exact] if exact in keys.column_names else pa.nulls(keys.num_rows, pa.string())
        bounded = pa.table({"n": keys[column.name], "x": text})
        bounds += value_range(markers, bounded, "n", "x", f"t.{quote(column.lake_name)}")
        arrays += [keys[column.name], *([text] if column.exact_name in companions else [])]
    fields = _fields(columns, companions)
    names = [name for name, _ in fields]
    definitions = ", ".join(f"{quote(name)} {kind}" for name, kind in fields)
    with view_of(work, pa.Table.from_arrays(arrays, names=names), definitions) as view:
        yield _Rows(view, names, keys.num_rows, bounds, markers)


def _stage_mirror(work: Work, came: _Rows | None, gone: _Rows) -> None:
    branch = f"{work.table.name.sql(work.lake.catalog)}.branch_stage"
    same = [f"t.{quote(name)} <=> s.{quote(name)}" for name in gone.fields]
    condition = " AND ".join([*same, *gone.bounds])
    going = f"MERGE INTO {branch} AS t USING {quote(gone.view)} AS s ON {condition} WHEN MATCHED THEN DELETE"
    statements = [going] if gone.rows else []
    if came is not None:
        listed = ", ".join(map(quote, came.fields))
        statements.append(f"INSERT INTO {branch} ({listed}) SELECT {listed} FROM {quote(came.view)}")
    run_statements(work, statements, markers=gone.markers)


def _require_fewer(work: Work, fewer: int) -> None:
    """A MERGE does not say how many rows it deleted; the table's totals before and after do."""
    with open_catalog(work.lake) as catalog:
        metadata = load_one(catalog, work.table.name).metadata
    before, after = live_rows(head(metadata)), live_rows(head(metadata, STAGE))
    if before is not None and after is not None and before - after != fewer:
        raise LakeError(
            f"{before - after:,} rows fewer would be in the lake, and {fewer:,} fewer should be",
            where=f"table {work.table.name}",
            way_out="read the whole table again, without a condition; nothing was published",
        )


def _stage_beside(work: Work, mode: str, schema: TableSchema, came: _Rows, gone: _Rows) -> None:
    reach("apply.between_modes")
    work = with_mirror_fields(work, mode, schema, {})
    at = copy_source(work.lake, work.table, quote(came.view), work.point)
    source = replace(at, fields=frozenset(came.fields))
    branch = f"{work.table.name.sql(work.lake.catalog)}.branch_stage"
    # A row that the mirror lacked, and should not have, is there in what is kept beside it.
    touched, key = f"touched_{uuid.uuid4().hex}", ", ".join(map(quote, gone.fields))
    union = f"SELECT {key} FROM {quote(gone.view)} UNION SELECT {key} FROM {quote(came.view)}"
    work.session.sql(union).createOrReplaceTempView(touched)
    try:
        run_statements(work, MODES[mode].amended(work.table.metadata, branch, source, touched, gone.fields))
    finally:
        work.session.catalog.dropTempView(touched)
