"""Derived tables that somebody dropped from the catalog while the pipeline file asks for them.

The mirror and the other tables go on without it.  What it had of the past is gone with it, so this must not
pass unnoticed: a note in the state folder lists such tables until the lake has them again, or the file asks
for them no longer.  The next sync begins them again (`infra.sync.modes`).  A table that the file does not ask
for was dropped to end it (docs/modes.md), and is not listed.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING

from slotlake.decoder.lsn import format_lsn
from slotlake.infra.config.of_tables import derived_modes
from slotlake.infra.reports import Alarm
from slotlake.infra.state.notes import DERIVED_GONE
from slotlake.spark.names import LakeName, postgres_name, source_table

if TYPE_CHECKING:
    from slotlake.infra.config.pipeline_file import PipelineFile
    from slotlake.infra.opened.open_pipeline import OpenPipeline


@dataclass(frozen=True)
class Gone:
    """A derived table that the lake lacks.

    Attributes:
        mirror: the source table, as PostgreSQL writes it.
        dropped: somebody dropped it; else the lake never had it, and it could not be begun.
        directory: where files are in the way of a new one; empty if none are.
        begun: the LSN at which it began again, as text; empty before.
        returned: it is in the lake again, and begin_modes has not made it: its mirror was copied again, or
            somebody has registered it.
    """

    mirror: str
    dropped: bool
    directory: str = ""
    begun: str = ""
    returned: bool = False

    @property
    def is_there(self) -> bool:
        """Whether the lake has it again."""
        return bool(self.begun) or self.returned

    def what(self, name: str) -> str:
        """Return in words what happened to the table."""
        if not self.dropped:
            return f"{name}, which the pipeline file asks for, could not be begun"
        if self.returned:
            return f"{name} had been dropped from the catalog by someone else, and is there again"
        lost = f"{name} was dropped from the catalog by someone else, with all that it had of the past"
        return f"{lost}; it began again at {self.begun}" if self.begun else f"{lost}; {self.mirror} goes on"

    @property
    def way_out(self) -> str:
        """What brings it back."""
        if self.directory:
            return (
                f"its directory {self.directory} holds files: remove them if nobody needs them (a table that "
                "is dropped may leave them), and the next sync begins it again"
            )
        return "the next sync begins it again, with the rows that the mirror has then"


def asked_for(
    file: PipelineFile, namespace: str, names: Collection[LakeName]
) -> dict[LakeName, tuple[str, str]]:
    """Return those of these derived tables that the pipeline file asks for, with their source tables.

    Args:
        names: of derived tables in the lake.
    """
    from slotlake.spark.publish.derived_tables import SUFFIXES

    sources: dict[LakeName, tuple[str, tuple[str, str]]] = {}
    for name, (mode, suffix) in itertools.product(names, SUFFIXES.items()):
        if name.table.lower().endswith(suffix):
            mirror = LakeName(name.namespace, name.table[: -len(suffix)])
            with suppress(KeyError):
                sources[name] = mode, source_table(namespace, mirror)
    if not sources:
        return {}
    modes = derived_modes(file, {source for _, source in sources.values()})
    return {
        name: source
        for name, (mode, source) in sources.items()
        if mode in modes.get(postgres_name(*source), ())
    }


def note_dropped(file: PipelineFile, namespace: str, names: Collection[LakeName]) -> None:
    """Note that derived tables were dropped, as far as the pipeline file asks for them.

    Args:
        names: of derived tables that the lake lacks.
    """
    noted = gone_tables(file, namespace)
    known = {name for name, gone in noted.items() if not gone.is_there}
    new = {
        str(name): Gone(postgres_name(*of), True) for name, of in asked_for(file, namespace, names).items()
    }
    _write(file, {**noted, **{name: gone for name, gone in new.items() if name not in known}})


def note_in_the_way(file: PipelineFile, namespace: str, directories: Mapping[LakeName, str]) -> None:
    """Note which derived tables cannot be begun, because there are files in their directories.

    Args:
        directories: by derived table; one that is listed and is not among these has none.
    """
    noted = {name: replace(gone, directory="") for name, gone in gone_tables(file, namespace).items()}
    for name, source in asked_for(file, namespace, directories).items():
        before = noted.get(str(name), Gone(postgres_name(*source), dropped=False))
        noted[str(name)] = replace(before, directory=directories[name], begun="", returned=False)
    _write(file, noted)


def note_present(file: PipelineFile, namespace: str, present: Collection[LakeName]) -> None:
    """Note which tables on the list the lake has again."""
    names = {str(name) for name in present} if (noted := gone_tables(file, namespace)) else set()
    back = {name: replace(gone, returned=not gone.begun) for name, gone in noted.items() if name in names}
    _write(file, {**noted, **back})


def note_begun(pipeline: OpenPipeline, names: Collection[str]) -> None:
    """Note that derived tables have begun at the lake's position.

    Args:
        names: of derived tables in the lake.
    """
    at = format_lsn(pipeline.position())
    noted = gone_tables(pipeline.file, pipeline.lake.namespace)
    begun = {
        name: replace(noted[name], begun=at, directory="", returned=False) for name in names if name in noted
    }
    _write(pipeline.file, {**noted, **begun})


def gone_tables(file: PipelineFile, namespace: str) -> dict[str, Gone]:
    """Return the tables that are listed, by their names in the lake, as far as the file asks for them."""
    note = DERIVED_GONE.of(file.state_dir).mapping()
    asked = asked_for(file, namespace, [LakeName.parse(name) for name in note])
    keys = {each.name for each in fields(Gone)}  # a later version may have written more
    noted = {str(name): note[str(name)] for name in asked}
    return {name: Gone(**{key: gone[key] for key in keys & gone.keys()}) for name, gone in noted.items()}


def gone_warnings(file: PipelineFile, namespace: str) -> list[str]:
    """Return a warning of each table that is listed, and take those off the list that are there again."""
    noted = gone_tables(file, namespace)
    _write(file, {name: gone for name, gone in noted.items() if not gone.is_there})
    return [
        gone.what(name) if gone.is_there else f"{gone.what(name)}: {gone.way_out}"
        for name, gone in noted.items()
        if gone.dropped or not gone.is_there
    ]


def gone_alarms(file: PipelineFile, namespace: str) -> list[Alarm]:
    """Return an alarm for each table that the lake lacks."""
    return [
        Alarm("derived table gone", gone.what(name), gone.way_out, name)
        for name, gone in gone_tables(file, namespace).items()
        if not gone.is_there
    ]


def _write(file: PipelineFile, tables: Mapping[str, Gone]) -> None:
    note = DERIVED_GONE.of(file.state_dir)
    content = {name: asdict(gone) for name, gone in sorted(tables.items())}
    if content != note.mapping():
        note.write(content, durable=True)
