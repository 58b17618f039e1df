"""How `slotlake new` makes a pipeline file: it connects, looks, asks at a terminal, writes and checks.

Invariant: no password is printed or written; a connection string with one becomes `env:NAME` in the file.
Nothing is changed at the source.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import typer
from rich.console import Console

from slotlake.decoder.errors import PipelineFileError, SlotlakeError
from slotlake.decoder.server.source import redact, source_session
from slotlake.infra.cli.pages import write_whole
from slotlake.infra.cli.texts import new as texts
from slotlake.infra.cli.texts.look import check_lines
from slotlake.infra.config.airflow_connection import connection_text
from slotlake.infra.config.new_file import NAME, NewFile
from slotlake.infra.config.pipeline_file import load_pipeline, resolve_secret
from slotlake.infra.config.secrets import has_password
from slotlake.infra.config.table_names import pattern_of
from slotlake.infra.selection.file_tables import line_in_file, pattern_line
from slotlake.infra.selection.named import nearest, nearest_pattern
from slotlake.infra.source.grants import grants
from slotlake.infra.status.at_source import tables_at_source
from slotlake.infra.status.validation import validate, validate_source
from slotlake.spark.names import parse_postgres_name, postgres_name

if TYPE_CHECKING:
    from slotlake.infra.status.at_source import TableAtSource
    from slotlake.infra.status.validation import ValidationReport

T = TypeVar("T")
_ALL: Final = "all"
_TABLES = "Tables: numbers, names, patterns (shop.*), or all"
_LAKE = "The lake: a folder, or s3://bucket/prefix"
# A name in a list: what a space or a comma in double quotes belongs to.
_WORD = re.compile(r"""(?:"(?:[^"]|"")*"|[^\s,"])+""")
_OF_RIGHTS = {"logical decoding", "publications"}


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
        asks = sys.stdin.isatty() and not yes
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
            SlotlakeError: the option or the default is not accepted.
        """
        if given is not None or not self.asks:
            return accept(given if given is not None else default or "")
        while True:
            try:
                return accept(str(typer.prompt(question, default=default)).strip())
            except SlotlakeError as error:
                typer.echo(f"slotlake: {error}", err=True)


@dataclass(frozen=True)
class _Server:
    """A source that has answered.

    Attributes:
        given: as the user gave it: `env:NAME`, or a connection string.
        dsn: the connection string.
    """

    given: str
    dsn: str
    database: str
    is_superuser: bool


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
        server = ask(dsn, "Connection string of the source, better env:NAME", None, _connected)
        default = fitting_name(server.database if self._path is None else self._path.stem)
        named = ask(name, "Name of the pipeline", default, _named)
        path = self._path or Path(f"{named}.yaml")
        require_absent(path, self._overwrite)
        variable = _variable(server, named)
        without_lake = NewFile(named, f"env:{variable}" if variable else server.given)
        new_file = ask(lake, _LAKE, "lake", lambda text: _with_lake(without_lake, text, path))
        draft = new_file.draft(path.absolute())
        first = validate_source(draft)
        check_lines(first, self._console)
        offered = tables_at_source(draft)
        _require_some(offered, server)
        texts.tables_text(offered, self._console)
        words = None if tables is None else " ".join(tables)
        chosen = ask(words, _TABLES, _ALL, lambda text: _chosen(text, offered))
        write_whole(path, replace(new_file, tables=chosen).text())
        report = validate(path)
        check_lines([c for c in report.checks if c.result != "ok" and c not in first], self._console)
        rights = None if server.is_superuser else self._rights(path, server.database, report)
        written = texts.Written(path, report, redact(server.dsn), variable, rights)
        texts.written_text(written, self._console)
        return report.valid

    def _rights(self, path: Path, database: str, report: ValidationReport) -> str | None:
        """Write the SQL for the role next to the file, if it lacks rights; return the command for it."""
        if not any(check.result == "error" and check.name in _OF_RIGHTS for check in report.checks):
            return None
        sql = path.with_suffix(".sql")
        if self._overwrite or not sql.exists():
            write_whole(sql, grants(load_pipeline(path)))
            return f"psql -d {shlex.quote(database)} -f {shlex.quote(str(sql))}"
        return f"slotlake init {shlex.quote(str(path))} --print-sql"


def fitting_name(text: str) -> str:
    """Return a name for a pipeline that is like a text."""
    name = re.sub("[^a-z0-9_]+", "_", text.lower()).strip("_")[:40]
    return name if name[:1].isalpha() else f"db_{name}".rstrip("_")


def _named(text: str) -> str:
    if NAME.fullmatch(text):
        return text
    raise PipelineFileError(
        f"{text!r} is no name for a pipeline that also names its slot and its namespace",
        where="--name",
        way_out="write at most 50 lower-case letters, digits and _, a letter first",
    )


def _connected(text: str) -> _Server:
    kind, _, rest = text.partition(":")
    is_airflow = kind == "airflow"
    dsn = connection_text(rest, "--dsn", tokens=True) if is_airflow else resolve_secret(text, "--dsn")
    with source_session(dsn, "looking at the server") as connection:
        info = connection.info
        return _Server(text, dsn, info.dbname, info.parameter_status("is_superuser") == "on")


def _variable(server: _Server, name: str) -> str:
    """Return the variable that stands in the file for a connection string with a password; else ""."""
    if server.given != server.dsn or not has_password(server.dsn):
        return ""
    variable = f"{name.upper()}_DSN"
    os.environ[variable] = server.dsn  # for the checks that follow
    return variable


def _with_lake(new_file: NewFile, text: str, path: Path) -> NewFile:
    with_lake = replace(new_file, lake=text)
    try:
        with_lake.draft(path.absolute())
    except PipelineFileError as error:
        way_out = "name a folder, s3://bucket/prefix, gs://… or abfss://…"
        raise PipelineFileError(error.what, where="--lake", way_out=way_out) from None
    return with_lake


def require_absent(path: Path, overwrite: bool) -> None:
    """Check that no file is there that was not to be written over.

    Raises:
        PipelineFileError: one is.
    """
    if path.exists() and not overwrite:
        raise PipelineFileError(
            "the file is there already, and stays as it is",
            where=str(path),
            way_out="name another file, or give --overwrite",
        )


def _require_some(offered: Sequence[TableAtSource], server: _Server) -> None:
    if not offered:
        raise PipelineFileError(
            f"the database {server.database} has no table that can be published",
            where="--dsn",
            way_out="name the database that has the tables (no views, unlogged or foreign tables)",
        )


def _chosen(text: str, offered: Sequence[TableAtSource]) -> list[str]:
    """Return the lines for an answer: numbers of the list, names, patterns, or all."""
    names = [table.name for table in offered]
    words = _WORD.findall(text)
    if not words or words == [_ALL]:
        return [line_in_file(name) for name in sorted(names)]
    return list(dict.fromkeys(_line(word, names) for word in words))


def _line(word: str, names: Sequence[tuple[str, str]]) -> str:
    pattern = None
    with suppress(KeyError):
        pattern = pattern_of(word)
    if pattern is None:
        return line_in_file(_table(word, names))
    if any(map(pattern.matches, names)):
        return pattern_line(pattern)
    meant = nearest_pattern(pattern, names)
    raise PipelineFileError(
        f"no table of the source matches {word}",
        where="--tables",
        way_out=f"did you mean {meant}?" if meant else "name tables of the list, with their schema",
    )


def _table(word: str, names: Sequence[tuple[str, str]]) -> tuple[str, str]:
    if word.isdecimal() and 0 < int(word) <= len(names):
        return names[int(word) - 1]
    try:
        name = parse_postgres_name(word)
    except KeyError:
        name = ("", word)
    if name in names:
        return name
    meant = nearest(name, names)
    raise PipelineFileError(
        f"the source has no table {postgres_name(*name) if name[0] else word} that can be published",
        where="--tables",
        way_out=f"did you mean {meant}?" if meant else "name tables of the list, with their schema",
    )
