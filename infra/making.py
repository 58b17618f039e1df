"""A new pipeline file, for who knows its database: what stands in it, and what its answers may be.

Nothing is changed at the source.  `slotlake new` asks at a terminal (infra/cli/making.py), the DAG `cdc_new`
has a form (infra/airflow/new.py).  Invariant: an answer that would make a wrong file is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from slotlake.decoder.errors import PipelineFileError
from slotlake.decoder.server.source import source_session
from slotlake.infra.config.airflow_connection import connection_text
from slotlake.infra.config.new_file import NAME, NewFile
from slotlake.infra.config.pipeline_file import resolve_secret
from slotlake.infra.config.table_names import pattern_of
from slotlake.infra.selection.file_tables import line_in_file, pattern_line
from slotlake.infra.selection.named import nearest, nearest_pattern
from slotlake.spark.names import parse_postgres_name, postgres_name

if TYPE_CHECKING:
    from slotlake.infra.status.at_source import TableAtSource
    from slotlake.infra.status.validation import ValidationReport

ALL: Final = "all"
# A name in a list: what a space or a comma in double quotes belongs to.
_WORD = re.compile(r"""(?:"(?:[^"]|"")*"|[^\s,"])+""")
_OF_RIGHTS = {"logical decoding", "publications"}


@dataclass(frozen=True)
class Server:
    """A source that has answered.

    Attributes:
        given: as the user gave it: `env:NAME`, or a connection string.
        dsn: the connection string.
    """

    given: str
    dsn: str
    database: str
    is_superuser: bool


def fitting_name(text: str) -> str:
    """Return a name for a pipeline that is like a text."""
    name = re.sub("[^a-z0-9_]+", "_", text.lower()).strip("_")[:40]
    return name if name[:1].isalpha() else f"db_{name}".rstrip("_")


def pipeline_name(text: str) -> str:
    """Return the name, if it can also name slot, publication and namespace.

    Raises:
        PipelineFileError: it cannot.
    """
    if NAME.fullmatch(text):
        return text
    raise PipelineFileError(
        f"{text!r} is no name for a pipeline that also names its slot and its namespace",
        where="--name",
        way_out="write at most 50 lower-case letters, digits and _, a letter first",
    )


def connected(text: str) -> Server:
    """Return a source that answers.

    Args:
        text: ``env:NAME``, ``airflow:CONN_ID`` or a connection string.

    Raises:
        SlotlakeError: the text names none, or the server refuses or cannot be reached.
    """
    kind, _, rest = text.partition(":")
    is_airflow = kind == "airflow"
    dsn = connection_text(rest, "--dsn", tokens=True) if is_airflow else resolve_secret(text, "--dsn")
    with source_session(dsn, "looking at the server") as connection:
        info = connection.info
        return Server(text, dsn, info.dbname, info.parameter_status("is_superuser") == "on")


def with_lake(new_file: NewFile, text: str, path: Path) -> NewFile:
    """Return the file with that lake.

    Args:
        new_file: what is known of it.
        text: a folder, or a place in an object store.
        path: where the file will be.

    Raises:
        PipelineFileError: no pipeline file can have such a lake.
    """
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


def require_some(offered: Sequence[TableAtSource], server: Server) -> None:
    """Check that there are tables to choose from.

    Raises:
        PipelineFileError: there are none.
    """
    if not offered:
        raise PipelineFileError(
            f"the database {server.database} has no table that can be published",
            where="--dsn",
            way_out="name the database that has the tables (no views, unlogged or foreign tables)",
        )


def chosen_lines(text: str, offered: Sequence[TableAtSource]) -> list[str]:
    """Return the lines for an answer: numbers of the list, names, patterns, or all.

    Args:
        text: the answer; empty: all.
        offered: the list, whose numbers begin at 1.

    Raises:
        PipelineFileError: a name or a pattern stands for no table.
    """
    names = [table.name for table in offered]
    words = _WORD.findall(text)
    if not words or words == [ALL]:
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


def lacks_rights(report: ValidationReport) -> bool:
    """Return whether the role lacks something that the SQL for it gives (`infra.source.grants`)."""
    return any(check.result == "error" and check.name in _OF_RIGHTS for check in report.checks)
