"""Text of `slotlake new`: the tables of a source, and the commands that come next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from slotlake.infra.cli.output import lines_of, size_text
from slotlake.infra.progress import counted

if TYPE_CHECKING:
    from slotlake.infra.status.at_source import TableAtSource
    from slotlake.infra.status.validation import ValidationReport


@dataclass(frozen=True)
class Written:
    """A pipeline file that was written.

    Attributes:
        place: host, database and user of the source, without a password.
        variable: the variable that is to have the connection string, if that had a password; else "".
        rights: the command that gives the role what it lacks, or prints that; None: it lacks nothing.
    """

    path: Path
    report: ValidationReport
    place: str
    variable: str
    rights: str | None


def tables_text(offered: Sequence[TableAtSource], console: Console) -> None:
    """Print tables with their numbers."""
    console.print(f"{len(offered):,} tables, the largest first:")
    lines_of([_table_line(*numbered) for numbered in enumerate(offered, 1)], console, "tables")


def _table_line(number: int, table: TableAtSource) -> str:
    key = f"key {', '.join(table.key)}" if table.key else "no key"
    kind = ", partitioned" if table.is_partitioned else ""
    facts = f"{size_text(table.bytes)}, {key}, replica identity {table.replica_identity}{kind}"
    notes = "".join(f"\n       [yellow]{escape(note)}[/]" for note in table.notes)
    return f"{number:>5}  {escape(table.written)}: {escape(facts)}{notes}"


def written_text(written: Written, console: Console) -> None:
    """Print what was written, and the commands that come next, each on its own line."""
    results = [check.result for check in written.report.checks]
    problems = f"{counted(results.count('error'), 'error')}, {counted(results.count('warning'), 'warning')}"
    console.print(f"\n{written.path} is written: {problems}.", markup=False)
    console.print("What comes next:")
    for line in _commands(written, has_errors="error" in results):
        console.print(f"  {line}", markup=False)


def _commands(written: Written, *, has_errors: bool) -> Iterator[str]:
    file = shlex.quote(str(written.path))
    if written.variable:
        yield f"export {written.variable}=…  # what you gave ({written.place}); its password is in no file"
    if written.rights is not None:
        yield f"{written.rights}  # for a superuser: the role's rights, and the publication"
    if has_errors:
        yield f"slotlake validate {file}  # again, when the errors above are mended"
    yield f"slotlake init {file}  # makes publication, slot and lake tables, and copies the rows"
    yield f"slotlake sync {file}  # one micro-batch, as often as you like; in a loop: slotlake run"
    yield f"slotlake verify {file}  # proves that the lake equals the source"
