"""One walk over a buffer of messages, and its notes about rows, transactions and control messages.

Invariant: a chunk changes nothing outside of itself except its notes, and no result refers to the notes; the
decoder takes the chunk's state when all of it was read.
"""

from __future__ import annotations

import numpy as np

from slotlake.decoder.columnar import scan
from slotlake.decoder.columnar.buffer import MessageBuffer
from slotlake.decoder.compiled.jit import Ints, frozen
from slotlake.decoder.errors import DAMAGED, ProtocolError
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.types.catalog import TypeCatalog


class Notes:
    """The arrays for the walk's notes, used again for each chunk: new memory costs as much as the walk."""

    def __init__(self) -> None:
        self._room = 0

    def room_for(self, messages: int) -> tuple[Ints, Ints, Ints]:
        """int64[fields, at least ``messages``] for rows, for transactions and for control messages."""
        if messages > self._room or self._room == 0:
            self._room = max(messages + messages // 4, 1)
            self._rows = np.empty((scan.ROW_FIELDS, self._room), dtype=np.int64)
            self._txns = np.empty((scan.TXN_FIELDS, self._room), dtype=np.int64)
            self._controls = np.empty((scan.CONTROL_FIELDS, self._room), dtype=np.int64)
        return self._rows, self._txns, self._controls


class Chunk:
    """One walk over a buffer, and its notes."""

    def __init__(
        self,
        buffer: MessageBuffer,
        state: Ints,
        first: tuple[int, int],
        notes: Notes,
        catalog: TypeCatalog | None,
    ) -> None:
        count, self.notes, self.catalog = buffer.count, notes, catalog
        self.data, self.ends, self.lsns = frozen(buffer.data), frozen(buffer.ends), buffer.lsns
        self.state = state.copy()
        self.state[scan.NEXT_SEQ], self.state[scan.NEXT_TXN] = first
        self.state[scan.BEGIN_AT] = -1
        self.report = np.zeros(scan.REPORT_FIELDS, dtype=np.int64)
        self._rows, self._txns, self._controls = notes.room_for(count)

    def walk(self, limit: int, partial: bool) -> None:
        """Walk over the buffer and note rows, transactions and control messages.

        Raises:
            ProtocolError: a message breaks the grammar.
        """
        arrays = (self.state, self._rows, self._txns, self._controls, self.report)
        code = scan.walk(self.data, self.ends, limit, partial, self.catalog is not None, *arrays)
        if code != 0:
            at, offset = int(self.report[scan.AT]), int(self.report[scan.BAD_OFFSET])
            raise self.error(scan.REASONS[code], at, offset)

    @property
    def rows(self) -> Ints:
        return self._rows[:, : self.report[scan.ROWS]]

    @property
    def txns(self) -> Ints:
        return self._txns[:, : self.report[scan.TXNS]]

    @property
    def controls(self) -> Ints:
        return self._controls[:, : self.report[scan.CONTROLS]]

    def payload(self, message: int) -> bytes:
        return self.data[self.ends[message] : self.ends[message + 1]].tobytes()

    def place(self, message: int) -> str:
        """A message's place, for errors."""
        return f"message {message} of the chunk, WAL {format_lsn(int(self.lsns[message]))}"

    def error(self, what: str, message: int, offset: int, way_out: str = DAMAGED) -> ProtocolError:
        """The error for a message of the chunk."""
        tag = self.payload(message)[:1].decode("latin-1")
        where = f"message {tag!r}, byte offset {offset}, {self.place(message)}"
        lsn = int(self.lsns[message])
        return ProtocolError(what, message_type=tag, offset=offset, where=where, lsn=lsn, way_out=way_out)
