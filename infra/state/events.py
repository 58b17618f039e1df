"""What else a pipeline notes: verifications, copies of tables, failures, and samples of the source.

A verification's line has the first differing keys, as the Data Docs in the same state folder have them. Pages
show them only to those who may see them. A failure's line has the error's text, which has no row values.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotlake.decoder.errors import SlotlakeError
from slotlake.infra.state.journal import Journal
from slotlake.infra.state.shared_journal import shared_journal
from slotlake.infra.state.totals import add, add_labelled, changed_totals

if TYPE_CHECKING:
    from slotlake.expectations.results import Report, TableResult

_noting = ContextVar("noting", default=False)
_KEYS_MAX = 10
_TABLES_MAX = 200
_SAMPLE_SECONDS_MIN = 5.0
_NO_PIPELINE = ("not initialised", "dropped")  # nothing of it is to be in a store
_SAMPLED = (
    "state",
    "lag_seconds",
    "lag_bytes",
    "retained_wal_bytes",
    "safe_wal_size",
    "wal_bytes_per_second",
    "seconds_to_invalidation",
)


def note_verification(state_dir: Path, report: Report, more: Mapping[str, Any] | None = None) -> None:
    """Note what a verification has found.

    Args:
        more: ``unresolved``: the tables that differ, whether this verification compared those rows or an
            earlier one; ``rolling``: how much the rolling part covers.
    """
    more = more or {}
    different = [table for table in report.tables.values() if not table.equal]
    line = {
        "time": round(time.time(), 3),
        "lsn": report.lsn,
        "scope": report.scope,
        "equal": report.equal,
        **({"failed_suites": [str(s) for s in report.suites if not s.success]} if report.suites else {}),
        "unresolved": list(more.get("unresolved", ()))[:_TABLES_MAX],
        "rolling": more.get("rolling"),
        "source_seconds": report.source_seconds,
        "seconds": round(report.seconds, 3),
        "tables": len(report.tables),
        "rows": sum(table.source_rows for table in report.tables.values()),
        "differences": sum(table.differences_total for table in different),
        "different": {table.table: _difference(table) for table in different[:_TABLES_MAX]},
    }
    if (shared := shared_journal(state_dir)) is not None:
        shared.note("verification", line)
        return
    journal = Journal(state_dir)
    with journal.writing():
        journal.verifications.append(line)
        with changed_totals(journal.folder) as totals:
            add_labelled(totals, "verifications", {"equal" if report.equal else "different": 1})


def _difference(table: TableResult) -> dict[str, Any]:
    keys = [
        {"kind": each.kind, "key": dict(each.key), "columns": list(each.columns)}
        for each in table.differences[:_KEYS_MAX]
        if each.key
    ]
    return {"kinds": dict(table.totals), "keys": keys}


def note_copies(state_dir: Path, tables: Collection[str]) -> None:
    """Count tables that were copied whole from the source."""
    if not tables:
        return
    if (shared := shared_journal(state_dir)) is not None:
        shared.note("copies", {"tables": len(tables)})
    else:
        journal = Journal(state_dir)
        with journal.writing(), changed_totals(journal.folder) as totals:
            add(totals, "copies", len(tables))


@contextmanager
def noted_failures(state_dir: Path) -> Iterator[None]:
    """Note an error that ends a run, and let it pass; within another one, that one notes it."""
    if _noting.get():
        yield
        return
    token = _noting.set(True)
    try:
        yield
    except SlotlakeError as error:
        _note_failure(state_dir, type(error).__name__, error)
        raise
    finally:
        _noting.reset(token)


def _note_failure(state_dir: Path, kind: str, error: SlotlakeError) -> None:
    line = {
        "time": round(time.time(), 3),
        "error": kind,
        "what": error.what[:500],
        "way_out": error.way_out[:300],
        "retryable": bool(error.retryable),
    }
    if (shared := shared_journal(state_dir)) is not None:
        shared.note("failure", line)
        return
    journal = Journal(state_dir)
    with journal.writing():
        journal.failures.append(line)
        with changed_totals(journal.folder) as totals:
            add_labelled(totals, "failures", {kind: 1})


def note_look(state_dir: Path, look: Mapping[str, Any]) -> None:
    """Note a look at the source and the lake: all of it as the last one, its measures as a sample.

    Args:
        state_dir: the pipeline's state folder; if it does not exist, nothing is noted.
        look: ``time``, ``status`` (a status report) and more.
    """
    sample = _sample(look)
    if (shared := shared_journal(state_dir)) is not None:
        if look["status"]["state"] not in _NO_PIPELINE:
            shared.note_look(look, sample)
        return
    if not state_dir.is_dir():
        return
    journal = Journal(state_dir)
    with journal.writing():
        journal.folder.mkdir(exist_ok=True)
        journal.look.write(dict(look))
        last = journal.samples.newest()
        if not last or not 0 <= look["time"] - last[0]["time"] < _SAMPLE_SECONDS_MIN:
            journal.samples.append(sample)


def sample_is_due(state_dir: Path) -> bool:
    """Return whether a sample may be noted: the last is some seconds old. In a store only looks note one."""
    if shared_journal(state_dir) is not None or not state_dir.is_dir():
        return False
    last = Journal(state_dir).samples.newest()
    return not last or not 0 <= time.time() - last[0]["time"] < _SAMPLE_SECONDS_MIN


def note_sample(state_dir: Path, sample: Mapping[str, Any]) -> None:
    """Note measures between two looks.

    Args:
        sample: ``time`` (seconds since 1970), and measures by their names in a status report.
    """
    journal = Journal(state_dir)
    with journal.writing():
        journal.samples.append({"time": round(sample["time"], 3), **sample})


def _sample(look: Mapping[str, Any]) -> dict[str, Any]:
    status = look["status"]
    measures = {name: status[name] for name in _SAMPLED if status.get(name) is not None}
    return {"time": round(look["time"], 3), **measures, "alarms": len(status["alarms"])}
