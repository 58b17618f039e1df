"""Which tables are set aside: not followed for now, while the others go on; the record of it, no more.

It is a property of `commits`, because Iceberg is the only truth about progress: it outlives a lost state
folder, and whatever publishes a table again takes it off the record in the same swap.  Next to it stand the
lives of all tables that are not simply followed (spark/publish/lives.py).  That a table was set aside is a
point of its own in `commits` (kind ``set_aside``, at the lake's position, ``changed`` names the table); the
table itself says since when by a property, for readers who open nothing else.

Invariant: no batch publishes a table that is on the record, so its content is that of ``lsn`` until then.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from slotlake.decoder.lsn import format_lsn
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import LakeName, lake_table, postgres_name
from slotlake.spark.publish import lives
from slotlake.spark.publish.lives import Event, Life
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


@dataclass(frozen=True)
class Record:
    """What `commits` says of the tables that are not simply followed.

    Attributes:
        entries: those that are set aside, and why; exactly those of which the life says so.
        lives: of all of them.
    """

    entries: Mapping[Name, Aside]
    lives: Mapping[Name, Life]

    @classmethod
    def of(cls, commits: Metadata) -> Record:
        """The record in the metadata of `commits`.

        Versions that know of no lives write entries alone: what they say of a table counts.
        """
        entries, stored = entries_in(commits), lives.stored_in(commits)
        joining = {name: life for name, life in stored.items() if life.joins and name not in entries}
        return cls(entries, joining | {name: _life(each, stored.get(name)) for name, each in entries.items()})

    def after(
        self,
        events: Mapping[Name, Event],
        entries: Mapping[Name, Aside] = MappingProxyType({}),
        in_lake: frozenset[Name] = frozenset(),
    ) -> Record:
        """The record after these events.

        Args:
            entries: why tables are set aside by them.
            in_lake: those of the tables that the lake has.

        Raises:
            LakeError: something of this cannot happen to a table.
        """
        changed = lives.moved(self.lives, events, in_lake)
        reasons = {**self.entries, **entries}
        return Record(
            {n: each for n, each in reasons.items() if n in changed and changed[n].is_aside}, changed
        )

    def written_to(self, commits: Metadata) -> Metadata:
        """The metadata of `commits` with this record."""
        text = json.dumps([asdict(each) for _, each in sorted(self.entries.items())], ensure_ascii=False)
        return catalog_metadata.with_properties(
            commits,
            {
                ASIDE_PROPERTY: text if self.entries else None,
                lives.LIVES_PROPERTY: lives.property_of(self.lives),
            },
        )

    def published(self, namespace: str, tables: Collection[LakeName]) -> Record:
        """The record once these tables are published: they are followed again."""
        names = [name for name in self.lives if lake_table(namespace, *name) in tables]
        return self.after(dict.fromkeys(names, Event.PUBLISHED)) if names else self


def _life(entry: Aside, stored: Life | None) -> Life:
    """The life of a table that is set aside."""
    if stored is not None and stored.is_aside:
        return stored
    return Life.COPIED_AGAIN if entry.cause == "again" else Life.SET_ASIDE
