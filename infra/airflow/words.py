"""What a step did, in the words of a task's log: a line per table, those first that need attention.

A line is never a row value, a key or a secret.  A line that needs attention is a warning, so that Airflow's
page of the log can show these alone.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from slotlake.infra.progress import brought

LINES_MAX = 200
Lines = Iterable[tuple[int, str]]  # (level, line)
_BAD, _GOOD = logging.WARNING, logging.INFO
_log = logging.getLogger(__name__)


def log_step(lines: Lines) -> None:
    """Write to the task's log what a step did, in the words of one of the functions below."""
    ordered = sorted(lines, key=lambda line: -line[0])
    for level, line in ordered[:LINES_MAX]:
        _log.log(level, line)
    if len(ordered) > LINES_MAX:
        _log.info("and %s more lines", f"{len(ordered) - LINES_MAX:,}")


def compiled_loops() -> set[str]:
    """Return the names of the loops that this process has compiled; none if it has not loaded numba."""
    jit = sys.modules.get("slotlake.decoder.compiled.jit")
    kernels = {} if jit is None else jit.kernels
    return {name for name, kernel in kernels.items() if kernel.stats.cache_misses}


def log_compiled(before: set[str]) -> None:
    """Warn if a step had to compile loops, which takes many seconds, and can be done before.

    Args:
        before: what `compiled_loops` returned before the step.
    """
    if fresh := compiled_loops() - before:
        _log.warning(
            "this task compiled %s loops, which takes seconds. What to do: run `python -m "
            "slotlake.infra.kernels` where the worker is installed, as the worker's user",
            len(fresh),
        )


def table_differs(name: str, table: Mapping[str, Any]) -> str:
    """Return in words how a table differs.

    Args:
        table: its part of the report of `verify`.
    """
    counts = table.get("kinds", {})
    kinds = ", ".join(kind if rows == 1 else f"{kind} ({rows:,})" for kind, rows in counts.items())
    rows = f"{table.get('source_rows', 0):,} rows in the source, {table.get('lake_rows', 0):,} in the lake"
    return f"{name}: {kinds or 'different'}; {rows}"


def verify_lines(report: Mapping[str, Any]) -> Lines:
    for name, table in report["tables"].items():
        if table["equal"]:
            yield _GOOD, f"{name}: equal, {table['source_rows']:,} rows"
        else:
            yield _BAD, table_differs(name, table)
    if report.get("data_docs"):
        yield _GOOD, f"Data Docs: {report['data_docs']}"
    equal = sum(table["equal"] for table in report["tables"].values())
    yield _GOOD, f"compared at {report['lsn']}: {equal:,} of {len(report['tables']):,} tables are equal"


def bootstrap_lines(report: Mapping[str, Any]) -> Lines:
    yield from _set_aside(report)
    yield from ((_BAD, warning) for warning in report["warnings"])
    for table in report["tables"]:
        yield _GOOD, f"{table['table']}: {table['rows']:,} rows in {table['lake_table']}"
    already = report["already"]
    yield _GOOD, f"the lake is at {report['lsn']}{'; the pipeline was there already' if already else ''}"


def pull_lines(report: Mapping[str, Any]) -> Lines:
    yield from _set_aside(report)
    yield from ((_BAD, warning) for warning in report.get("warnings", ()))
    yield from ((_GOOD, f"{table}: followed again") for table in report["resumed"])
    if report["batch"] is None:
        yield _GOOD, f"nothing new; the lake is at {report['end_lsn']}"
    else:
        count = brought(report["transactions"], report["changes"])
        yield _GOOD, f"{count}, {report['start_lsn']} to {report['end_lsn']}"


def apply_lines(report: Mapping[str, Any]) -> Lines:
    yield from _set_aside(report)
    for table, counts in report["conflicts"].items():
        listed = ", ".join(f"{kind} {count:,}" for kind, count in counts.items())
        yield _BAD, f"{table}: conflicts: {listed}"
    if report["already_published"]:
        yield _GOOD, "the batch is published already; nothing to do"
    yield from ((_GOOD, f"{table}: {count:,} changes") for table, count in report["tables"].items())


def publish_lines(report: Mapping[str, Any]) -> Lines:
    yield from ((_BAD, warning) for warning in report.get("warnings", ()))
    for table, snapshot in report["tables"].items():
        yield _GOOD, f"{table}: published, Iceberg snapshot {snapshot}"
    already = report["already_published"]
    yield _GOOD, f"all tables are at {report['lsn']}{'; they were before' if already else ''}"


def confirm_lines(report: Mapping[str, Any]) -> Lines:
    for table in report["compacted"]:
        packed = f"{table['rewritten_files']:,} small files packed into {table['written_files']:,}"
        if table["failed"]:
            yield _BAD, f"table {table['lake_table']} was not compacted: {table['failed']}"
        else:
            yield _GOOD, f"{table['lake_table']}: {packed}"
    yield _GOOD, f"the server may remove WAL up to {report['lsn']}"


def maintain_lines(report: Mapping[str, Any]) -> Lines:
    yield from ((_BAD, warning) for warning in report.get("warnings", ()))
    if report["left"]:
        yield _BAD, f"{len(report['left']):,} tables wait for the next run: maintenance.minutes_max was over"
    for table in report["tables"]:
        if table["staged"]:
            yield _GOOD, f"{table['lake_table']}: skipped, because a batch is being applied"
        elif table["rewritten_files"] or table["expired_snapshots"] or table["removed_files"]:
            files = f"{table['rewritten_files']:,} files became {table['written_files']:,}"
            expired, removed = table["expired_snapshots"], table["removed_files"]
            gone = f"{expired:,} snapshots expired, {removed:,} files removed"
            yield _GOOD, f"{table['lake_table']}: {files}, {gone}"
    yield _GOOD, f"{len(report['tables']):,} tables looked at in {report['seconds']:.0f} s"


def backfill_lines(report: Mapping[str, Any]) -> Lines:
    for table in report["tables"]:
        counts = (
            "the whole lake table replaced"
            if table["inserted"] is None
            else f"{table['inserted']:,} inserted, {table['changed']:,} changed, {table['deleted']:,} deleted"
        )
        would = "would be: " if report["dry_run"] else ""
        yield _GOOD, f"{table['table']}: {table['rows']:,} rows in the source; {would}{counts}"
    ended = "a dry run, nothing was changed" if report["dry_run"] else "published"
    yield _GOOD, f"{ended}, at {report['lsn']}"


def change_tables_lines(report: Mapping[str, Any]) -> Lines:
    added, removed = report["added"] or {}, report["removed"] or {}
    for table in added.get("tables", ()):
        is_bad = table["state"] == "set aside"
        yield (_BAD if is_bad else _GOOD), f"{table['table']}: {table['state']} {table['detail']}".rstrip()
    yield from ((_GOOD, line) for line in removed.get("done", ()))
    yield from ((_GOOD, f"{table}: the lake keeps it as it was") for table in removed.get("remaining", ()))
    to_write = [*added.get("to_write", ()), *removed.get("to_write", ())]
    for verb, lines in (("write", to_write), ("take out", removed.get("to_take_out"))):
        yield from (
            (_BAD, f"{verb} under `tables` in the pipeline file: {line.strip()}") for line in lines or ()
        )


def recover_lines(report: Mapping[str, Any]) -> Lines:
    verb = "done" if report["carried_out"] else "plan"
    wrong = [finding["what"] for finding in report["findings"]]
    yield from ((_BAD, f"wrong: {what}") for what in wrong)
    yield from ((_BAD, f"lost: {line}") for line in report["lost"])
    yield from ((_GOOD, f"{verb}: {line}") for line in report["plan"])
    yield _GOOD, report["diagnosis"] if not wrong else f"the lake is at {report['lsn']}"


def replay_lines(report: Mapping[str, Any]) -> Lines:
    for table in report["copied_meanwhile"]:
        yield _BAD, f"{table}: copied or read again in this range; the replay does not contain that"
    count = brought(report["transactions"], report["changes"])
    yield _GOOD, f"{count}, {report['from_lsn']} to {report['lsn']}"


def _set_aside(report: Mapping[str, Any]) -> Lines:
    aside: Iterable[tuple[str, str]] = report["set_aside"].items()
    yield from ((_BAD, f"table {table} is set aside: {reason}") for table, reason in aside)
