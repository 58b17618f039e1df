"""What of tables that are set aside is told as text."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape

from slotlake.expectations.results import ASIDE, LOCKED


def resume_text(report: Any, console: Console) -> None:
    """Text of a ResumeReport."""
    name = escape(report.table)
    if report.already:
        console.print(f"{name} is not set aside: it is followed, and the lake is at {report.lsn}")
    elif report.copying:
        console.print(f"{name}: {report.copying} are copied; it stays set aside, each sync copies more of it")
    else:
        console.print(f"{name}: {report.rows:,} rows copied; it is followed again from {report.lsn} on")


def aside_text(report: Any, console: Console) -> None:
    """The lines of a SyncReport, a PullReport or an ApplyReport about tables that are, or were, set aside."""
    for name in getattr(report, "resumed", ()):
        console.print(f"{escape(name)} was set aside and is followed again")
    for name, reason in report.set_aside.items():
        console.print(f"[yellow]{escape(name)} is set aside[/yellow]: {escape(reason)}")


def verdict_text(result: Any) -> str:
    """Of a table that is not equal."""
    return "set aside" if ASIDE in result.totals else "locked" if LOCKED in result.totals else "different"
