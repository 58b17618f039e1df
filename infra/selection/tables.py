"""What the lake takes of each table: the pipeline file's choices, checked against the source.

The file says `filter`, `columns` and `operations`; the source's server says what they mean and whether the
stream can keep them true; `spark/row_filter/selection.py` applies them to each batch.  Invariant: a lake
table follows by the choices with which it was copied; a file, or a source, that says something else now is
refused until the table is copied again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import psycopg

from slotlake.decoder.catalog.publications import (
    SourceTable,
    published_names,
    source_tables,
)
from slotlake.decoder.catalog.row_filters import FilterColumn, analysed, filter_columns, partition_identities
from slotlake.decoder.errors import PipelineFileError
from slotlake.decoder.server.source import source_session
from slotlake.infra.config.table_names import by_name, exact_names
from slotlake.infra.selection.soft_deletes import chooses_soft_deletes, marking, require_soft_deletable
from slotlake.infra.selection.types import chooses_types, choosing_types, representations_of, types_of
from slotlake.spark.names import postgres_name
from slotlake.spark.row_filter.plan import plan
from slotlake.spark.row_filter.selection import Selection
from slotlake.spark.tables.schema import TableSchema

if TYPE_CHECKING:
    from slotlake.decoder.memory import Memory
    from slotlake.decoder.server.source import SourceSettings
    from slotlake.infra.config.pipeline_file import PipelineFile
    from slotlake.infra.config.sections import TableSection
    from slotlake.infra.opened.open_pipeline import OpenPipeline


@dataclass(frozen=True)
class _LakeSelections:
    """What the lake's tables take, as it was read last: what the same words mean of the same columns.

    Attributes:
        by_name: by schema and table.
        nothing: neither the file nor the lake chooses anything: all tables' metadata need not be read again.
    """

    by_name: Mapping[tuple[str, str], Selection]
    nothing: bool


@dataclass(frozen=True)
class SelectedTable(SourceTable):
    """A published table as far as the lake takes it, and how its columns are represented.

    Attributes:
        selection: as in `TableSchema`.
        types: as in `TableSchema`.
        representations: column name → representation, where that is not as the table of types says.
        soft_deletes: as in `TableSchema`.
    """

    selection: str = ""
    types: str = ""
    representations: tuple[tuple[str, str], ...] = ()
    soft_deletes: bool = False


def lake_selections(memory: Memory) -> Mapping[tuple[str, str], Selection]:
    """What the lake's tables take, by schema and table, as this pipeline read it last."""
    last = memory.get(_LakeSelections)
    return {} if last is None else last.by_name


def lake_schema(table: SourceTable) -> TableSchema:
    """The lake table that a source table becomes, with what it takes."""
    schema = TableSchema.of(table)
    if not isinstance(table, SelectedTable):
        return schema
    representations = dict(table.representations)
    columns = tuple(column.formed(representations.get(column.name, "")) for column in schema.columns)
    return replace(
        schema, selection=table.selection, types=table.types, columns=columns, soft_deletes=table.soft_deletes
    )


def selected(
    file: PipelineFile,
    connection: psycopg.Connection[Any],
    tables: Sequence[SourceTable],
    selections: Mapping[tuple[str, str], Selection] = MappingProxyType({}),
) -> list[SourceTable]:
    """Reduce published tables to what the lake takes of them.

    Args:
        file: the pipeline file, whose sections choose filters, columns, operations and types.
        connection: to the source, which says what a filter means.
        tables: as they are published.
        selections: what the lake's tables take already (`lake_selections`), by schema and table. A filter of
            which neither words nor columns changed means what it meant: the server, which would have to
            open the table, is not asked.

    Raises:
        PipelineFileError: a filter is not understood, cannot be evaluated outside of the server, or looks at
            columns that old rows will not show; a list of columns names one that is not published, or
            lacks the key.
    """
    sections = _choosing_sections(file)
    reduced = [_reduced(connection, table, sections, selections) for table in tables]
    representations = representations_of(file, connection, reduced)
    represented = [_represented(table, representations.get((table.schema, table.table))) for table in reduced]
    marked = marking(file, [(table.schema, table.table) for table in tables])
    return [_marked(table) if marked[table.schema, table.table] else table for table in represented]


def _reduced(
    connection: psycopg.Connection[Any],
    table: SourceTable,
    sections: Mapping[tuple[str, str], TableSection],
    selections: Mapping[tuple[str, str], Selection],
) -> SourceTable:
    """The table with the columns and rows that its section chooses, if it has one."""
    name = table.schema, table.table
    if name not in sections:
        return table
    try:
        return _selected(connection, table, sections[name], selections.get(name))
    except PipelineFileError as error:
        raise error.of(*name) from None


def _represented(table: SourceTable, types: tuple[str, tuple[tuple[str, str], ...]] | None) -> SourceTable:
    """The table with its rules for types and the representations of its columns, if it has some."""
    if types is None:
        return table
    rules, representations = types
    return SelectedTable(**{**_fields(table), "types": rules, "representations": representations})


def _marked(table: SourceTable) -> SourceTable:
    require_soft_deletable(table)
    return SelectedTable(**{**_fields(table), "soft_deletes": True})


def _fields(table: SourceTable) -> dict[str, Any]:
    return {field.name: getattr(table, field.name) for field in fields(table)}


def require_published(file: PipelineFile, tables: Iterable[SourceTable]) -> None:
    """Check that the tables of which the pipeline file chooses something are published.

    Raises:
        PipelineFileError: one is not.
    """
    chosen = _choosing_sections(file)
    named = {name for name in exact_names(file.tables) if name in chosen} | choosing_types(file)
    missing = named - {(table.schema, table.table) for table in tables}
    for schema, table in sorted(missing):
        raise PipelineFileError(
            f"the publications have no table {postgres_name(schema, table)}",
            where="section `tables` of the pipeline file, where something of it is chosen",
            way_out="correct its name (with its schema), or publish it",
        )


def refuse_changed(pipeline: OpenPipeline) -> None:
    """Check that each lake table holds what the pipeline file and the source say now.

    Raises:
        PipelineFileError: the file chooses other rows, columns, operations or types than a lake table was
            copied with, or its row filter means something else at the source by now.
    """
    from slotlake.spark.read.point import ReadPoint

    sections = _choosing_sections(pipeline.file)
    chooses = bool(sections) or chooses_types(pipeline.file) or chooses_soft_deletes(pipeline.file)
    last = pipeline.memory.get(_LakeSelections)
    if not chooses and last is not None and last.nothing:
        return
    tables = ReadPoint.latest(pipeline.lake).followed()
    selections = {(t.schema, t.table): Selection.from_json(t.selection) for t in tables}
    pipeline.memory.put(_LakeSelections(selections, nothing=False))
    _refuse_other_selection(pipeline.source, sections, selections)
    _refuse_other_types(pipeline.file, pipeline.source, {(t.schema, t.table): t.types for t in tables})
    _refuse_other_soft_deletes(
        pipeline.file, pipeline.source, {(t.schema, t.table): t.soft_deletes for t in tables}
    )
    filtered = {name: each for name, each in selections.items() if each.expression is not None}
    if filtered:
        _refuse_other_meaning(pipeline, filtered)
    elif not chooses:
        pipeline.memory.put(_LakeSelections(selections, nothing=True))


def _refuse_other_selection(
    source: SourceSettings,
    sections: Mapping[tuple[str, str], TableSection],
    selections: Mapping[tuple[str, str], Selection],
) -> None:
    changed = [
        name
        for name, each in selections.items()
        if each.as_configured != _selection_in_file(sections.get(name)).as_configured
    ]
    if published := _published(source, changed):
        raise _changed_error(
            published,
            "the pipeline file chooses other rows, columns or operations of a table than the lake has",
        )


def _refuse_other_types(
    file: PipelineFile, source: SourceSettings, types: Mapping[tuple[str, str], str]
) -> None:
    types_in_file = types_of(file, types)
    changed = [name for name, rules in types.items() if rules != types_in_file[name]]
    if published := _published(source, changed):
        raise _changed_error(
            published, "the pipeline file chooses other types for a table's columns than the lake has"
        )


def _refuse_other_soft_deletes(
    file: PipelineFile, source: SourceSettings, chosen: Mapping[tuple[str, str], bool]
) -> None:
    wanted = marking(file, chosen)
    changed = [name for name, marked in chosen.items() if marked != wanted[name]]
    if published := _published(source, changed):
        raise _changed_error(
            published,
            "the pipeline file has another on_delete for a table than the lake's table was made with",
        )


def _refuse_other_meaning(pipeline: OpenPipeline, filtered: Mapping[tuple[str, str], Selection]) -> None:
    source = pipeline.source
    with source_session(source.dsn, "reading the publications") as connection:
        tables = source_tables(connection, source.publications, filtered.keys())
        for table in selected(pipeline.file, connection, tables, lake_selections(pipeline.memory)):
            name = (table.schema, table.table)
            if isinstance(table, SelectedTable):
                now, selection = Selection.from_json(table.selection), filtered[name]
                if (now.expression, now.inputs) != (selection.expression, selection.inputs):
                    raise _changed_error(
                        [name],
                        "the table's row filter has another meaning at the source than when it was copied",
                    )


def _published(source: SourceSettings, names: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Those that are still published: what the file says of others is about nothing any more."""
    if not names:
        return []
    with source_session(source.dsn, "reading the publications") as connection:
        present = published_names(connection, source.publications)
        return [name for name in names if name in present]


def comparable(tables: Sequence[SourceTable]) -> list[SourceTable]:
    """The tables that the lake can equal: those of which it takes all operations."""
    return [
        table
        for table in tables
        if not isinstance(table, SelectedTable) or Selection.from_json(table.selection).whole
    ]


def _choosing_sections(file: PipelineFile) -> Mapping[tuple[str, str], TableSection]:
    """Sections of the file that choose something, by schema and table."""
    return by_name(
        {
            name: section if _selection_in_file(section) != Selection() else None
            for name, section in file.tables.items()
        }
    )


def _selection_in_file(section: TableSection | None) -> Selection:
    if section is None:
        return Selection()
    return Selection(section.filter, section.columns, section.operations)


def _changed_error(names: Sequence[tuple[str, str]], what: str) -> PipelineFileError:
    tables = sorted(postgres_name(*name) for name in names)
    return PipelineFileError(
        what,
        where=f"table{'s' if len(tables) > 1 else ''} {', '.join(tables)}",
        way_out=f"copy {'each' if len(tables) > 1 else 'it'} again: slotlake backfill --table '{tables[0]}'; "
        "or restore what the file said (`slotlake status` shows what the lake takes)",
    )


def _selected(
    connection: psycopg.Connection[Any],
    table: SourceTable,
    section: TableSection,
    selection_before: Selection | None,
) -> SelectedTable:
    in_file = _selection_in_file(section)
    identified = (table.updates and in_file.takes("update")) or (table.deletes and in_file.takes("delete"))
    columns = _columns(table, in_file, identified)
    chosen = replace(in_file, identified=identified)
    if in_file.filters:
        chosen = _with_expression(connection, table, chosen, selection_before)
    names = {column.name for column in columns}
    conditions = [each for each in (table.row_filter, chosen.expression) if each is not None]
    return SelectedTable(
        **{
            **_fields(table),
            "columns": columns,
            "primary_key": table.primary_key if names.issuperset(table.primary_key) else (),
            "key": table.key if names.issuperset(table.key) else (),
            "row_filter": " AND ".join(f"({each})" for each in conditions) or None,
        },
        selection=chosen.to_json(),
    )


def _columns(table: SourceTable, in_file: Selection, identified: bool) -> tuple[Any, ...]:
    if in_file.columns is None:
        return table.columns
    present = {column.name for column in table.columns}
    unknown = [name for name in in_file.columns if name not in present]
    if unknown:
        raise PipelineFileError(
            f"{table.quoted} has no published column {unknown[0]!r}",
            where=f"tables.{table.schema}.{table.table}.columns",
            way_out=f"name some of these: {', '.join(sorted(present))}",
        )
    lacking = [name for name in table.key if name not in in_file.columns]
    if identified and lacking:
        raise PipelineFileError(
            f"the columns chosen for {table.quoted} lack {lacking[0]!r}, which identifies its rows",
            where=f"tables.{table.schema}.{table.table}.columns",
            way_out="add it, or take inserts only (operations: [insert, truncate])",
        )
    return tuple(column for column in table.columns if column.name in in_file.columns)


def _with_expression(
    connection: psycopg.Connection[Any],
    table: SourceTable,
    chosen: Selection,
    selection_before: Selection | None,
) -> Selection:
    """The selection with its filter as the server prints it, if the stream can keep the filter true."""
    all_columns = filter_columns(connection, table.relation_id)
    published = {column.name: column for column in table.columns}
    usable = {name: column for name, column in all_columns.items() if name in published}
    if selection_before is not None and _means_the_same(selection_before, chosen, usable):
        if chosen.identified:
            _require_identity(connection, table, frozenset(column.name for column in selection_before.inputs))
        return replace(chosen, expression=selection_before.expression, inputs=selection_before.inputs)
    expressions = [analysed(connection, table.schema, table.table, each) for each in chosen.filters]
    try:
        used_columns = frozenset[str]().union(*(plan(each, usable).columns for each in expressions))
    except PipelineFileError as error:
        place = f"tables.{table.schema}.{table.table}.filter: {error.where}"
        raise PipelineFileError(error.what, where=place, way_out=error.way_out) from None
    if chosen.identified:
        _require_identity(connection, table, used_columns)
    inputs = tuple(usable[name] for name in sorted(used_columns))
    expression = (
        expressions[0] if len(expressions) == 1 else f"({' OR '.join(f'({each})' for each in expressions)})"
    )
    return replace(chosen, expression=expression, inputs=inputs)


def _means_the_same(before: Selection, chosen: Selection, usable: Mapping[str, FilterColumn]) -> bool:
    """Return whether the same filter is about the same columns as before.

    Functions and operators are those of pg_catalog.
    """
    same = before.filters == chosen.filters and before.expression is not None
    return same and all(usable.get(column.name) == column for column in before.inputs)


def _require_identity(connection: psycopg.Connection[Any], table: SourceTable, used: frozenset[str]) -> None:
    """Check that each column in the filter is in old rows: of the table, and of each partition."""
    identities: dict[str, set[str] | None] = {
        table.quoted: {column.name for column in table.columns if column.in_key}
    }
    if table.kind == "p":
        identities |= partition_identities(connection, table.relation_id)
    for name, identity in identities.items():
        hidden = sorted(used - identity) if identity is not None else []
        if hidden:
            raise PipelineFileError(
                f"the filter of {table.quoted} looks at column {hidden[0]!r}, which is not part of the "
                f"replica identity{'' if name == table.quoted else f' of its partition {name}'}: updates and "
                "deletes would not show its old value",
                where=f"tables.{table.schema}.{table.table}.filter",
                way_out=f"ALTER TABLE {name} REPLICA IDENTITY FULL (or USING an INDEX that has the column) "
                "before the slot is made, or take inserts only (operations: [insert, truncate])",
            )
