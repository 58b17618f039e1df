"""`slotlake decode`: reads a slot or a recording, and gives JSON lines or calls the user's consumer.

The slot keeps its changes. Only with --consume, the slot moves past the delivered changes at the end.
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
class DecodeArguments:
    """The arguments of the command: either ``dsn`` and ``slot``, or ``file``."""

    dsn: str | None = None
    slot: str | None = None
    file: Path | None = None
    publications: tuple[str, ...] = ()
    plugin: str = "pgoutput"
    options: tuple[str, ...] = ()
    record: Path | None = None
    consumer: str | None = None
    consume: bool = False


def decoded_lines(arguments: DecodeArguments) -> Iterator[dict[str, Any]]:
    """Yield one record per change, up to the source's current position; none if the user has a consumer.

    Raises:
        PipelineFileError: arguments contradict each other, or the consumer does not exist.
        SlotlakeError: the slot or the recording cannot be read.
    """
    _check(arguments)
    consumer = _consumer(arguments.consumer) if arguments.consumer is not None else JsonLines()
    steps = (
        file_steps(arguments.file, consumer)
        if arguments.file is not None
        else _from_slot(arguments, consumer)
    )
    if isinstance(consumer, JsonLines):
        yield from lines_of(steps, consumer)
    else:
        for _ in steps:
            pass


def _from_slot(arguments: DecodeArguments, consumer: Consumer) -> Iterator[int]:
    assert arguments.dsn is not None
    assert arguments.slot is not None
    dsn = resolve_secret(arguments.dsn, "--dsn")
    publications = arguments.publications
    if arguments.plugin == "pgoutput" and not publications:
        publications = _all_publications(dsn)
    source = SourceSettings(
        dsn=dsn, publications=publications, slot=arguments.slot, messages=True, plugin=arguments.plugin
    )
    position = 0
    options = _options(arguments.options)
    for position in slot_steps(source, consumer, options=options, record=arguments.record):
        yield position
    if arguments.consume:
        from slotlake.decoder.slots.confirm import confirm

        confirm(source, position)


def _check(arguments: DecodeArguments) -> None:
    problem = ""
    if arguments.file is None and (arguments.dsn is None or arguments.slot is None):
        problem = "to read a slot, decode needs both --dsn and --slot"
    elif arguments.file is not None and (
        arguments.dsn or arguments.slot or arguments.record or arguments.consume
    ):
        problem = "--file cannot be combined with --dsn, --slot, --record or --consume"
    elif arguments.plugin != "pgoutput" and arguments.publications:
        problem = f"the plugin {arguments.plugin} has no publications, so --publication is not possible"
    if problem:
        raise PipelineFileError(
            problem,
            where="slotlake decode",
            way_out="give --dsn and --slot, or only --file; read slotlake decode --help",
        )


def _options(pairs: tuple[str, ...]) -> dict[str, str]:
    options = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise PipelineFileError(
                "an option has no value", where="--option", way_out="write it as name=value"
            )
        options[name] = value
    return options


def _consumer(class_path: str) -> Consumer:
    """Make an object of the class ``module:Class``; the module may be in the current folder."""
    module_name, _, class_name = class_path.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        consumer_class: Any = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise PipelineFileError(
            f"the consumer {class_path!r} cannot be imported ({type(error).__name__}: {error})",
            where="--consumer",
            way_out="write it as module:Class; the module may also be in the current folder",
        ) from None
    consumer: Consumer = consumer_class()
    return consumer


def _all_publications(dsn: str) -> tuple[str, ...]:
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
