"""The numbers of a pipeline as Prometheus reads them: its text format 0.0.4, from the model alone.

https://prometheus.io/docs/instrumenting/exposition_formats/: one HELP and one TYPE line for each family, all
its samples after them; label values escape the backslash, the quote and the line break. Invariant: every
sample has the label ``pipeline``; a number that is not known is left out, because 0 would be a lie.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from slotlake.infra.health.model import Health
from slotlake.infra.state.totals import SECONDS

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TABLES_MAX = 1000
_HELP = {
    "info": "The version of slotlake that wrote these metrics.",
    "up": "1 if the last look reached the source and the lake.",
    "source_reachable": "1 if the last look reached the source.",
    "lake_reachable": "1 if the last look reached the lake.",
    "ready": "1 if the pipeline can go on by itself.",
    "state": "1 for the state of the pipeline.",
    "look_timestamp_seconds": "When source and lake were looked at.",
    "lag_seconds": "For how long at most something has been in the source that is not in the lake.",
    "lag_bytes": "WAL between the position of the lake and that of the source.",
    "retained_wal_bytes": "WAL that the slot makes the server keep.",
    "safe_wal_bytes": "WAL that can be written before the server may invalidate the slot.",
    "wal_bytes_per_second": "WAL that the server writes.",
    "invalidation_seconds": "Time until the server invalidates the slot, at this rate of WAL.",
    "last_commit_timestamp_seconds": "Commit time of the newest transaction in the lake.",
    "published_timestamp_seconds": "When the newest consistency point was published.",
    "changelog_batches": "Batches in the change log.",
    "changelog_bytes": "Size of the change log.",
    "points_kept": "Consistency points that readers can query.",
    "alarms": "Alarms by kind: what needs a person.",
    "tables": "Tables by state.",
    "table_lives": "Tables by where they are in their life.",
    "table_rows": "Rows of a lake table.",
    "table_bytes": "Size of the data files and delete files of a lake table.",
    "table_files": "Data files of a lake table.",
    "table_delete_files": "Files that delete rows of a lake table.",
    "table_changed_timestamp_seconds": "When a batch last changed a lake table.",
    "table_conflicts": "Conflicts of a table since it was copied.",
    "last_batch_lag_seconds": "Of the newest batch: from its oldest commit to queryable.",
    "last_batch_timestamp_seconds": "When the newest batch became queryable.",
    "last_batch_rows": "Changes of the newest batch.",
    "verify_timestamp_seconds": "When the last verification ended.",
    "verify_age_seconds": "Time since the last verification ended.",
    "verify_equal": "1 if the last verification found source and lake equal.",
    "verify_differences": "Rows that differed at the last verification.",
    "verify_seconds": "How long the last verification took.",
    "verify_source_seconds": "For how long the source worked for the last verification.",
    "verify_tables_different": "Tables that were found different, and not equal since.",
    "verify_slices": "Slices of tables that are compared one after the other.",
    "verify_slices_never": "Slices that were never found equal.",
    "verify_oldest_slice_age_seconds": "Time since the slice was found equal for which that is longest ago.",
    "batches_total": "Published batches with changes.",
    "transactions_total": "Transactions in published batches.",
    "rows_total": "Row changes in published batches.",
    "bytes_total": "Bytes of published batches in the change log.",
    "conflicts_total": "Conflicts by kind: changes that met a row that the source did not have.",
    "copies_total": "Tables that were copied whole from the source.",
    "failures_total": "Runs that ended with an error, by the error.",
    "verifications_total": "Verifications by result.",
    "step_seconds": "Seconds of a batch by step; wait is from its oldest commit to the pull.",
    "batch_lag_seconds": "From the oldest commit of a batch to queryable.",
}
_STATUS_GAUGES = {
    "lag_seconds": "lag_seconds",
    "lag_bytes": "lag_bytes",
    "retained_wal_bytes": "retained_wal_bytes",
    "safe_wal_bytes": "safe_wal_size",
    "wal_bytes_per_second": "wal_bytes_per_second",
    "invalidation_seconds": "seconds_to_invalidation",
    "changelog_batches": "changelog_batches",
    "changelog_bytes": "changelog_bytes",
}
_TABLE_GAUGES = {
    "table_rows": "rows",
    "table_bytes": "bytes",
    "table_files": "files",
    "table_delete_files": "delete_files",
    "table_changed_timestamp_seconds": "last_change",
}
_COUNTERS = {
    "batches_total": "batches",
    "transactions_total": "transactions",
    "rows_total": "changes",
    "bytes_total": "bytes",
    "copies_total": "copies",
}
_LABELLED_COUNTERS = {
    "conflicts_total": ("conflicts", "kind"),
    "failures_total": ("failures", "error"),
    "verifications_total": ("verifications", "result"),
}


@dataclass
class _Families:
    """The samples by family, in the order of their first sample."""

    samples: dict[str, list[str]] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)

    def add(
        self, name: str, value: float | None, kind: str = "gauge", suffix: str = "", /, **labels: str
    ) -> None:
        """Add a sample; None adds nothing. A label may be called as an argument here: `kind`."""
        if value is None:
            return
        self.types.setdefault(name, kind)
        listed = ",".join(f'{label}="{escaped(text)}"' for label, text in labels.items())
        line = f"slotlake_{name}{suffix}{{{listed}}} {number(value)}"
        self.samples.setdefault(name, []).append(line)

    def lines(self) -> Iterator[str]:
        for name, samples in self.samples.items():
            yield f"# HELP slotlake_{name} {_HELP[name]}"
            yield f"# TYPE slotlake_{name} {self.types[name]}"
            yield from samples


def metrics_text(pipelines: Iterable[Health], version: str) -> str:
    """Return the metrics of pipelines in Prometheus' text format, with a line break at the end.

    Args:
        pipelines: what is known of each.
    """
    families = _Families()
    for health in pipelines:
        families.add("info", 1, pipeline=health.name, version=version)
        _add_pipeline(families, health)
    return "".join(f"{line}\n" for line in families.lines())


def escaped(text: str) -> str:
    r"""Return a label's value as Prometheus writes it: ``\\``, ``\"`` and ``\n``; nothing else is special."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def number(value: float) -> str:
    """Return a number as Prometheus writes it; whole numbers without a point."""
    if isinstance(value, int) or (math.isfinite(value) and value == int(value) and abs(value) < 1e15):
        return str(int(value))
    if math.isfinite(value):
        return repr(float(value))
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def _add_pipeline(families: _Families, health: Health) -> None:
    name = health.name
    _add_look(families, health)
    _add_tables(families, health)
    _add_last(families, health)
    if health.recorded.unread and not health.totals:
        return  # a counter that is 0 for a moment would be counted twice by who adds up its increases
    totals = health.totals
    for metric, key in _COUNTERS.items():
        families.add(metric, totals.get(key, 0), "counter", pipeline=name)
    for metric, (key, label) in _LABELLED_COUNTERS.items():
        for value, count in totals.get(key, {}).items():
            families.add(metric, count, "counter", pipeline=name, **{label: value})
    for step, histogram in totals.get("step_seconds", {}).items():
        _add_histogram(families, "step_seconds", histogram, {"pipeline": name, "step": step})
    for histogram in totals.get("lag_seconds", {}).values():
        _add_histogram(families, "batch_lag_seconds", histogram, {"pipeline": name})


def _add_look(families: _Families, health: Health) -> None:
    name, status = health.name, health.status
    if not status:
        families.add("up", None if health.recorded.unread else 0, pipeline=name)
        return
    source, lake = status["source_lsn"] is not None, status["state"] != "lake unreachable"
    families.add("up", int(source and lake), pipeline=name)
    families.add("source_reachable", int(source), pipeline=name)
    families.add("lake_reachable", int(lake), pipeline=name)
    families.add("ready", int(status["state"] == "ready"), pipeline=name)
    families.add("state", 1, pipeline=name, state=str(status["state"]))
    families.add("look_timestamp_seconds", health.seen["time"], pipeline=name)
    for metric, key in _STATUS_GAUGES.items():
        families.add(metric, status.get(key), pipeline=name)
    families.add("last_commit_timestamp_seconds", _moment(status["last_commit_time"]), pipeline=name)
    families.add("published_timestamp_seconds", _moment(status["published_at"]), pipeline=name)
    families.add("points_kept", health.seen.get("points_kept"), pipeline=name)
    for kind, count in _counted(alarm["kind"] for alarm in health.alarms).items():
        families.add("alarms", count, pipeline=name, kind=kind)


def _add_tables(families: _Families, health: Health) -> None:
    name = health.name
    listed: list[Mapping[str, Any]] = health.status.get("tables", [])
    for state, count in _counted(str(table["state"]).partition(" since ")[0] for table in listed).items():
        families.add("tables", count, pipeline=name, state=state)
    # A look that an earlier version noted names no lives.
    for life, count in _counted(str(table["life"]) for table in listed if table.get("life")).items():
        families.add("table_lives", count, pipeline=name, life=life)
    facts: dict[str, Any] = health.seen.get("tables", {})
    largest = sorted(facts, key=lambda table: -(facts[table].get("bytes") or 0))[:_TABLES_MAX]
    for metric, key in _TABLE_GAUGES.items():
        for table in largest:
            families.add(metric, facts[table].get(key), pipeline=name, table=table)
    met = [table for table in listed if table.get("conflicts")]
    for entry in sorted(met, key=lambda table: -sum(table["conflicts"].values()))[:_TABLES_MAX]:
        for kind, count in entry.get("conflicts", {}).items():
            families.add("table_conflicts", count, pipeline=name, table=entry["table"], kind=kind)


def _add_last(families: _Families, health: Health) -> None:
    name, batch, verified = health.name, health.last_batch, health.verified
    if batch is not None:
        families.add("last_batch_lag_seconds", batch["lag"], pipeline=name)
        families.add("last_batch_timestamp_seconds", batch["time"], pipeline=name)
        families.add("last_batch_rows", batch["changes"], pipeline=name)
    if verified is not None:
        families.add("verify_timestamp_seconds", verified["time"], pipeline=name)
        families.add("verify_age_seconds", max(0.0, health.now - verified["time"]), pipeline=name)
        families.add("verify_equal", int(verified["equal"]), pipeline=name)
        families.add("verify_differences", verified["differences"], pipeline=name)
        families.add("verify_seconds", verified["seconds"], pipeline=name)
        families.add("verify_source_seconds", verified.get("source_seconds"), pipeline=name)
        families.add("verify_tables_different", len(health.unresolved), pipeline=name)
    if (rolling := health.rolling) is not None:
        families.add("verify_slices", rolling["slices"], pipeline=name)
        families.add("verify_slices_never", rolling["never"], pipeline=name)
        oldest_seconds = max(0.0, health.now - rolling["oldest"])
        families.add("verify_oldest_slice_age_seconds", oldest_seconds, pipeline=name)


def _add_histogram(
    families: _Families, name: str, histogram: Mapping[str, Any], labels: Mapping[str, str]
) -> None:
    below = 0
    for limit, count in zip((*SECONDS, math.inf), histogram["counts"], strict=True):
        below += count
        families.add(name, below, "histogram", "_bucket", **labels, le=number(limit))
    families.add(name, histogram["sum"], "histogram", "_sum", **labels)
    families.add(name, histogram["count"], "histogram", "_count", **labels)


def _counted(labels: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for label in labels:
        counts[label] = counts.get(label, 0) + 1
    return counts


def _moment(text: str | None) -> float | None:
    return None if text is None else datetime.fromisoformat(text).timestamp()
