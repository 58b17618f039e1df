"""How `slotlake validate` looks to people: one line per check."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape

_STYLES = {"ok": "green", "warning": "yellow", "error": "red", "not checked": "dim"}


def validation_text(report: Any, console: Console) -> None:
    """Text of a ValidationReport: result, name, what was seen, the way out; the verdict at the end."""
    for check in report.checks:
        way_out = f" What to do: {check.way_out}" if check.way_out else ""
        line = f"{check.result:<11} {check.name}: {check.what}.{way_out}"
        console.print(f"[{_STYLES[check.result]}]{escape(' '.join(line.split(chr(10))))}[/]")
    errors = sum(check.result == "error" for check in report.checks)
    warnings = sum(check.result == "warning" for check in report.checks)
    console.print(f"{report.file}: {errors} errors, {warnings} warnings; nothing was changed")
