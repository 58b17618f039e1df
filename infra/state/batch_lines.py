"""A batch as the journal knows it: the line that its steps become, and what it adds to the counters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slotlake.infra.state.totals import Totals, add, add_labelled, observe


def line_of(entry: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the line of a batch that readers see; None if the batch only moved the position on.

    Args:
        entry: what its steps have noted.
    """
    if not entry["transactions"] and not entry["changes"]:
        return None
    first, queryable = entry["first_commit"], float(entry["time"])
    steps = dict(entry["steps"])
    if first is not None and "pull_began" in entry:
        steps["wait"] = round(max(0.0, entry["pull_began"] - first), 3)
    return {
        "time": round(queryable, 3),
        "batch": entry["batch"],
        "transactions": entry["transactions"],
        "changes": entry["changes"],
        "bytes": entry["bytes"],
        "lag": None if first is None else round(max(0.0, queryable - first), 3),
        "last_commit": entry["last_commit"],
        "seconds": steps,
        "tables": entry["tables"],
        "conflicts": entry.get("conflicts", {}),
        "run": entry.get("run", []),
        "tasks": entry.get("tasks", {}),
    }


def merged(entry: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of a batch, with what one more step has noted.

    Args:
        entry: what was known; empty for the first step.
        part: what the step noted: its seconds in ``steps``, its task in ``tasks``, and facts.
    """
    steps = dict(entry.get("steps", {}))
    for step, seconds in part.get("steps", {}).items():  # a step may need several attempts
        steps[step] = round(steps.get(step, 0.0) + seconds, 3)
    tasks = {**entry.get("tasks", {}), **part.get("tasks", {})}
    return {**entry, **part, "steps": steps, "tasks": tasks}


def count_batch(totals: Totals, line: Mapping[str, Any]) -> None:
    """Add a published batch to the counters."""
    add(totals, "batches", 1)
    for name in ("transactions", "changes", "bytes"):
        add(totals, name, line[name])
    for step, seconds in line["seconds"].items():
        observe(totals, "step_seconds", step, seconds)
    if line["lag"] is not None:
        observe(totals, "lag_seconds", "", line["lag"])
    for counts in line["conflicts"].values():
        add_labelled(totals, "conflicts", counts)
