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
from slotlake.spark import exchange
from slotlake.spark.catalog.base import load, load_one
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.history.modes import MODES, with_mirror_fields
from slotlake.spark.history.new_tables import copy_source
from slotlake.spark.history.reserved_columns import rename_reserved_columns
from slotlake.spark.lake import LakeSettings
from slotlake.spark.maintenance.table_files import count_rows
from slotlake.spark.merge.bounds import Markers, value_range
from slotlake.spark.merge.rows import frame_by_session, read_files
from slotlake.spark.merge.run import Work, apply_shape, run_statements, view_of
from slotlake.spark.names import LakeName, quote
from slotlake.spark.publish.commits import Point
from slotlake.spark.publish.derived_tables import load_derived_tables, with_derived_names
from slotlake.spark.publish.place import CopyTarget, companions_in
from slotlake.spark.publish.sidecar import TableCopy
from slotlake.spark.publish.swap import require_owner, reset_stage
from slotlake.spark.session import shares_files
from slotlake.spark.storage.location import Location
from slotlake.spark.tables import soft_deletes
from slotlake.spark.tables.metadata import STAGE, head
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
        self._directory = exchange.exchange_directory(lake, "amend", name.namespace, name.table)
        self.schema = schema
        self.target: CopyTarget = TableCopy(schema, self._directory / "rows", 0, "asked for").target

    @classmethod
    def begin(cls, session: SparkSession, lake: LakeSettings, pipeline: str, name: LakeName) -> Amendment:
        """Make an empty directory for the new rows.

        Args:
            pipeline: the pipeline that the table must belong to.

        Raises:
            LakeError: the lake has no such table, or it is not this pipeline's.
        """
        with open_catalog(lake) as catalog:
            pointers = catalog.pointers_of(with_derived_names([name]))
            table = load(pointers, name)
            require_owner(table, pipeline)
            table, _ = rename_reserved_columns(catalog, table, load_derived_tables(pointers, name))
        amendment = cls(session, lake, name, schema_of(table.metadata, name))
        exchange.remove_directory(amendment._directory)
        exchange.make_directory(amendment.target.directory)
        return amendment

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        exchange.remove_directory(self._directory)

    def stage(self, point: Point, removed_keys: pa.Table, fewer: int | None = None) -> list[LakeName]:
        """Stage that the rows of some keys go and the files' rows come; the tables to be published then.

        Args:
            removed_keys: the typed values of the key's columns by source name, and their exact text, if the
                table keeps one, as ``<name>__exact``.
            fewer: how many rows fewer the table has then; None if that is not known.

        Raises:
            LakeError: Spark failed, or took away more or fewer rows.
        """
        with open_catalog(self._lake) as catalog:
            pointers = catalog.pointers_of(with_derived_names([self._name]))
            table = load(pointers, self._name)
            derived = load_derived_tables(pointers, self._name)
            reset_stage(catalog, [table, *derived.values()])
        work = Work(lambda: self._session, self._lake, point, table, self._directory)
        files = sorted(self.target.directory.glob("*.parquet"))
        locations = [Location(f"file://{file}") for file in files]
        schema = self.schema.with_exact(companions_in(locations, self.target))
        companions = apply_shape(work, schema)
        with (
            self._new_rows_view(schema, companions, files) as new_rows,
            _removed_keys_view(work, schema, companions, removed_keys) as removed,
        ):
            if schema.soft_deletes:
                _stage_marked_mirror(work, new_rows, removed)
            else:
                _stage_mirror(work, new_rows if files else None, removed)
            if fewer is not None and not schema.soft_deletes:
                _require_fewer(work, fewer)
            for mode, each in derived.items():
                _stage_derived_table(replace(work, table=each), mode, schema, new_rows, removed)
        return [*(each.name for each in derived.values()), self._name]

    @contextmanager
    def _new_rows_view(
        self, schema: TableSchema, companions: Collection[str], files: Sequence[Path]
    ) -> Iterator[_Rows]:
        """A view of the rows that come, with the lake's fields."""
        fields = _fields(schema.live, companions)
        if files:
            target = self.target
            names = [target.names[c.name] for c in schema.live] + list(target.exact_names.values())
            definitions = [f"{target.names[c.name]} {c.spark_type}" for c in schema.live]
            definitions += [f"{name} string" for name in target.exact_names.values()]
            if shares_files(self._session):
                reader = self._session.read.schema(", ".join(definitions))
                frame = reader.parquet(*(str(file) for file in files))
            else:
                rows = pa.concat_tables(read_files(files, names), promote_options="default")
                frame = frame_by_session(self._session, rows, ", ".join(definitions))
            sources = {quote(c.lake_name): target.names[c.name] for c in schema.live}
            sources |= {quote(c.exact_name): target.exact_names.get(c.name, "") for c in schema.live}
            values = [sources[quote(name)] or "CAST(NULL AS STRING)" for name, _ in fields]
        else:
            frame = self._session.sql("SELECT 1 WHERE false")
            values = [f"CAST(NULL AS {kind})" for _, kind in fields]
        expressions = [f"{value} AS {quote(name)}" for value, (name, _) in zip(values, fields, strict=True)]
        view = f"came_{uuid.uuid4().hex}"
        frame.selectExpr(*expressions).createOrReplaceTempView(view)
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
    fields = []
    for column in columns:
        fields.append((column.lake_name, column.spark_type))
        if column.exact_name in companions:
            fields.append((column.exact_name, "string"))
    return fields


@contextmanager
def _removed_keys_view(
    work: Work, schema: TableSchema, companions: Collection[str], keys: pa.Table
) -> Iterator[_Rows]:
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


def _stage_mirror(work: Work, new_rows: _Rows | None, removed: _Rows) -> None:
    branch = f"{work.table.name.sql(work.lake.catalog)}.branch_stage"
    same = [f"t.{quote(name)} <=> s.{quote(name)}" for name in removed.fields]
    condition = " AND ".join([*same, *removed.bounds])
    delete = (
        f"MERGE INTO {branch} AS t USING {quote(removed.view)} AS s ON {condition} WHEN MATCHED THEN DELETE"
    )
    statements = [delete] if removed.rows else []
    if new_rows is not None:
        listed = ", ".join(map(quote, new_rows.fields))
        statements.append(f"INSERT INTO {branch} ({listed}) SELECT {listed} FROM {quote(new_rows.view)}")
    run_statements(work, statements, markers=removed.markers)


def _stage_marked_mirror(work: Work, new_rows: _Rows, removed: _Rows) -> None:
    """Rows of keys that the source does not have are marked; those of keys that it has are replaced."""
    branch = f"{work.table.name.sql(work.lake.catalog)}.branch_stage"
    source = copy_source(work.lake, work.table, quote(new_rows.view), work.point)
    same = " AND ".join(f"t.{quote(name)} <=> s.{quote(name)}" for name in removed.fields)
    key = ", ".join(map(quote, removed.fields))
    replaced = (
        f"MERGE INTO {branch} AS t USING (SELECT {key} FROM {source.name}) AS s ON {same} "
        "WHEN MATCHED THEN DELETE"
    )
    ending = (
        f"MERGE INTO {branch} AS t USING {quote(removed.view)} AS s "
        f"ON {' AND '.join([f'NOT t.{quote(soft_deletes.DELETED)}', same, *removed.bounds])} "
        f"WHEN MATCHED THEN UPDATE SET {soft_deletes.ended(source.position, source.time)}"
    )
    own = soft_deletes.of_copy(source.position, source.time)
    listed = ", ".join(map(quote, new_rows.fields))
    insert = (
        f"INSERT INTO {branch} ({', '.join([listed, *own])}) "
        f"SELECT {', '.join([listed, *own.values()])} FROM {source.name}"
    )
    steps = [replaced, *([ending] if removed.rows else []), insert]
    run_statements(work, steps, markers=removed.markers)


def _require_fewer(work: Work, fewer: int) -> None:
    """A MERGE does not say how many rows it deleted; what the table has before and after does."""
    with open_catalog(work.lake) as catalog:
        metadata = load_one(catalog, work.table.name).metadata
    before, after = count_rows(head(metadata)), count_rows(head(metadata, STAGE))
    if before - after != fewer:
        raise LakeError(
            f"{before - after:,} rows fewer would be in the lake, and {fewer:,} fewer should be",
            where=f"table {work.table.name}",
            way_out="read the whole table again, without a condition; nothing was published",
        )


def _stage_derived_table(work: Work, mode: str, schema: TableSchema, new_rows: _Rows, removed: _Rows) -> None:
    reach("apply.between_modes")
    work = with_mirror_fields(work, mode, schema, {})
    copy = copy_source(work.lake, work.table, quote(new_rows.view), work.point)
    source = replace(copy, fields=frozenset(new_rows.fields))
    branch = f"{work.table.name.sql(work.lake.catalog)}.branch_stage"
    # A row that the mirror lacked, and should not have, is there in what is kept beside it.
    touched, key = f"touched_{uuid.uuid4().hex}", ", ".join(map(quote, removed.fields))
    union = f"SELECT {key} FROM {quote(removed.view)} UNION SELECT {key} FROM {quote(new_rows.view)}"
    work.session.sql(union).createOrReplaceTempView(touched)
    try:
        run_statements(
            work, MODES[mode].amend_statements(work.table.metadata, branch, source, touched, removed.fields)
        )
    finally:
        work.session.catalog.dropTempView(touched)
