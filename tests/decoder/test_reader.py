"""The plain reader: every message there and back, and every way a message can be wrong."""

from __future__ import annotations

import struct

import pytest

from slotlake.decoder.errors import ProtocolError
from slotlake.decoder.protocol.messages import (
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    NoValue,
    Origin,
    RelationMessage,
    Truncate,
    TypeMessage,
    Update,
)
from slotlake.decoder.protocol.reader import StreamReader, read_message
from slotlake.decoder.protocol.relations import Column, Relation
from tests.decoder.wire import encode

pytestmark = pytest.mark.fast

TIME = 1_795_253_578_287_819
ITEM = Relation(
    7,
    "public",
    "item",
    "d",
    (Column("id", 23, -1, True, "int4"), Column("note", 25, -1, False, "text")),
)
BEGIN, COMMIT = Begin(0x16_B374D848, TIME, 740), Commit(0x16_B374D848, 0x16_B374D878, TIME)
MESSAGES: list[Message] = [
    BEGIN,
    COMMIT,
    Origin(0, "elsewhere"),
    RelationMessage(ITEM),
    TypeMessage(16999, "my types", "mood"),
    TypeMessage(16998, "pg_catalog", "numeric"),
    Insert(7, ("1", NoValue.NULL)),
    Insert(7, ()),
    Update(7, "", None, ("1", NoValue.UNCHANGED)),
    Update(7, "K", ("1", NoValue.NULL), ("2", "ü")),
    Update(7, "O", ("1", "x"), ("2", "")),
    Delete(7, "K", ("1", NoValue.NULL)),
    Delete(7, "O", ("1", "x")),
    Truncate(True, False, (7, 8)),
    Truncate(False, True, (7,)),
    LogicalMessage(True, 5, "prefix", b"\x00\xff"),
    LogicalMessage(False, 0, "", b""),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_what_is_written_is_read(message: Message) -> None:
    assert read_message(encode(message)) == message


INSERT, UPDATE, DELETE = (encode(m) for m in (MESSAGES[6], MESSAGES[9], MESSAGES[11]))
REFUSED = [
    (b"", "", 0, "too early"),
    (b"X", "X", 0, "unknown type"),
    (b"B" + struct.pack(">QqI", 0, 0, 1), "B", 1, "not set"),
    (b"B" + struct.pack(">QqI", 2**63, 0, 1), "B", 1, "larger than any position"),
    (b"B" + struct.pack(">QqI", 1, 2**62, 1), "B", 9, "years"),
    (b"C\1" + struct.pack(">QQq", 1, 2, 0), "C", 1, "reserved flags"),
    (b"C\0" + struct.pack(">QQq", 0, 2, 0), "C", 2, "not set"),
    (b"C\0" + struct.pack(">QQq", 1, 0, 0), "C", 10, "not set"),
    (b"O" + bytes(8) + b"name", "O", 9, "no zero byte at its end"),
    (b"O" + bytes(8) + b"\xff\0", "O", 9, "UTF-8"),
    (b"R\0\0\0\7\0t\0x\0\0", "R", 8, "replica identity"),
    (b"R\0\0\0\7\0t\0d\0\1\2c\0" + bytes(8), "R", 11, "reserved flags"),
    (b"R\0\0\0\7\0t\0d\xff\xff", "R", 11, "too early"),
    (b"I\0\0\0\7K\0\0", "I", 5, "the tuple has"),
    (INSERT[:8] + b"x" + INSERT[9:], "I", 8, "unknown kind"),
    (INSERT[:8] + b"b" + INSERT[9:], "I", 8, "binary"),
    (INSERT[:9] + b"\x7f\xff\xff\xff1n", "I", 13, "too early"),
    (INSERT[:9] + b"\xff\xff\xff\xff1n", "I", 13, "too early"),
    (b"I\0\0\0\7N\0\1t\0\0\0\1\xff", "I", 13, "UTF-8"),
    (b"U\0\0\0\7X\0\0", "U", 5, "the tuple has"),
    (b"U\0\0\0\7K\0\0K\0\0", "U", 8, "the tuple has"),
    (b"D\0\0\0\7N\0\0", "D", 5, "the tuple has"),
    (b"D\0\0\0\7K\0\1u", "D", 8, "old row has an unchanged value"),
    (b"D\0\0\0\7O\0\2nu", "D", 9, "old row has an unchanged value"),
    (b"T\0\0\0\1\4\0\0\0\7", "T", 5, "reserved flags"),
    (b"T\xff\xff\xff\xff\0\0\0\0\7", "T", 6, "too early"),
    (b"M\2" + bytes(8) + b"\0\0\0\0\0", "M", 1, "reserved flags"),
    (b"M\1" + bytes(8) + b"\0\0\0\0\5abc", "M", 15, "too early"),
]


@pytest.mark.parametrize(("payload", "tag", "offset", "reason"), REFUSED)
def test_a_wrong_message_is_refused_with_its_type_and_offset(
    payload: bytes, tag: str, offset: int, reason: str
) -> None:
    with pytest.raises(ProtocolError, match=reason) as error:
        read_message(payload)
    assert (error.value.message_type, error.value.offset) == (tag, offset)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_left_over_and_missing_bytes_are_refused(message: Message) -> None:
    payload = encode(message)
    with pytest.raises(ProtocolError, match="left over") as error:
        read_message(payload + b"\0")
    assert error.value.offset == len(payload)
    for length in range(len(payload)):
        with pytest.raises(ProtocolError):
            read_message(payload[:length])


OUT_OF_PLACE: list[tuple[list[Message], str]] = [
    ([COMMIT], "outside"),
    ([RelationMessage(ITEM)], "outside"),
    ([Origin(1, "x")], "outside"),
    ([LogicalMessage(True, 1, "p", b"")], "outside"),
    ([BEGIN, BEGIN], "inside another"),
    ([BEGIN, Insert(7, ("1", "2"))], "not described"),
    ([BEGIN, Truncate(False, False, (7,))], "not described"),
    ([BEGIN, RelationMessage(ITEM), Insert(7, ("1",))], "another number of columns"),
    ([BEGIN, RelationMessage(ITEM), Update(7, "K", ("1",), ("1", "2"))], "another number of columns"),
    ([BEGIN, RelationMessage(ITEM), Delete(7, "O", ("1", "2", "3"))], "another number of columns"),
    ([BEGIN, Commit(BEGIN.final_lsn + 8, BEGIN.final_lsn + 16, TIME)], "different positions"),
    ([BEGIN, Commit(BEGIN.final_lsn, BEGIN.final_lsn, TIME)], "ends before"),
]


@pytest.mark.parametrize(("messages", "reason"), OUT_OF_PLACE)
def test_a_message_out_of_place_is_refused(messages: list[Message], reason: str) -> None:
    reader = StreamReader()
    for message in messages[:-1]:
        reader.read(encode(message))
    with pytest.raises(ProtocolError, match=reason):
        reader.read(encode(messages[-1]))


def test_user_types_are_named_in_the_relations_after_them() -> None:
    reader = StreamReader()
    relation = Relation(9, "s", "t", "n", (Column("m", 16999, -1, False),))
    for message in (BEGIN, TypeMessage(16999, "my types", "mood"), RelationMessage(relation)):
        reader.read(encode(message))
    assert reader.relations[9].columns[0].type_name == "my types.mood"
