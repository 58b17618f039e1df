"""`slotlake decode`: a slot's pending changes, or a recording's, into JSON lines or a consumer of the user's.

Nothing is consumed unless asked for: then the slot is moved on behind what was delivered, at the end.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slotlake.decoder.errors import PipelineFileError
from slotlake.decoder.plugins.consumer import Consumer
from slotlake.decoder.plugins.jsonlines import JsonLines, lines_of
from slotlake.decoder.plugins.live import file_steps, slot_steps
from slotlake.decoder.server.source import SourceSettings, source_session
from slotlake.infra.config.pipeline_file import resolve_secret


@dataclass(frozen=True)
class Wanted:
    """The command's arguments; ``dsn`` and ``slot``, or ``file``."""

    dsn: str | None = None
    slot: str | None = None
    file: Path | None = None
    publications: tuple[str, ...] = ()
    plugin: str = "pgoutput"
    options: tuple[str, ...] = ()
    record: Path | None = None
    consumer: str | None = None
    consume: bool = False


def lines(wanted: Wanted) -> Iterator[dict[str, Any]]:
    """Yield one record per change, up to the source's position now; none with a consumer of the user's.

    Raises:
        PipelineFileError: arguments that do not go together, or no such consumer.
        SlotlakeError: whatever goes wrong while reading.
    """
    _check(wanted)
    consumer = _consumer(wanted.consumer) if wanted.consumer is not None else JsonLines()
    steps = file_steps(wanted.file, consumer) if wanted.file is not None else _from_slot(wanted, consumer)
    if isinstance(consumer, JsonLines):
        yield from lines_of(steps, consumer)
    else:
        for _ in steps:
            pass


def _from_slot(wanted: Wanted, consumer: Consumer) -> Iterator[int]:
    assert wanted.dsn is not None
    assert wanted.slot is not None
    dsn = resolve_secret(wanted.dsn, "--dsn")
    publications = wanted.publications
    if wanted.plugin == "pgoutput" and not publications:
        publications = _all(dsn)
    source = SourceSettings(
        dsn=dsn, publications=publications, slot=wanted.slot, messages=True, plugin=wanted.plugin
    )
    position = 0
    options = _options(wanted.options)
    for position in slot_steps(source, consumer, options=options, record=wanted.record):
        yield position
    if wanted.consume:
        from slotlake.decoder.slots.confirm import confirm

        confirm(source, position)


def _check(wanted: Wanted) -> None:
    problem = ""
    if wanted.file is None and (wanted.dsn is None or wanted.slot is None):
        problem = "a slot needs both --dsn and --slot"
    elif wanted.file is not None and (wanted.dsn or wanted.slot or wanted.record or wanted.consume):
        problem = "--file is read instead of a slot"
    elif wanted.plugin != "pgoutput" and wanted.publications:
        problem = f"{wanted.plugin} knows no publications"
    if problem:
        raise PipelineFileError(
            problem,
            where="slotlake decode",
            way_out="give --dsn and --slot, or --file alone; see slotlake decode --help",
        )


def _options(pairs: tuple[str, ...]) -> dict[str, str]:
    options = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise PipelineFileError(
                "an option without its value", where="--option", way_out="write it as name=value"
            )
        options[name] = value
    return options


def _consumer(named: str) -> Consumer:
    """An object of the class ``module:Class``, modules of the current folder included."""
    module_name, _, class_name = named.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        made: Any = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise PipelineFileError(
            f"there is no consumer {named!r} ({type(error).__name__}: {error})",
            where="--consumer",
            way_out="write it as module:Class; the module is looked for in the current folder too",
        ) from None
    consumer: Consumer = made()
    return consumer


def _all(dsn: str) -> tuple[str, ...]:
    with source_session(dsn) as connection:
        names = tuple(
            row[0] for row in connection.execute("SELECT pubname FROM pg_publication ORDER BY 1").fetchall()
        )
    if not names:
        raise PipelineFileError(
            "the database has no publication",
            where="--publication",
            way_out="CREATE PUBLICATION … FOR TABLE …",
        )
    return names
