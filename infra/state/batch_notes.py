"""What the steps of a batch note: their times, the batch's counts, and its lag.

Pull, apply, publish and confirm may run in one process or in four (Airflow's tasks). Each adds its part to
the note ``open-batch.json``; the step that confirms makes a line of it. Where several machines work on the
pipeline, who reads the parts puts them together (`infra.state.journal_records`). The lag of a batch is the
time from its *oldest* commit, by the source's clock, to the moment at which readers could see it, by this
machine's.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotlake.infra.state.batch_lines import count_batch, line_of, merged
from slotlake.infra.state.journal import Journal
from slotlake.infra.state.json_log import at_work
from slotlake.infra.state.shared_journal import shared_journal
from slotlake.infra.state.totals import changed_totals

if TYPE_CHECKING:
    from slotlake.decoder.changelog.batches import Batch

STEPS = ("wait", "pull", "apply", "publish", "confirm")
_TABLES_MAX = 50
_log = logging.getLogger(__name__)
_RUN, _TASK = ("AIRFLOW_CTX_DAG_ID", "AIRFLOW_CTX_DAG_RUN_ID"), "AIRFLOW_CTX_TASK_ID"


def note_pulled(state_dir: Path, batch: str | None, seconds: float) -> None:
    """Note that a batch was pulled, or found in the change log.

    Args:
        batch: its name; None if there was nothing to pull.
        seconds: how long that took.
    """
    if batch is not None:
        at_work(batch=batch)
        _add_step(state_dir, batch, "pull", seconds, {"pull_began": time.time() - seconds})


def note_applied(
    state_dir: Path, batch: Batch, seconds: float, conflicts: Mapping[str, Mapping[str, int]]
) -> None:
    """Note that a batch was applied.

    Args:
        seconds: how long that took.
        conflicts: source table → kind of conflict → how many.
    """
    facts = {"conflicts": {table: dict(counts) for table, counts in conflicts.items()}}
    _add_step(state_dir, batch.name, "apply", seconds, facts)


def note_published(state_dir: Path, batch: Batch, seconds: float) -> None:
    """Note that readers see a batch from now on.

    Args:
        seconds: how long its publication took.
    """
    _add_step(state_dir, batch.name, "publish", seconds, _facts(batch) | {"time": time.time()})


def note_confirmed(state_dir: Path, seconds: float, batch: str | None = None) -> None:
    """Note that the lake's position was confirmed, and make a line of the batch that was published last.

    Args:
        seconds: how long that took.
        batch: that was published, if another process may have done that.
    """
    part = {"steps": {"confirm": round(seconds, 3)}, **_task("confirm")}
    if (shared := shared_journal(state_dir)) is not None:
        _log_entry(shared.confirmed(batch, part))
        return
    journal = Journal(state_dir)
    entry = journal.open_batch.mapping()
    if "time" in entry:
        with journal.writing():
            _finish(journal, merged(entry, part))


def _add_step(state_dir: Path, batch: str, step: str, seconds: float, facts: Mapping[str, Any]) -> None:
    part = {"batch": batch, "steps": {step: round(seconds, 3)}, **_task(step), **facts}
    if (shared := shared_journal(state_dir)) is not None:
        entry = shared.add_part(part)
        if step == "publish" and "pull" not in entry["steps"]:  # another process will confirm it, too
            _log_entry(entry)
        return
    journal = Journal(state_dir)
    with journal.writing():
        entry = journal.open_batch.mapping()
        if entry.get("batch") != batch:
            if "time" in entry:  # published by a run that was killed before it could confirm
                _finish(journal, entry)
            entry = {}
        journal.open_batch.write(merged(entry, part))


def _task(step: str) -> dict[str, Any]:
    """The run and the task of Airflow in which a step works; empty outside of Airflow."""
    if not all(name in os.environ for name in _RUN):
        return {}
    task = os.environ.get(_TASK)
    return {"run": [os.environ[name] for name in _RUN], **({"tasks": {step: task}} if task else {})}


def _facts(batch: Batch) -> dict[str, Any]:
    tables: dict[str, int] = {}
    for relation in batch.relations:
        name = f"{relation.schema}.{relation.table}"
        tables[name] = tables.get(name, 0) + relation.rows
    largest = sorted(tables.items(), key=lambda table: -table[1])[:_TABLES_MAX]
    commits = (batch.manifest.get("first_commit_time"), batch.manifest.get("last_commit_time"))
    first, last = (None if text is None else datetime.fromisoformat(text).timestamp() for text in commits)
    return {
        "transactions": batch.transactions,
        "changes": batch.changes,
        "bytes": batch.bytes,
        "first_commit": first,
        "last_commit": last,
        "tables": {name: rows for name, rows in largest if rows},
    }


def _finish(journal: Journal, entry: dict[str, Any]) -> None:
    """Make a line of a published batch, count it, and remove the note."""
    line = line_of(entry)
    journal.open_batch.remove()  # first: a kill here loses a line, and none is there twice
    if line is not None:
        journal.batches.append(line)
        with changed_totals(journal.folder) as totals:
            count_batch(totals, line)
        _log_line(line)


def _log_entry(entry: Mapping[str, Any]) -> None:
    line = line_of(entry) if "time" in entry else None
    if line is not None:
        _log_line(line)


def _log_line(line: Mapping[str, Any]) -> None:
    fields = {name: line[name] for name in ("batch", "transactions", "changes", "bytes", "lag", "seconds")}
    _log.info("batch published", extra={"fields": fields})
