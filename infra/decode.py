"""`slotlake decode`: a slot's pending changes as JSON-able records, nothing consumed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from decoder.errors import PipelineFileError
from decoder.jsonlines import changes
from decoder.slots import PLUGIN
from decoder.source import SourceSettings, connect, source_errors
from infra.model import resolve_secret


def lines(dsn: str, slot: str, publications: tuple[str, ...], plugin: str) -> Iterator[dict[str, Any]]:
    """Yield one record per message, up to the source's position now.

    Raises:
        PipelineFileError: a plugin that this version does not read, or no publication to read.
    """
    if plugin != PLUGIN:
        raise PipelineFileError(
            f"the output plugin {plugin!r} is not read by this version",
            where="--plugin",
            way_out=f"use {PLUGIN}",
        )
    resolved = resolve_secret(dsn, "--dsn")
    source = SourceSettings(
        dsn=resolved, publications=publications or _all(resolved), slot=slot, messages=True
    )
    yield from changes(source)


def _all(dsn: str) -> tuple[str, ...]:
    with connect(dsn) as connection, source_errors(dsn):
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
