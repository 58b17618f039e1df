"""The life of a table: all it can be in, all that can happen to it, and what follows from that.

Whatever changes what a table is asks :func:`after`; what is not in the table of transitions is refused, and
nothing is written.  Why a table is set aside says `Aside.cause` (spark/publish/aside.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeAlias

from slotlake.decoder.errors import LakeError
from slotlake.spark.names import postgres_name

if TYPE_CHECKING:
    from slotlake.spark.tables.metadata import Metadata

LIVES_PROPERTY = "slotlake.lives"
Name: TypeAlias = tuple[str, str]


class Life(StrEnum):
    """What a table is in."""

    ABSENT = "absent"  # the lake has nothing of it
    SETTLING = "settling"  # it joins, and waits for transactions that wrote to it before it was published
    COPYING = "copying"  # it joins, and is copied over several syncs
    FOLLOWED = "followed"  # each batch brings its changes
    SET_ASIDE = "set aside"  # its content stays what it was; the other tables go on
    COPIED_AGAIN = "copied again"  # set aside, until it is copied whole
    LEFT = "left"  # the lake has it, the publications have not; its content stays what it was

    @property
    def joins(self) -> bool:
        return self in {Life.SETTLING, Life.COPYING}

    @property
    def is_aside(self) -> bool:
        """Whether there is a record of why it is set aside."""
        return self in {Life.SET_ASIDE, Life.COPIED_AGAIN}


class Event(StrEnum):
    """What happens to a table."""

    WAITS = "waits for open transactions"
    BEGINS = "is copied in part"
    PUBLISHED = "is published whole"
    TROUBLED = "cannot be followed"
    TRIED = "is copied again in vain"
    AGAIN = "is to be copied again"
    GIVEN_UP = "has its copy given up"
    UNPUBLISHED = "is taken out of the publications"
    REMOVED = "is removed from the lake"


_NEXT: Final[Mapping[tuple[Life, Event], Life]] = {
    (Life.ABSENT, Event.WAITS): Life.SETTLING,
    (Life.ABSENT, Event.BEGINS): Life.COPYING,
    (Life.ABSENT, Event.PUBLISHED): Life.FOLLOWED,
    (Life.ABSENT, Event.TROUBLED): Life.SET_ASIDE,
    # Somebody dropped it from the catalog: the lake has lost it, and it is copied like a new one.
    (Life.ABSENT, Event.AGAIN): Life.COPIED_AGAIN,
    # The run that began the copy was ended before it wrote that, or was of a version that did not write it.
    (Life.ABSENT, Event.GIVEN_UP): Life.ABSENT,
    (Life.SETTLING, Event.WAITS): Life.SETTLING,
    (Life.SETTLING, Event.BEGINS): Life.COPYING,
    (Life.SETTLING, Event.PUBLISHED): Life.FOLLOWED,
    (Life.SETTLING, Event.TROUBLED): Life.SET_ASIDE,
    (Life.SETTLING, Event.GIVEN_UP): Life.ABSENT,
    (Life.SETTLING, Event.UNPUBLISHED): Life.ABSENT,
    (Life.SETTLING, Event.REMOVED): Life.ABSENT,
    # It was altered, so its copy was given up, and begins again when nobody writes to it.
    (Life.COPYING, Event.WAITS): Life.SETTLING,
    (Life.COPYING, Event.BEGINS): Life.COPYING,
    (Life.COPYING, Event.PUBLISHED): Life.FOLLOWED,
    (Life.COPYING, Event.TROUBLED): Life.SET_ASIDE,
    (Life.COPYING, Event.GIVEN_UP): Life.ABSENT,
    (Life.COPYING, Event.UNPUBLISHED): Life.ABSENT,
    (Life.COPYING, Event.REMOVED): Life.ABSENT,
    (Life.FOLLOWED, Event.PUBLISHED): Life.FOLLOWED,
    (Life.FOLLOWED, Event.TROUBLED): Life.SET_ASIDE,
    (Life.FOLLOWED, Event.AGAIN): Life.COPIED_AGAIN,
    (Life.FOLLOWED, Event.UNPUBLISHED): Life.LEFT,
    (Life.FOLLOWED, Event.REMOVED): Life.ABSENT,
    # It changed under its first copy, so it is copied with the tables that join.
    (Life.SET_ASIDE, Event.WAITS): Life.SET_ASIDE,
    (Life.SET_ASIDE, Event.BEGINS): Life.SET_ASIDE,
    (Life.SET_ASIDE, Event.GIVEN_UP): Life.SET_ASIDE,
    (Life.SET_ASIDE, Event.PUBLISHED): Life.FOLLOWED,
    (Life.SET_ASIDE, Event.TROUBLED): Life.SET_ASIDE,
    (Life.SET_ASIDE, Event.TRIED): Life.SET_ASIDE,
    (Life.SET_ASIDE, Event.AGAIN): Life.COPIED_AGAIN,
    # Published again, it still lacks what it missed when it was set aside, and says so.
    (Life.SET_ASIDE, Event.UNPUBLISHED): Life.SET_ASIDE,
    (Life.SET_ASIDE, Event.REMOVED): Life.ABSENT,
    (Life.COPIED_AGAIN, Event.WAITS): Life.COPIED_AGAIN,
    (Life.COPIED_AGAIN, Event.BEGINS): Life.COPIED_AGAIN,
    (Life.COPIED_AGAIN, Event.GIVEN_UP): Life.COPIED_AGAIN,
    (Life.COPIED_AGAIN, Event.PUBLISHED): Life.FOLLOWED,
    (Life.COPIED_AGAIN, Event.TROUBLED): Life.SET_ASIDE,
    # The next sync goes on with the ranges that are there.
    (Life.COPIED_AGAIN, Event.TRIED): Life.COPIED_AGAIN,
    (Life.COPIED_AGAIN, Event.AGAIN): Life.COPIED_AGAIN,
    (Life.COPIED_AGAIN, Event.UNPUBLISHED): Life.SET_ASIDE,
    (Life.COPIED_AGAIN, Event.REMOVED): Life.ABSENT,
    # It is in the publications again: the batch that shows this copies it.
    (Life.LEFT, Event.PUBLISHED): Life.FOLLOWED,
    (Life.LEFT, Event.REMOVED): Life.ABSENT,
}


def after(life: Life, event: Event, table: str = "") -> Life:
    """What a table is in after an event.

    Args:
        table: as PostgreSQL writes it, for the error.

    Raises:
        LakeError: this cannot happen to a table that is in this life.
    """
    try:
        return _NEXT[life, event]
    except KeyError:
        raise LakeError(
            f'a table whose life is "{life}" is not one that {event}',
            where=f"table {table}" if table else "",
            way_out="nothing was written; run the command again. If it says this again, report it",
        ) from None


def stored_in(commits: Metadata) -> dict[Name, Life]:
    """The lives that the metadata of `commits` names; a table that its newest point has is else followed."""
    entries = json.loads(commits.get("properties", {}).get(LIVES_PROPERTY, "[]"))
    return {(schema, table): Life(life) for schema, table, life in entries}


def property_of(lives: Mapping[Name, Life]) -> str | None:
    """The value of the property for these lives; None if all tables are followed."""
    entries = [[*name, str(life)] for name, life in sorted(lives.items())]
    return json.dumps(entries, ensure_ascii=False) if entries else None


def moved(
    lives: Mapping[Name, Life], events: Mapping[Name, Event], in_lake: frozenset[Name] = frozenset()
) -> dict[Name, Life]:
    """The lives after these events; followed and absent tables need no entry.

    Args:
        in_lake: those of the tables that the lake has.

    Raises:
        LakeError: something of this cannot happen.
    """
    result = dict(lives)
    for name, event in events.items():
        without_entry = Life.FOLLOWED if name in in_lake else Life.ABSENT
        result[name] = after(lives.get(name, without_entry), event, postgres_name(*name))
    return {name: life for name, life in result.items() if life not in {Life.FOLLOWED, Life.ABSENT}}
