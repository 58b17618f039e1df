"""How `slotlake new` makes a pipeline file: it connects, looks, asks at a terminal, writes and checks.

Invariant: no password is printed or written; a connection string with one becomes `env:NAME` in the file.
Nothing is changed at the source.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer
from rich.console import Console

from slotlake.decoder.errors import PipelineFileError, SlotlakeError
from slotlake.decoder.server.source import redact
from slotlake.infra.cli.asking import asking, is_terminal
from slotlake.infra.cli.texts import new as texts
from slotlake.infra.cli.texts.look import check_lines
from slotlake.infra.config.new_file import NewFile
from slotlake.infra.config.pipeline_file import load_pipeline
from slotlake.infra.config.secrets import has_password
from slotlake.infra.config.whole_file import write_whole
from slotlake.infra.making import (
    ALL,
    Server,
    chosen_lines,
    connected,
    fitting_name,
    lacks_rights,
    pipeline_name,
    require_absent,
    require_some,
    with_lake,
)
from slotlake.infra.source.grants import grants
from slotlake.infra.status.at_source import tables_at_source
from slotlake.infra.status.validation import validate, validate_source

if TYPE_CHECKING:
    from slotlake.infra.status.validation import ValidationReport

T = TypeVar("T")
_TABLES = "Tables: numbers, names, patterns (shop.*), or all"
_OPTIONS = "--dsn and --yes answer all questions"
_LAKE = "The lake: a folder, or s3://bucket/prefix"


@dataclass(frozen=True)
class Questions:
    """What happens with what no option says: it is asked for, or gets its default."""

    asks: bool

    @classmethod
    def checked(cls, yes: bool, given: Mapping[str, object]) -> Questions:
        """Decide whether to ask.

        Args:
            yes: the option ``--yes``: what is missing gets its default, except the source.
            given: what the options say, None for nothing.

        Raises:
            PipelineFileError: something is missing, and nobody can be asked.
        """
        asks = is_terminal() and not yes
        missing = [
            option for option, value in given.items() if value is None and (option == "--dsn" or not yes)
        ]
        if missing and not asks:
            least = "--yes" if given["--dsn"] else "--dsn and --yes"
            rest = "" if yes else f"; or {least}: the rest then gets its default"
            raise PipelineFileError(
                "this is no terminal, so nothing can be asked" if not yes else "nothing says which database",
                where="slotlake new",
                way_out=f"give {', '.join(missing)}{rest} (slotlake new --help)",
            )
        return cls(asks)

    def answer(self, given: str | None, question: str, default: str | None, accept: Callable[[str], T]) -> T:
        """Return what ``accept`` makes of the option, the default, or an answer; it asks until that is right.

        Raises:
            SlotlakeError: the option or the default is not accepted, or the input ends.
        """
        if given is not None or not self.asks:
            return accept(given if given is not None else default or "")
        while True:
            with asking("new", unchanged="no file was written", way_out=_OPTIONS):
                typed = str(typer.prompt(question, default=default)).strip()
            try:
                return accept(typed)
            except SlotlakeError as error:
                typer.echo(f"slotlake: {error}", err=True)


class New:
    """A pipeline file that is being made."""

    def __init__(self, questions: Questions, path: Path | None, overwrite: bool) -> None:
        self._questions, self._path, self._overwrite = questions, path, overwrite
        self._console = Console(highlight=False, soft_wrap=True)

    def write(
        self, dsn: str | None, name: str | None, tables: Sequence[str] | None, lake: str | None
    ) -> bool:
        """Look at the server, write the file, check it, and print what comes next.

        Args:
            dsn, name, tables, lake: what the options say.

        Returns:
            Whether the file is valid.

        Raises:
            SlotlakeError: an option is wrong, or the source cannot be asked; nothing is written.
        """
        ask = self._questions.answer
        server = ask(dsn, "Connection string of the source, better env:NAME", None, connected)
        default = fitting_name(server.database if self._path is None else self._path.stem)
        named = ask(name, "Name of the pipeline", default, pipeline_name)
        path = self._path or Path(f"{named}.yaml")
        require_absent(path, self._overwrite)
        variable = _variable(server, named)
        without_lake = NewFile(named, f"env:{variable}" if variable else server.given)
        new_file = ask(lake, _LAKE, "lake", lambda text: with_lake(without_lake, text, path))
        draft = new_file.draft(path.absolute())
        first = validate_source(draft)
        check_lines(first, self._console)
        offered = tables_at_source(draft)
        require_some(offered, server)
        texts.tables_text(offered, self._console)
        words = None if tables is None else " ".join(tables)
        lines = ask(words, _TABLES, ALL, lambda text: chosen_lines(text, offered))
        write_whole(path, replace(new_file, tables=lines).text())
        report = validate(path)
        check_lines([c for c in report.checks if c.result != "ok" and c not in first], self._console)
        rights = None if server.is_superuser else self._rights(path, server.database, report)
        written = texts.Written(path, report, redact(server.dsn), variable, rights)
        texts.written_text(written, self._console)
        return report.valid

    def _rights(self, path: Path, database: str, report: ValidationReport) -> str | None:
        """Write the SQL for the role next to the file, if it lacks rights; return the command for it."""
        if not lacks_rights(report):
            return None
        sql = path.with_suffix(".sql")
        if self._overwrite or not sql.exists():
            write_whole(sql, grants(load_pipeline(path)))
            return f"psql -d {shlex.quote(database)} -f {shlex.quote(str(sql))}"
        return f"slotlake init {shlex.quote(str(path))} --print-sql"


def _variable(server: Server, name: str) -> str:
    """Return the variable that stands in the file for a connection string with a password; else ""."""
    if server.given != server.dsn or not has_password(server.dsn):
        return ""
    variable = f"{name.upper()}_DSN"
    os.environ[variable] = server.dsn  # for the checks that follow
    return variable
