"""A source whose tables change: what the lake follows as it comes, and what is copied again, per batch.

The stream names columns, and says nothing of rows that a command rewrote.  So each batch is looked at beside
the source's catalog (`decoder.catalog.fingerprints`), and whatever could be more than one thing is not
guessed: that table is copied again.  The copy is read under a snapshot, and the batch is pulled once more so
that it ends exactly at that snapshot's LSN: the other tables get its changes, this one its copy, all in one
point.  So every point that is published is the source at one LSN.

ALTER TABLE has waited for all who had written to the table, so the snapshot need wait for nobody
(`infra.advance.exact`).  ALTER PUBLICATION has not: what a transaction wrote before it is not sent, whenever
that commits, and is in a copy only if the snapshot waited for its end.

What was found out is written beside the batch (`spark.publish.sidecar`) before anyone applies it, so that it
is applied again, or replayed, in the same way.  docs/schema.md has the rules; why: docs/adr/0013.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from slotlake.decoder.catalog.fingerprints import TableMark
from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.catalog.vanished import VanishedError
from slotlake.decoder.changelog.batches import Batch, BatchRelation
from slotlake.decoder.errors import SlotError
from slotlake.decoder.failpoints import reach
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.slots.slot import ExportedSnapshot, create_slot
from slotlake.infra.schema.ddl_events import Altered, altered_tables, row_places, told_numbers
from slotlake.infra.schema.findings import Findings, annex_of, explained
from slotlake.infra.schema.renamed import NAMES_BETWEEN, with_names_between
from slotlake.infra.schema.rules import Found, judge, left_behind, retold
from slotlake.infra.source.fingerprints import Mark, below, marks_at

if TYPE_CHECKING:
    from slotlake.infra.pipeline_open import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.tables.schema import TableSchema

COPY_WAIT_SECONDS = 60.0
_DROPPED_MAX = 10  # tables, one after the other, that were dropped while they were copied
Name = tuple[str, str]
_DEPARTED = frozenset({"left"})
_ELSEWHERE = "rows changed while the table had another name"


class UnsettledError(SlotError):
    """A table cannot be copied under this snapshot; it can under one that waits."""

    retryable = True


def evolved(
    pipeline: OpenPipeline, batch: Batch, snapshot: ExportedSnapshot | None, progress: Progressing
) -> Batch:
    """The batch with what belongs to it written beside; or one that goes further, if a table must be copied.

    Args:
        batch: as pulled from the lake's position.
        snapshot: that the batch was pulled up to, if it was.

    Raises:
        SlotError: a snapshot cannot be had because transactions stay open; they are named.
        ChangedMeanwhileError: a table changed while it was copied; run again.
        UnsettledError: a table that is published anew must be copied, and that snapshot waited for nobody.
    """
    from slotlake.spark.publish import sidecar as annex

    if not batch.empty and annex.place(batch.path).is_dir():
        return batch
    for _ in range(_DROPPED_MAX):
        with suppress(VanishedError):  # looked at again, it is not published
            return _evolved(pipeline, batch, snapshot, progress)
    return _evolved(pipeline, batch, snapshot, progress)


def _evolved(
    pipeline: OpenPipeline, batch: Batch, snapshot: ExportedSnapshot | None, progress: Progressing
) -> Batch:
    from slotlake.infra.schema.large_tables import without_large
    from slotlake.infra.source.snapshots import standing

    found = without_large(pipeline, _examine(pipeline, batch, snapshot), compared=False)
    if not found.copies:
        _note(pipeline, batch, found)
        return batch
    if snapshot is not None:
        return _to_the_copy(pipeline, batch, snapshot, progress)
    if not found.published_anew:
        with suppress(UnsettledError), standing(pipeline, progress) as shown:
            if shown is not None:
                return _to_the_copy(pipeline, batch, shown, progress)
    progress("waiting for a snapshot of the source", 0)
    with create_slot(pipeline.source, temporary=True, wait_seconds=COPY_WAIT_SECONDS) as own:
        return _to_the_copy(pipeline, batch, own, progress)


def _to_the_copy(
    pipeline: OpenPipeline, batch: Batch, snapshot: ExportedSnapshot, progress: Progressing
) -> Batch:
    """The batch that ends where the copies of some tables are read, with them."""
    from slotlake.infra.copy.tables import replace_content
    from slotlake.infra.schema.large_tables import without_large
    from slotlake.infra.schema.promotion import widen, without_needless_copies
    from slotlake.infra.source.pulling import pull_batch

    if batch.end_lsn != snapshot.lsn or not (batch.empty or batch.path.is_dir()):
        batch = pull_batch(pipeline, batch.start_lsn, snapshot.lsn, progress, whole=True)
    reach("evolve.copying")
    found = without_large(pipeline, _examine(pipeline, batch, snapshot), compared=False)
    if found.published_anew and not snapshot.settled:
        raise UnsettledError("tables are to be copied, and transactions from before may be open")
    found = without_needless_copies(pipeline, batch, found, snapshot, progress)
    found = without_large(pipeline, found, compared=True)
    if batch.empty:
        for table in found.copies:
            replace_content(pipeline, table, snapshot, progress)
        widen(pipeline, found, snapshot)
        return batch
    if not found.copies:
        _note(pipeline, batch, found)
        return batch
    _write(pipeline, batch, found, snapshot, progress)
    return batch


def with_copies(
    pipeline: OpenPipeline,
    batch: Batch,
    snapshot: ExportedSnapshot,
    copies: Mapping[SourceTable, str],
    progress: Progressing,
    *,
    examined: bool = True,
) -> None:
    """Write beside a batch, which ends where the snapshot is, copies of tables that are asked for.

    Args:
        copies: tables, and why they are copied.
        examined: nothing else is to be found out about the batch; else those that it needs are copied too.
    """
    found = Findings() if examined else _examine(pipeline, batch, snapshot)
    found = replace(found, copies={**found.copies, **copies})
    if found.copies:
        _write(pipeline, batch, found, snapshot, progress)
    elif not examined:
        _note(pipeline, batch, found)


def _examine(pipeline: OpenPipeline, batch: Batch, snapshot: ExportedSnapshot | None) -> Findings:
    from slotlake.infra.copy.tables import published_tables
    from slotlake.spark.read.point import Cut

    cut = Cut.latest(pipeline.lake)
    held = {(table.schema, table.table): table for table in cut.followed()}
    when = None if snapshot is None else snapshot.snapshot
    marks = marks_at(pipeline, [_relation_id(table) for table in held.values()], when)
    relations: dict[Name, list[BatchRelation]] = {}
    for relation in batch.relations:
        if relation.rows:
            relations.setdefault((relation.schema, relation.table), []).append(relation)
    why = dict.fromkeys(with_names_between(pipeline, held, batch, when), NAMES_BETWEEN)
    why |= dict.fromkeys(_elsewhere(held, batch) | _under_a_root(pipeline, held, batch, when), _ELSEWHERE)
    doubtful = {
        name: table
        for name, table in held.items()
        if name in why or _differs(table, marks.get(_relation_id(table)), relations.get(name, ()))
    }
    if not doubtful:
        return Findings()
    published = {(table.schema, table.table): table for table in published_tables(pipeline, to_read=False)}
    unseen = [published[name].relation_id for name in doubtful if name in published]
    marks |= marks_at(pipeline, [oid for oid in unseen if oid not in marks], when)
    told = altered_tables(batch)
    judged = {
        name: Found(copy=why[name])
        if name in why
        else judge(
            table,
            marks.get(_relation_id(table)),
            published[name],
            relations.get(name, ()),
            at_end=snapshot is not None and snapshot.lsn == batch.end_lsn,
            told=_told(batch, table, told, relations.get(name, ()), marks),
            alone=not cut.beside(table.source_name),
        )
        for name, table in doubtful.items()
        if name in published
    }
    away = [table for name, table in doubtful.items() if name not in published]
    left = [t.source_name for t in away if left_behind(t, relations.get((t.schema, t.table), ()))]
    found = _together(held, judged, published)
    anew = {n for n, f in judged.items() if f.copy and _published_anew(held[n], published[n], marks)}
    return replace(
        found,
        left=frozenset(left),
        moved=[*found.moved, *filter(None, map(_departed, away))],
        published_anew=frozenset(anew),
    )


def _published_anew(held: TableSchema, published: SourceTable, marks: Mapping[int, TableMark]) -> bool:
    """May there be changes of it that are not sent, by transactions that are open?"""
    mark, now = Mark.from_json(held.mark), marks.get(published.relation_id)
    if mark is None or now is None:
        return True
    anew = mark.relation_id != now.relation_id or mark.members != now.members or mark.unsent(now)
    # What a transaction wrote before a label was renamed is sent under the label of then, when it commits.
    return anew or bool(retold(held, mark, now))


def _elsewhere(held: Mapping[Name, TableSchema], batch: Batch) -> set[Name]:
    """Tables that have rows under another name too: those went to another table of the lake, or nowhere."""
    names: dict[int, set[Name]] = {}
    for relation in batch.relations:
        if relation.rows:
            names.setdefault(relation.relation_id, set()).add((relation.schema, relation.table))
    return {name for name, table in held.items() if names.get(_relation_id(table), {name}) != {name}}


def _under_a_root(
    pipeline: OpenPipeline, held: Mapping[Name, TableSchema], batch: Batch, when: str | None
) -> set[Name]:
    """Partitions of which rows may have come as those of a table above, which the lake does not follow.

    It was published for a moment, beside the partition: nothing of that is left in the catalog.
    """
    known = {_relation_id(table): name for name, table in held.items()}
    rest = [relation for relation in batch.relations if relation.rows]
    strangers = {each.relation_id for each in rest if (each.schema, each.table) not in held} - known.keys()
    return {known[oid] for oid in below(pipeline, known, strangers, when)} if strangers else set()


def _departed(table: TableSchema) -> TableSchema | None:
    """The table with the note that it left; None if it has it. Back under its name it is then another."""
    mark = Mark.from_json(table.mark)
    if mark is None or mark.members == _DEPARTED:
        return None
    return replace(table, mark=replace(mark, members=_DEPARTED, ways={}).to_json())


def _told(
    batch: Batch,
    table: TableSchema,
    altered: Mapping[int, Sequence[Altered]],
    relations: Sequence[BatchRelation],
    marks: Mapping[int, TableMark],
) -> Mapping[int, Mapping[str, int]] | None:
    """What the event trigger proves of a table; None without it."""
    oid = _relation_id(table)
    if oid not in altered or oid not in marks:
        return None
    placed = [(relation, row_places(batch, relation)) for relation in relations]
    return told_numbers(table, altered[oid], placed, marks[oid])


def _together(
    held: Mapping[Name, TableSchema], judged: Mapping[Name, Found], published: Mapping[Name, SourceTable]
) -> Findings:
    return Findings(
        {published[name]: found.copy for name, found in judged.items() if found.copy},
        {ordinal: named for found in judged.values() for ordinal, named in found.numbers.items()},
        {held[name].source_name: found.mark for name, found in judged.items() if found.mark},
        {held[name].source_name: found.constants for name, found in judged.items() if found.constants},
        [found.moved for found in judged.values() if found.moved is not None],
        same={published[name]: found.same for name, found in judged.items() if found.same is not None},
    )


def _relation_id(table: TableSchema) -> int:
    mark = Mark.from_json(table.mark)
    return table.relation_id if mark is None else mark.relation_id


def _differs(table: TableSchema, now: TableMark | None, relations: Sequence[BatchRelation]) -> bool:
    """Is there anything to look at? For most tables, most of the time, there is not."""
    mark = Mark.from_json(table.mark)
    if mark is None or now is None:
        return True
    if (now.schema, now.table) != (table.schema, table.table):
        return True
    present = Mark.of(now, [column.number for column in table.live], mark)
    if present != mark or any(number > mark.last for number in now.numbers.values()):
        return True
    known = {(column.name, column.type_oid, column.typmod) for column in table.live}
    told = {(c.name, c.type_oid, c.typmod) for relation in relations for c in relation.columns}
    return bool(told - known) and not table.selection


def _note(pipeline: OpenPipeline, batch: Batch, found: Findings) -> None:
    """Keep what was found out: with the batch if it needs it, else with the tables."""
    from slotlake.spark.publish import sidecar as annex
    from slotlake.spark.publish.shape import reshape

    if found.moved:
        reshape(pipeline.lake, found.moved)
    if (found.numbers or found.left or found.promoted) and not batch.empty:
        annex.finish(batch.path, annex.begin(batch.path), annex_of(pipeline.file, found))


def _write(
    pipeline: OpenPipeline, batch: Batch, found: Findings, snapshot: ExportedSnapshot, progress: Progressing
) -> None:
    from slotlake.infra.copy.tables import copy_into, require_as_copied, schemas_at
    from slotlake.spark.publish import sidecar as annex
    from slotlake.spark.publish.shape import reshape

    if found.moved:
        reshape(pipeline.lake, found.moved)
    tables = list(found.copies)
    schemas, marks = schemas_at(pipeline, snapshot, tables)
    incoming = annex.begin(batch.path)
    told = annex_of(pipeline.file, found)
    copies = []
    for number, table in enumerate(tables):
        schema = explained(schemas[table], f"{format_lsn(snapshot.lsn)}: {found.copies[table]}")
        schema = replace(schema, drop=schema.source_name in told.drops)
        directory = incoming / f"t{number}"
        directory.mkdir()
        copied = annex.Copied(schema, directory, 0, found.copies[table])
        files = copy_into(pipeline, table, snapshot, copied.target, progress)
        copies.append(replace(copied, rows=sum(file.rows for file in files)))
    require_as_copied(pipeline, schemas, marks)
    reach("evolve.copied")
    annex.finish(batch.path, incoming, replace(told, copies=tuple(copies)))
    reach("evolve.noted")
