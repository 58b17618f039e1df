"""Lake tables that are not as the pipeline file asks: another Iceberg format, another layout.

A new table gets what the file asks for. A table that the lake has stays as it is, and all of slotlake goes by
that, until a command changes it: an edit of the file alone changes nothing. Syncs and `status` warn of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from slotlake.infra.selection.layouts import other_layouts
from slotlake.spark.names import COMMITS

if TYPE_CHECKING:
    from collections.abc import Collection

    from slotlake.decoder.memory import Memory
    from slotlake.spark.catalog.listing import Listing
    from slotlake.spark.names import LakeName
    from slotlake.spark.read.point import ReadPoint

_NAMED_MAX = 3


class Others(Protocol):
    """Returns the tables that differ from the pipeline file, of all mirrors or of some."""

    def __call__(
        self, point: ReadPoint, only: Collection[LakeName] | None = None
    ) -> Mapping[LakeName, tuple[Any, Any]]: ...


@dataclass(frozen=True)
class Asked:
    """Something that the pipeline file asks of each table.

    ``others``: the tables that differ, with what they have and what the file asks for.
    """

    name: str
    what: str
    verb: str
    others: Others

    @property
    def command(self) -> str:
        """What changes the tables."""
        return f"slotlake {self.name}"

    def in_words(self, others: Mapping[LakeName, tuple[Any, Any]]) -> str:
        """Return in words which tables differ; empty if none does.

        Args:
            others: as `Others` returns them.
        """
        if not others:
            return ""
        named = [
            f"{name} {self.verb} {present}, the file says {wanted}"
            for name, (present, wanted) in sorted(others.items())
        ]
        more = f"; and {len(named) - _NAMED_MAX} more" if len(named) > _NAMED_MAX else ""
        listed = "; ".join(named[:_NAMED_MAX])
        return f"tables have another {self.what} than the pipeline file asks for ({listed}{more})"


def other_formats(
    point: ReadPoint, only: Collection[LakeName] | None = None
) -> dict[LakeName, tuple[int, int]]:
    """Return the tables, derived ones included, with their format and the one that the file asks for.

    Args:
        only: look only at these mirrors and what is derived from them.
    """
    from slotlake.spark.tables import metadata

    others = {}
    mirrors = point.mirrors()
    for mirror in mirrors if only is None else only:
        table = mirrors[mirror]
        wanted = point.lake.format_of(table.source_name)
        for name in (mirror, *point.derived_tables_of(mirror).values()):
            present = int(metadata.load_top(point.pinned[name].pointer)["format-version"])
            if present != wanted:
                others[name] = present, wanted
    return others


FORMAT = Asked("format", "Iceberg format", "has", other_formats)
LAYOUT = Asked("layout", "layout", "is", other_layouts)
_ASKED = (FORMAT, LAYOUT)


@dataclass(frozen=True)
class _Noted:
    """What a sync has seen: the tables' pointers, and of each `Asked` the tables that differ."""

    listing: Listing | None
    others: Sequence[Mapping[LakeName, tuple[Any, Any]]]


def pending_changes(point: ReadPoint) -> list[tuple[str, str]]:
    """Return in words which tables differ from the pipeline file, each time with the way out."""
    return _with_way_out([asked.others(point) for asked in _ASKED])


def pending_warnings(point: ReadPoint) -> list[str]:
    """Return the same as warnings."""
    return [f"{what}: {way_out}" for what, way_out in pending_changes(point)]


def note_pending(memory: Memory, point: ReadPoint) -> None:
    """Note what is to be warned of at a point that a sync has read anyway.

    Of a thousand tables, of which a batch changed ten, ten are looked at.

    Args:
        memory: of the open pipeline, whose sync it is.
    """
    before = memory.get(_Noted)
    changed = None if before is None else _changed_mirrors(before.listing, point)
    if before is None or changed is None:
        memory.put(_Noted(point.listing, [asked.others(point) for asked in _ASKED]))
    elif changed:
        same = [{name: of for name, of in each.items() if name not in changed} for each in before.others]
        others = [{**rest, **asked.others(point, changed)} for asked, rest in zip(_ASKED, same, strict=True)]
        memory.put(_Noted(point.listing, others))


def noted_pending(memory: Memory) -> list[str]:
    """Return the warnings of the last point that was noted in an open pipeline's memory."""
    noted = memory.get(_Noted)
    return [] if noted is None else [f"{what}: {way_out}" for what, way_out in _with_way_out(noted.others)]


def _changed_mirrors(before: Listing | None, point: ReadPoint) -> set[LakeName] | None:
    """The mirrors with another pointer; None if anything else may have changed, as a derived table."""
    now = point.listing
    since = None if before is None or now is None else now.changed_since(before)
    if before is None or now is None or since is None:
        return None
    changed = {name for name in since if name.table != COMMITS}
    known = before.pointers.keys() & changed & now.pointers.keys() & point.mirrors().keys()
    return changed if known == changed else None


def _with_way_out(others: Sequence[Mapping[LakeName, tuple[Any, Any]]]) -> list[tuple[str, str]]:
    pairs = ((asked.in_words(each), asked.command) for asked, each in zip(_ASKED, others, strict=True))
    return [(what, f"they keep theirs until you run {command}") for what, command in pairs if what]
