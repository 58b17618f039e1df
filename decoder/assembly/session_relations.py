"""The relation and type messages that the server has sent in this session.

The server describes a table once per session, at any place.  So the description must reach the reader after
the assembler, even if the transaction that contained it is output late or never.

Invariant: after each transaction in the output, that reader knows the valid relation message of each table,
or the next transaction begins with it (`pending`), before a row needs it.
"""

from __future__ import annotations

from collections.abc import Iterator

from slotlake.decoder.assembly.collected import Collected
from slotlake.decoder.assembly.inspection import Widths
from slotlake.decoder.protocol.messages import Message, RelationMessage, TypeMessage


class SessionRelations:
    """The descriptions that are valid outside of stream blocks.

    Attributes:
        widths: the number of columns of each table.
        arrival: how many descriptions have arrived, streamed ones too.
    """

    def __init__(self) -> None:
        self.widths = Widths()
        self.arrival = 0
        self._relations: dict[int, tuple[int, bytes]] = {}
        self._types: dict[int, bytes] = {}
        self._pending: dict[int, bytes] = {}

    def describe(self, payload: bytes, message: Message, *, pending: bool) -> None:
        """Make a relation or type message valid for the session.

        Args:
            pending: it came in a transaction that waits, so the next transaction must begin with it.
        """
        self.arrival += 1
        if isinstance(message, TypeMessage):
            self._types[message.type_oid] = payload
        elif isinstance(message, RelationMessage):
            number = message.relation.relation_id
            self._relations[number] = (self.arrival, payload)
            self.widths.set(number, len(message.relation.columns))
            if pending:
                self._pending[number] = payload

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def take_pending(self) -> list[bytes]:
        """The messages with which the next transaction must begin."""
        due = [*self._types.values(), *self._pending.values()] if self._pending else []
        self._pending.clear()
        return due

    def valid(self) -> dict[int, bytes]:
        """The valid relation messages, by table."""
        return {number: payload for number, (_, payload) in self._relations.items()}

    def prefix(self, done: Collected) -> list[bytes]:
        """Types and relations that a transaction needs and that came before the transaction."""
        return done.needs(self._types.values())

    def emitted(self, transaction: Collected, sent_relations: dict[int, bytes]) -> Iterator[bytes]:
        """Make the descriptions of a transaction valid that was output with these relation messages.

        Yields the valid relation messages that differ from those of the transaction, to be output again.
        """
        latest = {each.relation_id: each for each in transaction.described}
        for number, payload in sent_relations.items():
            self._pending.pop(number, None)
            arrived, valid = self._relations.get(number, (0, b""))
            own = latest.get(number)
            if own is not None and own.arrival > arrived:
                self._relations[number] = (own.arrival, payload)
                self.widths.set(number, own.width)
            elif valid not in {b"", payload}:
                yield valid
