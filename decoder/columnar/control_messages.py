"""The control messages of a chunk: descriptions, truncations, logical messages, origins.

Invariant: a description is valid for the messages after it, in this chunk and later ones, and for no others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, TypeVar

import numpy as np
import pyarrow as pa

from slotlake.decoder.columnar import scan
from slotlake.decoder.columnar.chunk import Chunk
from slotlake.decoder.compiled.jit import Ints, frozen
from slotlake.decoder.errors import ProtocolError
from slotlake.decoder.protocol.messages import LogicalMessage, Message, Truncate, TypeMessage
from slotlake.decoder.protocol.reader import read_message, with_type_names
from slotlake.decoder.protocol.relation_reading import read_relation
from slotlake.decoder.protocol.relations import Relation
from slotlake.decoder.types.slices import Slices, as_string, gather

_Read = TypeVar("_Read")
_ORIGIN, _RELATION = ord("O"), ord("R")


class ControlMessages:
    """The control messages, read one by one, and the relation and type caches after them."""

    def __init__(self, chunk: Chunk, relations: dict[int, Relation], types: dict[int, str]) -> None:
        self.relations, self.types = dict(relations), dict(types)
        # Per relation: the message from which each version is valid.
        self.versions = {relation_id: [(-1, version)] for relation_id, version in relations.items()}
        self.origins = Origins(chunk)
        self.truncates: list[tuple[int, int, int, Relation]] = []
        self.logical: list[tuple[int, int, LogicalMessage]] = []
        self._chunk = chunk
        controls = chunk.controls[:, ~self.origins.among]
        begins, ends = chunk.ends[controls[0]].tolist(), chunk.ends[controls[0] + 1].tolist()
        data = chunk.data.data
        for begin, end, (at, seq, txn) in zip(begins, ends, controls.T.tolist(), strict=True):
            payload = data[begin:end].tobytes()
            if payload[0] == _RELATION:
                self._describe(self._read(read_relation, payload, at), at)
            else:
                self._take(self._read(read_message, payload, at), at, seq, txn)

    def _read(self, read: Callable[[bytes], _Read], payload: bytes, at: int) -> _Read:
        try:
            return read(payload)
        except ProtocolError as error:
            raise self._chunk.error(error.what, at, error.offset, error.way_out) from None

    def _describe(self, relation: Relation, at: int) -> None:
        if self.types and any(not column.type_name for column in relation.columns):
            relation = with_type_names(relation, self.types)
        if self.relations.get(relation.relation_id) != relation:  # else it repeats the valid one
            self.relations[relation.relation_id] = relation
            self.versions.setdefault(relation.relation_id, []).append((at, relation))

    def _take(self, message: Message, at: int, seq: int, txn: int) -> None:
        if isinstance(message, TypeMessage):
            self.types[message.type_oid] = f"{message.schema}.{message.name}"
            if self._chunk.catalog is not None:
                self._chunk.catalog.note(message.type_oid, message.schema, message.name)
        elif isinstance(message, Truncate):
            for relation_id in message.relation_ids:
                self.truncates.append((at, seq, txn, self.relation_at(relation_id, at)))
        elif isinstance(message, LogicalMessage):
            self.logical.append((seq, txn, message))

    def relation_at(self, relation_id: int, at: int) -> Relation:
        """Return the version of a relation that is valid at a message.

        Raises:
            ProtocolError: the relation was not described before.
        """
        relation = self.relations.get(relation_id)
        if relation is None:
            raise self._chunk.error(f"relation {relation_id} was not described", at, 1)
        return relation

    def open_origin(self, before: str | None) -> str | None:
        """Origin of the transaction in which the chunk ends."""
        state = self._chunk.state
        if state[scan.OPEN] == 0:
            return None
        begin = int(state[scan.BEGIN_AT])
        if begin < 0 and before is not None:
            return before
        [named] = self.origins.between(np.array([begin]), np.array([scan.NO_LIMIT])).to_pylist()
        return None if named is None else str(named)


class Origins:
    """The origin messages of a chunk; each transaction may have one, so they are read all together.

    ``among``: which of the chunk's control messages they are.
    """

    def __init__(self, chunk: Chunk) -> None:
        controls = chunk.controls[scan.CONTROL_MESSAGE]
        self.among = chunk.data[chunk.ends[controls]] == _ORIGIN
        self._at = controls[self.among]
        start, length = np.empty(len(self._at), np.int64), np.empty(len(self._at), np.int32)
        bad = scan.origins(chunk.data, chunk.ends, frozen(self._at), start, length)
        try:
            if bad >= 0:
                self._refuse(chunk)
            self._names = as_string(gather(Slices(chunk.data, start, length)))
        except pa.ArrowInvalid:
            self._refuse(chunk)

    def _refuse(self, chunk: Chunk) -> NoReturn:
        """Let the plain reader say what is wrong, and where."""
        for at in self._at.tolist():
            try:
                read_message(chunk.payload(at))
            except ProtocolError as error:
                raise chunk.error(error.what, at, error.offset, error.way_out) from None
        raise AssertionError("the two readers of origins disagree")

    def between(self, begin: Ints, end: Ints) -> pa.Array:
        """For each i the first origin named after message ``begin[i]`` and before ``end[i]``, or null."""
        if len(self._at) == 0:
            return pa.nulls(len(begin), pa.string())
        i = np.searchsorted(self._at, begin, side="right")
        is_named = i < len(self._at)
        is_named[is_named] = self._at[i[is_named]] < end[is_named]
        return self._names.take(pa.array(np.where(is_named, i, 0), mask=~is_named))
