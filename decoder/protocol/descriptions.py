"""The descriptions of tables and types in a stream, and where each of them is valid.

`Descriptions` are those of a session; `StreamDescriptions` are those of one streamed transaction, which come
before the session's.  Invariant: each has its place in the stream, so that the descriptions of a streamed
transaction replace only older ones when it commits: the server does not repeat a newer one
(pgoutput.c, ``cleanup_rel_sync_cache`` marks as sent only what was not invalidated since).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeAlias

from slotlake.decoder.protocol.messages import RelationMessage, TypeMessage
from slotlake.decoder.protocol.relations import Relation

Description: TypeAlias = RelationMessage | TypeMessage


class Descriptions:
    """The tables and types of a session.

    Attributes:
        relations: the valid version of each table, by id, with the names of its types.
        types: names of user types by OID.
    """

    def __init__(self) -> None:
        self.relations: dict[int, Relation] = {}
        self.types: dict[int, str] = {}
        self._places: dict[tuple[type[Description], int], int] = {}

    def add(self, message: Description, place: int) -> Description:
        """Make a description valid, unless a later one is; return it with the names of its types."""
        key = (type(message), _number(message))
        message = named(message, self.types)
        if place >= self._places.get(key, -1):
            self._places[key] = place
            if isinstance(message, TypeMessage):
                self.types[message.type_oid] = type_text(message)
            else:
                self.relations[message.relation.relation_id] = message.relation
        return message


@dataclass
class StreamDescriptions:
    """A streamed transaction that has not ended: its subtransactions and what they described.

    Attributes:
        session: the session's descriptions, which give names to types here too.
        xids: the (sub)transactions that sent something.
        aborted: the subtransactions that were rolled back.
        descriptions: (place, xid, description), in order.
        uses: (xid, the other (sub)transaction that described the table, the table's id).
    """

    session: Descriptions
    xids: set[int] = field(default_factory=set)
    aborted: set[int] = field(default_factory=set)
    descriptions: list[tuple[int, int, Description]] = field(default_factory=list)
    uses: set[tuple[int, int, int]] = field(default_factory=set)

    def add(self, message: Description, place: int, xid: int) -> Description:
        """Note a description, and return it with the names of its types.

        Args:
            place: its number among all descriptions of the connection.
        """
        own = {m.type_oid: type_text(m) for _, _, m in self.descriptions if isinstance(m, TypeMessage)}
        message = named(message, {**self.session.types, **own})
        self.descriptions.append((place, xid, message))
        return message

    def relation(self, relation_id: int) -> Relation | None:
        """The version of a table that is valid in this transaction: one that it has described itself."""
        description = self._described(relation_id)
        return None if description is None else description[1]

    def _described(self, relation_id: int) -> tuple[int, Relation] | None:
        """The (sub)transaction that described a table last, and its description."""
        for _, xid, message in reversed(self.descriptions):
            if isinstance(message, RelationMessage) and message.relation.relation_id == relation_id:
                return xid, message.relation
        return None

    def used(self, xid: int, relation_id: int) -> None:
        """Note that a (sub)transaction changes this table; another one may have described it."""
        description = self._described(relation_id)
        if description is not None and description[0] != xid:
            self.uses.add((xid, description[0], relation_id))

    def lost(self) -> int | None:
        """A table that changes need, but that only a subtransaction described that was rolled back."""
        return min(
            (n for xid, by, n in self.uses if by in self.aborted and xid not in self.aborted), default=None
        )

    def abort(self, subxid: int) -> None:
        """Forget a subtransaction's descriptions; it sends nothing any more."""
        self.aborted.add(subxid)
        self.descriptions = [each for each in self.descriptions if each[1] != subxid]

    def commit(self) -> None:
        """Make all descriptions valid for the session."""
        for place, _, message in self.descriptions:
            self.session.add(message, place)


def _number(message: Description) -> int:
    return message.type_oid if isinstance(message, TypeMessage) else message.relation.relation_id


def type_text(message: TypeMessage) -> str:
    """A type's name as in `Column.type_name`."""
    return f"{message.schema}.{message.name}"


def named(message: Description, types: dict[int, str]) -> Description:
    """The description, with the names of the user types that the stream has named."""
    if isinstance(message, TypeMessage):
        return message
    return RelationMessage(with_type_names(message.relation, types))


def with_type_names(relation: Relation, types: dict[int, str]) -> Relation:
    """The relation, with the names of the user types that the stream has named."""
    columns = tuple(replace(c, type_name=c.type_name or types.get(c.type_oid, "")) for c in relation.columns)
    return replace(relation, columns=columns)
