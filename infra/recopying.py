"""A large table that the lake has, and that must be copied again, is copied over several syncs.

In one piece its copy would hold all others up, and with them the slot.  So the table is set aside, for a
cause of its own, and comes back like one that joins: ranges for a bounded time in each sync, keys of what
changes meanwhile noted from each batch, all of it at a settled snapshot in the end (`infra.over_syncs`).
Until then its content stays what it was.

What is large is judged by the time that one sync may take for copies: by the size that the server tells of,
and a rate that an ordinary server does.  Not copied so, but in one piece: what cannot be brought forward (no
key, one range, not all kinds of changes published), what the pipeline file wants to stop all (`on_trouble`),
a table that takes other rows or columns than it did, one of which the lake has nothing yet.  Why so:
docs/adr/0034.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from decoder.copy_parts import Part
from decoder.failpoints import reach
from decoder.lsn import format_lsn
from decoder.publications import SourceTable, published_names
from decoder.slots import ExportedSnapshot
from decoder.source import connect, source_errors
from decoder.vanished import vanished
from infra import over_syncs
from infra.aside import put_aside, stops, tables_aside
from infra.copy_states import ended
from infra.copying import Attempt, fill_tables
from infra.evolution import Findings, drops_columns, explained
from infra.joining_record import AGAIN_FOLDER
from infra.over_syncs import Way, by_size, copy_some
from infra.reports import TableCopy
from infra.selection import lake_schema
from infra.tables import copy_point, require_as_copied, schemas_at
from spark.names import postgres_name

if TYPE_CHECKING:
    from infra.output import Progressing
    from infra.pipeline import Pipeline
    from spark.aside import Aside, Name
    from spark.names import LakeName
    from spark.tables import TableSchema

BYTES_PER_SECOND = 25_000_000  # as the server stores them; a copy is rarely slower, and Spark writes it too
_TOLD = "it is copied again over several syncs"
_BECAUSE = "it was set aside, because"
_WAY_OUT = (
    "nothing needs to be done: each sync copies more of it, as `slotlake resume` does at once; "
    "on_trouble: stop for the table has it copied in one piece, while all others wait"
)
_NAMES_OF = """
SELECT c.oid::bigint, n.nspname, c.relname
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY (%s)
"""


def large(pipeline: Pipeline, tables: Sequence[SourceTable]) -> list[SourceTable]:
    """Those that take too long for one sync, and can be copied over several."""
    from spark.read import Cut

    going_on = AGAIN.record(pipeline).joining.keys()
    most = pipeline.file.source.copy_seconds_per_sync * BYTES_PER_SECOND

    def wanted(table: SourceTable, parts: Sequence[Part]) -> bool:
        takes_long = len(parts) > 1 and sum(part.bytes for part in parts) > most
        return takes_long or table.relation_id in going_on

    asked = [table for table in tables if not stops(pipeline, (table.schema, table.table))]
    if not asked:
        return []
    held = {(each.schema, each.table): each for each in Cut.latest(pipeline.lake).tables()}
    return by_size(pipeline, [table for table in asked if _takes_the_same(table, held)], wanted)


def _takes_the_same(table: SourceTable, held: Mapping[Name, TableSchema]) -> bool:
    """Is the lake's table one whose rows can be replaced in place?"""
    there = held.get((table.schema, table.table))
    return there is not None and there.selection == lake_schema(table).selection


def put_off(pipeline: Pipeline, copies: Mapping[SourceTable, str]) -> list[SourceTable]:
    """Set those aside that are large of tables that must be copied again; these.

    Args:
        copies: the tables, and why they are copied.
    """
    off = large(pipeline, list(copies))
    if off:
        put_aside(
            pipeline,
            {
                (table.schema, table.table): (
                    "again", f"{_TOLD}: {copies[table]}", f"table {table.quoted}", _WAY_OUT,
                )
                for table in off
            },
        )  # fmt: skip
    return off


def without_large(pipeline: Pipeline, found: Findings, *, compared: bool) -> Findings:
    """What a batch meets, less the copies of large tables, which are set aside.

    Args:
        compared: the tables that need no copy if no value of theirs changed are known not to be such.
    """
    off = put_off(pipeline, {t: why for t, why in found.copies.items() if compared or t not in found.same})
    if not off:
        return found
    names = {(table.schema, table.table) for table in off}
    return replace(
        found,
        copies={table: why for table, why in found.copies.items() if table not in off},
        same={table: each for table, each in found.same.items() if table not in off},
        published_anew=found.published_anew - names,
    )


def put_on_the_way(pipeline: Pipeline, tables: Sequence[Aside]) -> None:
    """Note of tables that are set aside for something else, or whose last try failed, that it goes on."""
    from spark.aside_write import write

    entries = [
        replace(each, cause="again", what=f"{_TOLD}: {_BECAUSE} {each.what}", way_out=_WAY_OUT, tries=0)
        for each in tables
    ]
    if entries:
        write(pipeline.lake, pipeline.name, entries)


def go_on(pipeline: Pipeline, tables: Sequence[SourceTable], progress: Progressing) -> list[str]:
    """Copy what there is time for of these tables, which are set aside; those that are whole, and followed.

    Raises:
        SlotlakeError: a table cannot be copied; what is copied of the others stays.
    """
    return copy_some(pipeline, AGAIN, by_size(pipeline, tables), [], progress)


def let_go_of(pipeline: Pipeline, progress: Progressing) -> None:
    """Give up copies that cannot be gone on with, and those of tables that are not set aside any more."""
    joining = AGAIN.record(pipeline).joining
    if not joining:
        return
    source, aside = pipeline.source, tables_aside(pipeline)
    with connect(source.dsn) as connection, source_errors(source.dsn, "looking at tables set aside"):
        published = published_names(connection, source.publications)
        rows = connection.execute(_NAMES_OF, (list(joining),)).fetchall()
    named = {int(oid): (str(schema), str(table)) for oid, schema, table in rows}
    there = {oid: name for oid, name in named.items() if name in aside and name in published}
    over_syncs.let_go(pipeline, AGAIN, there, progress)


def how_far(pipeline: Pipeline) -> dict[str, str]:
    """The tables that are half copied, as PostgreSQL writes them, and how many ranges are there."""
    return over_syncs.how_far(pipeline, AGAIN)


def lake_rows(pipeline: Pipeline, name: Name) -> int:
    """How many rows the lake has of a table."""
    from spark import catalog_metadata
    from spark.read import Cut

    cut = Cut.latest(pipeline.lake)
    metadata = cut.pinned[cut.find(postgres_name(*name))].metadata
    return catalog_metadata.live_rows(catalog_metadata.head(metadata)) or 0


def give_up_all(pipeline: Pipeline) -> list[str]:
    """Remove what all half copied tables have left, those that join too; the tables."""
    from infra import joining

    return joining.give_up(pipeline) + over_syncs.give_up(pipeline, AGAIN)


def _copy(
    pipeline: Pipeline,
    tables: Sequence[SourceTable],
    snapshot: ExportedSnapshot,
    progress: Progressing,
    attempt: Attempt,
) -> Sequence[TableCopy]:
    """As `infra.tables.copy_all`, in place of what the lake has of these tables."""
    from spark.replace_ranged import RangedReplacement

    schemas, marks = schemas_at(pipeline, snapshot, tables)
    whys = {each.source_name: each.what for each in tables_aside(pipeline).values()}
    at = format_lsn(snapshot.lsn)

    def final(schema: TableSchema) -> TableSchema:
        name = schema.source_name
        why = whys.get(name, "").removeprefix(f"{_TOLD}: ")
        return replace(explained(schema, f"{at}: {why}"), drop=drops_columns(pipeline, name))

    others = f"+{len(tables) - 1}" if len(tables) > 1 else ""
    name = f"{postgres_name(tables[0].schema, tables[0].table)}{others}"
    point = copy_point(pipeline, snapshot.lsn, "backfill", 0, name)
    place = RangedReplacement(pipeline.session, pipeline.lake, point, final)
    try:
        place.begin(schemas.values())
        copies, states = fill_tables(pipeline, place, schemas, snapshot, progress, attempt)
        gone = vanished(pipeline.source.dsn, [table.relation_id for table in tables])
        there = {table: schema for table, schema in schemas.items() if table.relation_id not in gone}
        require_as_copied(pipeline, there, marks)
        left = {schema.source_name for schema in there.values()}
        copies = [each for each in copies if each.table in left]
        reach("recopy.staged")
        place.publish({each.table for each in copies})
    except BaseException:
        ended(pipeline.file.state_dir)
        raise
    for each in copies:
        states.move(each.table, "ready")
    states.forget()
    _clear(pipeline, [schemas[t].lake_name(pipeline.lake.namespace) for t in tables if _is_one(t, copies)])
    return copies


def _is_one(table: SourceTable, copies: Sequence[TableCopy]) -> bool:
    return any(each.table == postgres_name(table.schema, table.table) for each in copies)


def _clear(pipeline: Pipeline, names: Sequence[LakeName]) -> None:
    from spark.replace_ranged import clear

    clear(pipeline.lake, names)


AGAIN = Way(AGAIN_FOLDER, "settling-again.json", _copy, _clear)
