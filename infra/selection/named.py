"""Which tables the pipeline file names at a source, by name or by a pattern; what a wrong name may mean.

`infra.config.table_names` has the rules that need no source.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from slotlake.decoder.catalog.membership import Name, matching_tables, names_of_tables
from slotlake.decoder.errors import PipelineFileError
from slotlake.infra.config.table_names import Pattern, by_name, exact_names, pattern_of, patterns_in
from slotlake.spark.names import parse_postgres_name, postgres_name, postgres_parts

if TYPE_CHECKING:
    import psycopg

    from slotlake.infra.config.pipeline_file import PipelineFile


def naming(file: PipelineFile) -> Callable[[Name], bool]:
    """Return a function that says whether the pipeline file names a table, by its name or by a pattern."""
    said = by_name({text: None if section.exclude else True for text, section in file.tables.items()})
    return said.__contains__


def named_exactly(file: PipelineFile) -> frozenset[Name]:
    """Return schema and name of the tables that the pipeline file names by their own name."""
    exact = exact_names(file.tables).items()
    return frozenset(name for name, text in exact if not file.tables[text].exclude)


def named_at_source(file: PipelineFile, connection: psycopg.Connection[Any]) -> list[Name]:
    """Return the tables that the file names: by their name, also if there is none; those that patterns match.

    Raises:
        PipelineFileError: no table of the source matches a pattern.
    """
    exact = named_exactly(file)
    for _, what, way_out in unmatched(file, connection):
        raise PipelineFileError(what, where="section `tables` of the pipeline file", way_out=way_out)
    own = [name for name in exact_names(file.tables) if name in exact]
    return [*own, *sorted(matched_at_source(file, connection) - exact)]


def matched_at_source(file: PipelineFile, connection: psycopg.Connection[Any]) -> frozenset[Name]:
    """Return the tables of the source that the file names by a pattern."""
    return frozenset(filter(naming(file), matching(file, patterns_in(file.tables), connection)))


def matching(
    file: PipelineFile, patterns: Sequence[Pattern], connection: psycopg.Connection[Any]
) -> set[Name]:
    """Return the tables of the source that patterns match; with `partitions: leaves` partitions too."""
    if not patterns:
        return set()
    expressions = [(pattern.schema, pattern.table) for pattern in patterns]
    return matching_tables(connection, expressions, partitions=file.source.partitions == "leaves")


def expanded(tables: Iterable[str], matched: Callable[[Pattern], Collection[Name]]) -> list[Name]:
    """Return the tables that a command's arguments name, each once.

    Args:
        tables: names and patterns, as in the pipeline file.
        matched: returns the tables that a pattern matches.

    Raises:
        PipelineFileError: one is no name, or a pattern matches nothing.
    """
    names: list[Name] = []
    for text in tables:
        try:
            pattern = pattern_of(text)
            names += [parse_postgres_name(text)] if pattern is None else sorted(matched(pattern))
        except KeyError:
            raise PipelineFileError(
                f"{text!r} is not a table name",
                where="--table",
                way_out='name it as PostgreSQL writes it: public.orders, "Odd Schema"."Odd Name"',
            ) from None
        if pattern is not None and not matched(pattern):
            raise PipelineFileError(
                f"no table matches {text}", where="--table", way_out="slotlake status lists the tables"
            )
    return list(dict.fromkeys(names))


def unmatched(file: PipelineFile, connection: psycopg.Connection[Any]) -> list[tuple[str, str, str]]:
    """Return each pattern that no table of the source matches, with what is wrong and the way out."""
    patterns = [each for each in patterns_in(file.tables) if not file.tables[each.text].exclude]
    names = matching(file, patterns, connection)
    lonely = [pattern for pattern in patterns if not any(map(pattern.matches, names))]
    others = names_of_tables(connection) if lonely else []
    findings = []
    for pattern in lonely:
        what = f"the pipeline file names {pattern.text}, and no table of the source matches"
        meant = nearest_pattern(pattern, others)
        way_out = f"did you mean {meant}? Correct" if meant else "correct"
        way_out += " the pattern (with its schema), or take it out of `tables`"
        findings.append((pattern.text, what, way_out))
    return findings


def nearest_pattern(pattern: Pattern, others: Collection[Name]) -> str:
    """Return what a pattern that matches nothing may mean: another schema's, or a table; "" if nothing."""
    schema, table = postgres_parts(pattern.text)
    if "*" not in schema:
        schemas = difflib.get_close_matches(pattern.name[0], sorted({name[0] for name in others}), 1, 0.6)
        if schemas and schemas[0] != pattern.name[0]:
            return postgres_name(schemas[0], "").removesuffix('""') + table
    return nearest((pattern.name[0], pattern.name[1].replace("*", "")), others)


def nearest(name: Name, others: Collection[Name]) -> str:
    """Return the table that a wrong name may mean, as PostgreSQL writes it; "" if there is none like it."""
    by_text = {postgres_name(*other): other for other in others}
    folded = {text.replace('"', "").lower(): text for text in by_text}
    wanted = postgres_name(*name).replace('"', "").lower()
    same_table = [text for text, other in by_text.items() if other[1].lower() == name[1].lower()]
    if wanted in folded:
        return folded[wanted]
    if same_table:
        return same_table[0]
    matches = difflib.get_close_matches(wanted, folded, 1, 0.75)
    return folded[matches[0]] if matches else ""
