"""Lake tables that are not as the pipeline file asks: another Iceberg format, another layout.

A new table gets what the file asks for. A table that the lake has stays as it is, and all of slotlake goes by
that, until a command changes it: an edit of the file alone changes nothing. Syncs and `status` warn of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from slotlake.infra.selection.formats import other_formats
from slotlake.infra.selection.layouts import other_layouts

if TYPE_CHECKING:
    from slotlake.infra.pipeline_open import OpenPipeline
    from slotlake.spark.names import LakeName
    from slotlake.spark.read.point import ReadPoint

_NAMED_MAX = 3


@dataclass(frozen=True)
class Asked:
    """Something that the pipeline file asks of each table.

    ``others``: the tables that differ, with what they have and what the file asks for.
    """

    name: str
    what: str
    verb: str
    others: Callable[[ReadPoint], Mapping[LakeName, tuple[Any, Any]]]

    @property
    def command(self) -> str:
        """What changes the tables."""
        return f"slotlake {self.name}"

    def differences(self, point: ReadPoint) -> str:
        """Return in words which tables differ; empty if none does."""
        others = self.others(point)
        if not others:
            return ""
        named = [
            f"{name} {self.verb} {present}, the file says {wanted}"
            for name, (present, wanted) in sorted(others.items())
        ]
        more = f"; and {len(named) - _NAMED_MAX} more" if len(named) > _NAMED_MAX else ""
        listed = "; ".join(named[:_NAMED_MAX])
        return f"tables have another {self.what} than the pipeline file asks for ({listed}{more})"


FORMAT = Asked("format", "Iceberg format", "has", other_formats)
LAYOUT = Asked("layout", "layout", "is", other_layouts)
_NOTED: WeakKeyDictionary[OpenPipeline, list[str]] = WeakKeyDictionary()


def pending_changes(point: ReadPoint) -> list[tuple[str, str]]:
    """Return in words which tables differ from the pipeline file, each time with the way out."""
    pairs = ((asked.differences(point), asked.command) for asked in (FORMAT, LAYOUT))
    return [(what, f"they keep theirs until you run {command}") for what, command in pairs if what]


def pending_warnings(point: ReadPoint) -> list[str]:
    """Return the same as warnings."""
    return [f"{what}: {way_out}" for what, way_out in pending_changes(point)]


def note_pending(pipeline: OpenPipeline, point: ReadPoint) -> None:
    """Note what is to be warned of at a point that a sync has read anyway: it reads all tables for that."""
    _NOTED[pipeline] = pending_warnings(point)


def noted_pending(pipeline: OpenPipeline) -> list[str]:
    """Return the warnings of the last point that was noted."""
    return _NOTED.get(pipeline, [])
