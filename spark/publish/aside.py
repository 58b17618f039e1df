"""Which tables are set aside: not followed for now, while the others go on; the record of it, no more.

It is a property of `commits`, because Iceberg is the only truth about progress: it outlives a lost state
folder, and whatever publishes a table again takes it off the record in the same swap.  That a table was set
aside is a point of its own in `commits` (kind ``set_aside``, at the lake's position, ``changed`` names the
table); the table itself says since when by a property, for readers who open nothing else.

Invariant: no batch publishes a table that is on the record, so its content is that of ``lsn`` until then.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from slotlake.decoder.lsn import format_lsn
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import LakeName, lake_table, postgres_name
from slotlake.spark.publish.position import commits_name
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import Metadata

ASIDE_PROPERTY = "slotlake.aside"
Name: TypeAlias = tuple[str, str]
Cause = Literal[
    "value", "columns", "on_conflict", "on_lossy", "source", "change", "copy", "again", "absent", "changed"
]


@dataclass(frozen=True)
class Aside:
    """A table that is set aside.

    Attributes:
        schema, table: its names at the source.
        lsn: where its content in the lake stands; None if the lake has nothing of it.
        at: when it was set aside (UTC, ISO 8601).
        cause: what kind of trouble it is; ``again``: it is copied again over several syncs; ``changed``: it
            was altered while it was copied.
        what, where, way_out: the trouble, in an error's words.
        tries: how often bringing it back has failed; ``tried``: when last (UTC, ISO 8601).
        seen: what the source's catalog said of it then; something else may mean that the cause is gone.
    """

    schema: str
    table: str
    lsn: int | None
    at: str
    cause: Cause
    what: str
    where: str
    way_out: str
    tries: int = 0
    tried: str = ""
    seen: str = ""

    @property
    def name(self) -> Name:
        return self.schema, self.table

    @property
    def source_name(self) -> str:
        """As PostgreSQL writes it."""
        return postgres_name(self.schema, self.table)

    @property
    def reason(self) -> str:
        """In one line, for reports."""
        return self.reason_with(None)

    def reason_with(self, ranges: str | None) -> str:
        """As ``reason``; ``ranges``: how much of it is copied, if that is under way."""
        copied = "" if ranges is None else f"; {ranges} are copied"
        stands = "" if self.lsn is None else f"; its content stays that of {format_lsn(self.lsn)}"
        return f"{self.what}{copied}{stands}"

    @property
    def needs_nobody(self) -> bool:
        """Whether it comes back by itself, as far as is known."""
        return self.cause in {"again", "changed"} and not self.tries

    @property
    def joins(self) -> bool:
        """Whether it is copied with the tables that join: it changed under its first copy."""
        return self.cause == "changed" and self.lsn is None

    def as_dict(self) -> dict[str, Any]:
        """For reports."""
        fields = asdict(self)
        return {**fields, "lsn": None if self.lsn is None else format_lsn(self.lsn)}


def read(lake: LakeSettings) -> dict[Name, Aside]:
    """The tables that are set aside.

    Raises:
        LakeError: the lake cannot be reached.
    """
    with open_catalog(lake) as catalog:
        location = catalog.pointer(commits_name(lake.namespace))
    return {} if location is None else entries_in(catalog_metadata.load_top(location))


def entries_in(commits: Metadata) -> dict[Name, Aside]:
    """As :func:`read`, from the metadata of `commits`."""
    entries = json.loads(commits.get("properties", {}).get(ASIDE_PROPERTY, "[]"))
    return {each.name: each for each in (Aside(**entry) for entry in entries)}


def with_entries(commits: Metadata, entries: Mapping[Name, Aside]) -> Metadata:
    """The metadata of `commits` with this record."""
    text = json.dumps([asdict(each) for _, each in sorted(entries.items())], ensure_ascii=False)
    return catalog_metadata.with_properties(commits, {ASIDE_PROPERTY: text if entries else None})


def without_published(commits: Metadata, namespace: str, published: Collection[LakeName]) -> Metadata:
    """Return the metadata of `commits` once these tables are published: they are followed again."""
    entries = entries_in(commits)
    remaining = {
        name: each for name, each in entries.items() if lake_table(namespace, *name) not in published
    }
    return commits if remaining == entries else with_entries(commits, remaining)
