"""What the pipeline file says of types: `types` and `on_lossy`, for all tables, for a table, for a column.

It becomes the rules in the shape of each lake table (`spark.tables.type_rules`), the representations of a
source table's columns, and the choice for values that do not fit (`spark.apply.lossy`).  Invariant: a choice
that cannot be carried out for the column that it names is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import psycopg

from slotlake.decoder.catalog.publications import SourceColumn, SourceTable
from slotlake.decoder.errors import PipelineFileError
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.types import oids
from slotlake.decoder.types.catalog import Kind, TypeCatalog, load_types
from slotlake.decoder.types.names import written
from slotlake.decoder.types.representations import representation_of
from slotlake.infra.config.table_names import by_name, exact_names
from slotlake.spark.names import postgres_name
from slotlake.spark.tables.type_rules import DECIMAL, Fields, TypeRules, Word, is_numeric_text

if TYPE_CHECKING:
    from slotlake.decoder.copy.table import CopiedFile
    from slotlake.decoder.slots.slot import ExportedSnapshot
    from slotlake.infra.config.pipeline_file import PipelineFile
    from slotlake.infra.config.sections import TableSection
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.spark.apply.lossy import Lossy, OnLossy

EVERY = "*"
_NAMED_MAX = 8
Name = tuple[str, str]
_COMPOSITES = """
SELECT t.oid::bigint, a.attname, a.atttypid::bigint, a.atttypmod
FROM pg_catalog.pg_type t
JOIN pg_catalog.pg_attribute a ON a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
WHERE t.oid = ANY (%s::oid[])
ORDER BY t.oid, a.attnum
"""


def chooses_types(file: PipelineFile) -> bool:
    """Return whether the file wants columns in another representation than the usual one."""
    return _usual(file) != TypeRules() or any(rules != TypeRules() for rules in _rules(file).values())


def choosing_types(file: PipelineFile) -> set[Name]:
    """The tables whose sections choose types."""
    names = exact_names(file.tables).items()
    return {name for name, text in names if file.tables[text].types or file.tables[text].on_lossy}


def types_of(file: PipelineFile, tables: Iterable[Name]) -> dict[Name, str]:
    """The rules of tables, as `TableSchema.types` has them."""
    usual, own = _usual(file), _rules(file)
    return {name: own.get(name, usual).to_json() for name in tables}


def on_lossy(file: PipelineFile) -> Lossy:
    """The choice for values that do not fit."""
    from slotlake.spark.apply.lossy import Lossy

    tables = by_name({name: _lossy(section) or None for name, section in file.tables.items()})
    return Lossy(file.on_lossy, tables)


def representations_of(
    file: PipelineFile, connection: psycopg.Connection[Any], tables: Sequence[SourceTable]
) -> dict[Name, tuple[str, tuple[tuple[str, str], ...]]]:
    """Choose how the columns of tables are represented in the lake.

    Args:
        file: the pipeline file, with the rules for types.
        connection: to the source, whose catalog describes the types.
        tables: the tables, as they are published.

    Returns:
        For each table that has rules of its own, by schema and name: the rules as JSON, and the names of
        columns with the representation of each.

    Raises:
        PipelineFileError: a column that is named is not there, or cannot have that representation.
    """
    usual, own = _usual(file), _rules(file)
    rules = {table: own.get((table.schema, table.table), usual) for table in tables}
    chosen = {table: each for table, each in rules.items() if each != TypeRules()}
    if not chosen:
        return {}
    catalog = load_types(connection)
    fields = _fields_of(connection, catalog, chosen)
    chosen_types = {}
    for table, each in chosen.items():
        _require_fitting_words(table, each, catalog)
        representations = {c.name: each.form(c, table.key, catalog, fields) for c in table.columns}
        _require_representations(table, each, representations)
        chosen_types[table.schema, table.table] = (
            each.to_json(),
            tuple((n, f) for n, f in representations.items() if f),
        )
    return chosen_types


def texts_of_numerics(file: PipelineFile, tables: Iterable[SourceTable]) -> list[tuple[str, str]]:
    """Warn of columns that are `numeric` without precision and become text, though nobody has said so.

    Args:
        file: the pipeline file; what it says of a column, a table or all numerics is no news to its author.
        tables: as the lake takes them.

    Returns:
        At most one warning, and what to do.
    """
    if "numerics" in file.types.model_fields_set:
        return []
    own = by_name({name: section.types for name, section in file.tables.items()})
    texts = []
    for table in tables:
        chosen = own.get((table.schema, table.table), {})
        if EVERY not in chosen:
            names = [c.name for c in table.columns if is_numeric_text(c) and c.name not in chosen]
            texts += [f"{postgres_name(table.schema, table.table)}.{name}" for name in names]
    if not texts:
        return []
    more = f" and {len(texts) - _NAMED_MAX} more" if len(texts) > _NAMED_MAX else ""
    what = f"numeric without precision is text in the lake: {', '.join(texts[:_NAMED_MAX])}{more}"
    decimals = "types.numerics: decimal(38,10) makes decimals of them, which readers can sum"
    return [(what, f"{decimals}; types.numerics: text leaves them so, without a warning (docs/types.md)")]


def refuse_lossy_copy(
    pipeline: OpenPipeline, table: SourceTable, snapshot: ExportedSnapshot, files: Iterable[CopiedFile]
) -> None:
    """Check that all copied values fit their columns, where the pipeline file asks for that.

    Args:
        table: the table that was copied.
        snapshot: the snapshot under which it was read.
        files: the copied files, which name the columns that do not hold a value.

    Raises:
        ApplyError: a value does not fit, and the choice for its column is ``fail``.
    """
    from slotlake.spark.apply.lossy import lossy_value_error

    inexact = sorted({name for file in files for name in file.lossy})
    if not inexact:
        return  # the choices are those of all tables of the file
    chosen = on_lossy(pipeline.file)
    for column in inexact:
        if chosen.of(table.schema, table.table, column) == "fail":
            what = f"a row that the copy read at {format_lsn(snapshot.lsn)}"
            raise lossy_value_error(table.schema, table.table, column, what)


def _usual(file: PipelineFile) -> TypeRules:
    types = file.types
    inexact: Any = "text" if file.on_lossy == "text" else "typed"
    return TypeRules(types.arrays, types.ranges, types.composites, inexact, numerics=types.numerics)


def _rules(file: PipelineFile) -> Mapping[Name, TypeRules]:
    """The rules of tables of which the file says something."""
    usual = _usual(file)
    return by_name(
        {
            name: _rules_of(file, section, usual) if section.types or section.on_lossy else None
            for name, section in file.tables.items()
        }
    )


def _rules_of(file: PipelineFile, section: TableSection, usual: TypeRules) -> TypeRules:
    lossy = dict(_lossy(section))
    every = lossy.pop(EVERY, file.on_lossy)
    inexact: Any = "text" if every == "text" else "typed"
    columns: dict[str, Word] = {}
    for name, choice in lossy.items():
        if (choice == "text") != (every == "text"):
            columns[name] = "text" if choice == "text" else "typed"
    columns |= {name: word for name, word in section.types.items() if name != EVERY}
    numerics = section.types.get(EVERY, usual.numerics)
    return TypeRules(usual.arrays, usual.ranges, usual.composites, inexact, columns, numerics)


def _lossy(section: TableSection) -> Mapping[str, OnLossy]:
    chosen = section.on_lossy
    return {EVERY: chosen} if isinstance(chosen, str) else chosen or {}


def _fields_of(
    connection: psycopg.Connection[Any], catalog: TypeCatalog, tables: Iterable[SourceTable]
) -> Fields:
    """The fields of the composite types that columns have, by type OID."""
    oids = {column.type_oid for table in tables for column in table.columns}
    entries = {oid: catalog.get(oid) for oid in oids}
    rows = [oid for oid, entry in entries.items() if entry is not None and entry.kind is Kind.COMPOSITE]
    fields: dict[int, list[tuple[str, int, int]]] = {}
    if rows:
        for oid, name, type_oid, typmod in connection.execute(_COMPOSITES, (rows,)).fetchall():
            fields.setdefault(oid, []).append((name, type_oid, typmod))
    return fields


def _require_fitting_words(table: SourceTable, rules: TypeRules, catalog: TypeCatalog) -> None:
    present = {column.name: column for column in table.columns}
    for name, word in rules.columns.items():
        if name not in present:
            _refuse(table, f"there is no published column {name!r}", f"name some of: {', '.join(present)}")
        entry = catalog.get(present[name].type_oid)
        kind = None if entry is None else entry.kind
        fits = {"list": {Kind.ARRAY}, "struct": {Kind.RANGE, Kind.COMPOSITE}}.get(word)
        if DECIMAL.fullmatch(word) and present[name].type_oid != oids.NUMERIC:
            _refuse(
                table,
                f"column {name!r} is of type {_type(present[name])}",
                "a decimal is for numeric; leave others out",
            )
        if fits is not None and kind not in fits:
            _refuse(
                table,
                f"column {name!r} is of type {_type(present[name])}",
                "arrays can be lists, ranges and composites structs; leave others out",
            )


def _require_representations(
    table: SourceTable, rules: TypeRules, representations: Mapping[str, str]
) -> None:
    present = {column.name: column for column in table.columns}
    for name, word in rules.columns.items():
        if word in {"list", "struct"} and not representations[name]:
            _refuse(table, f"column {name!r} cannot be a {word}", "leave it as text")
    for name, representation in representations.items():
        representation_of(representation, present[name].type_oid, present[name].typmod)


def _refuse(table: SourceTable, what: str, way_out: str) -> NoReturn:
    raise PipelineFileError(
        f"the types chosen for {table.quoted} do not fit it: {what}",
        where=f"tables.{table.schema}.{table.table}, `types` or `on_lossy`",
        way_out=way_out,
    )


def _type(column: SourceColumn) -> str:
    return written(column.type_name, column.type_oid, column.typmod)
