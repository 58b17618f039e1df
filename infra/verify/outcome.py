"""What a verification leaves behind: the note of what was found equal, and a line of the journal.

The note ``verified.json`` outlives a worker, as all notes of the state do (docs/workers.md).  Invariant: it
only says what was found equal.  A table, or a slice of one, that differed keeps what was noted before, so the
next verification of the same kind compares the same rows again; of a table that is copied nothing counts that
was found equal before (`infra.state.verified.note_copied`).  If the note is lost, rows are compared once
more than needed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from slotlake.decoder.errors import BusyError
from slotlake.decoder.lsn import format_lsn, parse_lsn
from slotlake.expectations.results import ASIDE, CHANGED, FULL, NOT_COMPARED, ROLLING, Report, TableResult
from slotlake.infra.state.events import note_verification
from slotlake.infra.state.verified import copied_since, coverage, locked_note
from slotlake.infra.verify.rolling import credit_after, note_turn
from slotlake.spark.names import postgres_name

if TYPE_CHECKING:
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.verify.comparing import Comparison

_log = logging.getLogger(__name__)
_OF_SLICES = ("relation", "rows", "slices")
_WAIT_SECONDS = 60.0
Note = dict[str, Any]


def note_outcome(comparison: Comparison, report: Report) -> None:
    """Note what was found equal and what differs, and write the line of the journal.

    Args:
        comparison: what was compared.
    """
    pipeline = comparison.pipeline
    more: Note = {}
    try:
        with changed_verified(pipeline) as verified:
            _note_tables(verified, comparison, report)
            _note_slices(verified, comparison, report)
            _note_open(verified, comparison, report)
            more = {"unresolved": sorted(verified["open"]), "rolling": coverage(verified)}
    except (BusyError, OSError) as error:
        _log.warning("what was verified could not be noted, so the same rows are compared again: %s", error)
    note_verification(pipeline.file.state_dir, report, more)


@contextmanager
def changed_verified(pipeline: OpenPipeline) -> Iterator[dict[str, Any]]:
    """Lend the note for a change, and write it.

    Args:
        pipeline: a pipeline whose lock this run does not have.

    Raises:
        BusyError: the state is in an object store, and another run works on the pipeline for too long.
        OSError: it cannot be written.
    """
    with ExitStack() as resources:
        if pipeline.state is not None:  # its notes are written only by who has the lock
            resources.enter_context(pipeline.locks.taken("verify", _WAIT_SECONDS))
            pipeline.state.refresh()
        yield resources.enter_context(locked_note(pipeline.file.state_dir))


def _note_tables(verified: Note, comparison: Comparison, report: Report) -> None:
    """Note, of each table that is equal, up to where its changed rows were compared."""
    position = comparison.point.position
    lsn = format_lsn(position)
    for table in comparison.tables if comparison.scope in (FULL, CHANGED) else ():
        name = postgres_name(table.schema, table.table)
        result = report.tables.get(name)
        if (result is not None and not result.equal) or copied_since(verified, name, position):
            continue
        entry = verified["tables"].get(name)
        if not isinstance(entry, dict) or entry.get("relation") != table.relation_id:
            entry = {}
        verified["tables"][name] = {**entry, "relation": table.relation_id, "lsn": lsn}
        if name in comparison.whole and result is not None:
            for note in verified["tables"][name].get("slices", ()):
                note.update(time=round(time.time(), 3), lsn=lsn, failed=False)


def _note_slices(verified: Note, comparison: Comparison, report: Report) -> None:
    plan, within = comparison.plan, comparison.pipeline.file.verify.full_within
    if plan is None or within is None:
        return
    position = comparison.point.position
    for name, entry in plan.entries.items():
        if copied_since(verified, name, position):
            continue
        present = verified["tables"].get(name, {})
        if present.get("relation") != entry["relation"]:
            present = {}
        verified["tables"][name] = {**present, **{key: entry[key] for key in _OF_SLICES}}
    for turn, equal in comparison.turns:
        name = postgres_name(turn.table.schema, turn.table.table)
        if not copied_since(verified, name, position):
            note_turn(verified["tables"][name], turn, position, equal=equal)
    verified["credit_from"] = credit_after(plan, [turn for turn, _ in comparison.turns], within)


def _note_open(verified: Note, comparison: Comparison, report: Report) -> None:
    """Note the tables that differ; take away those of which the same rows were found equal now."""
    names = {postgres_name(table.schema, table.table) for table in comparison.tables}
    for name in names | report.tables.keys():
        result, entry = report.tables.get(name), verified["open"].get(name)
        if result is not None and set(result.totals) - {ASIDE} - NOT_COMPARED:
            first = {"lsn": report.lsn, "time": round(time.time(), 3), "scope": report.scope}
            merged = {**first, **(entry or {}), "differences": result.differences_total}
            verified["open"][name] = merged | ({"scope": FULL} if name in comparison.whole else {})
        elif entry and _is_resolved(entry, verified["tables"].get(name, {}), name, comparison, result):
            del verified["open"][name]


def _is_resolved(
    entry: Note, noted: Note, name: str, comparison: Comparison, result: TableResult | None
) -> bool:
    """Return whether the rows that differed are among those that were found equal now."""
    if result is not None and not result.equal:
        return False
    if name in comparison.whole or entry["scope"] == comparison.scope == CHANGED:
        return True
    slices = noted.get("slices", ())
    if comparison.scope != ROLLING or entry["scope"] == CHANGED or not slices:
        return False
    if entry["scope"] == ROLLING:
        return not any(note["failed"] for note in slices)
    return all(note["lsn"] and parse_lsn(note["lsn"]) > parse_lsn(entry["lsn"]) for note in slices)
