"""What the steps of a batch note: their times, the batch's counts, and its lag.

Pull, apply, publish and confirm may run in one process or in four (Airflow's tasks). Each adds its part to
the note ``open-batch.json``; the step that confirms makes a line of it. The lag of a batch is the time from
its *oldest* commit, by the source's clock, to the moment at which readers could see it, by this machine's.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotlake.infra.journal.journal import Journal
from slotlake.infra.journal.json_log import at_work
from slotlake.infra.journal.totals import add, add_labelled, changed_totals, observe

if TYPE_CHECKING:
    from slotlake.decoder.changelog.batches import Batch

STEPS = ("wait", "pull", "apply", "publish", "confirm")
_TABLES_MAX = 50
_log = logging.getLogger(__name__)
_RUN = ("AIRFLOW_CTX_DAG_ID", "AIRFLOW_CTX_DAG_RUN_ID")


def note_pulled(state_dir: Path, batch: str | None, seconds: float) -> None:
    """Note that a batch was pulled, or found in the change log.

    Args:
        state_dir: the pipeline's state folder.
        batch: its name; None if there was nothing to pull.
        seconds: how long that took.
    """
    if batch is not None:
        at_work(batch=batch)
        now = time.time()
        _add_step(Journal(state_dir), batch, "pull", seconds, {"pull_began": now - seconds})


def note_applied(
    state_dir: Path, batch: Batch, seconds: float, conflicts: Mapping[str, Mapping[str, int]]
) -> None:
    """Note that a batch was applied.

    Args:
        state_dir: the pipeline's state folder.
        batch: the batch.
        seconds: how long that took.
        conflicts: source table → kind of conflict → how many.
    """
    facts = {"conflicts": {table: dict(counts) for table, counts in conflicts.items()}}
    _add_step(Journal(state_dir), batch.name, "apply", seconds, facts)


def note_published(state_dir: Path, batch: Batch, seconds: float) -> None:
    """Note that readers see a batch from now on.

    Args:
        state_dir: the pipeline's state folder.
        batch: the batch.
        seconds: how long its publication took.
    """
    _add_step(Journal(state_dir), batch.name, "publish", seconds, _facts(batch) | {"time": time.time()})


def note_confirmed(state_dir: Path, seconds: float) -> None:
    """Note that the lake's position was confirmed, and make a line of the batch that was published last.

    Args:
        state_dir: the pipeline's state folder.
        seconds: how long that took.
    """
    journal = Journal(state_dir)
    entry = journal.open_batch.mapping()
    if "time" in entry:
        with journal.writing():
            entry["steps"]["confirm"] = round(seconds, 3)
            _finish(journal, entry)


def _add_step(journal: Journal, batch: str, step: str, seconds: float, facts: Mapping[str, Any]) -> None:
    with journal.writing():
        entry = journal.open_batch.mapping()
        if entry.get("batch") != batch:
            if "time" in entry:  # published by a run that was killed before it could confirm
                _finish(journal, entry)
            entry = {"batch": batch, "steps": {}}
        spent = entry["steps"].get(step, 0.0) + seconds  # a step may need several attempts
        entry["steps"][step] = round(spent, 3)
        journal.open_batch.write({**entry, **facts})


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
    if not entry["transactions"] and not entry["changes"]:  # it only moved the position on
        journal.open_batch.remove()
        return
    first, queryable = entry["first_commit"], float(entry["time"])
    lag = None if first is None else round(max(0.0, queryable - first), 3)
    steps = dict(entry["steps"])
    if first is not None and "pull_began" in entry:
        steps["wait"] = round(max(0.0, entry["pull_began"] - first), 3)
    line = {
        "time": round(queryable, 3),
        "batch": entry["batch"],
        "transactions": entry["transactions"],
        "changes": entry["changes"],
        "bytes": entry["bytes"],
        "lag": lag,
        "last_commit": entry["last_commit"],
        "seconds": steps,
        "tables": entry["tables"],
        "conflicts": entry.get("conflicts", {}),
        "run": [os.environ.get(name, "") for name in _RUN] if _RUN[0] in os.environ else [],
    }
    journal.open_batch.remove()  # first: a kill here loses a line, and none is there twice
    journal.batches.append(line)
    _count(journal, line)
    fields = {name: line[name] for name in ("batch", "transactions", "changes", "bytes", "lag", "seconds")}
    _log.info("batch published", extra={"fields": fields})


def _count(journal: Journal, line: Mapping[str, Any]) -> None:
    with changed_totals(journal.folder) as totals:
        add(totals, "batches", 1)
        for name in ("transactions", "changes", "bytes"):
            add(totals, name, line[name])
        for step, seconds in line["seconds"].items():
            observe(totals, "step_seconds", step, seconds)
        if line["lag"] is not None:
            observe(totals, "lag_seconds", "", line["lag"])
        for counts in line["conflicts"].values():
            add_labelled(totals, "conflicts", counts)
