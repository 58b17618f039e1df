"""Streamed and prepared transactions in the plain reader: messages, their places, what they make known."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import pytest

from slotlake.decoder.errors import ProtocolError
from slotlake.decoder.protocol.messages import (
    Begin,
    BeginPrepare,
    BinaryValue,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    Prepare,
    RelationMessage,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    Streamed,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    TypeMessage,
    Update,
)
from slotlake.decoder.protocol.reader import NEXT, State, StreamReader, read_message
from slotlake.decoder.protocol.relations import Column, Relation
from tests.decoder.reference import Transaction, reference_transactions
from tests.decoder.wire import encode

pytestmark = pytest.mark.fast

TIME = 1_795_253_578_287_819
NARROW = Relation(7, "public", "item", "d", (Column("id", 23, -1, True, "int4"),))
WIDE = Relation(7, "public", "item", "d", (*NARROW.columns, Column("note", 25, -1, False, "text")))
PREPARED = (0x100, 0x140, TIME, 700, "the gid")
ALL: dict[str, Any] = {"streaming": "parallel", "two_phase": True}
MESSAGES: list[Message] = [
    StreamStart(700, True),
    StreamStart(700, False),
    StreamStop(),
    StreamCommit(700, 0x100, 0x140, TIME),
    StreamAbort(700, 701),
    BeginPrepare(*PREPARED),
    Prepare(*PREPARED),
    StreamPrepare(*PREPARED),
    CommitPrepared(0x180, 0x1C0, TIME, 700, ""),
    RollbackPrepared(0x140, 0x1C0, TIME, TIME + 1, 700, "ü" * 99),
]
IN_STREAM: list[Message] = [
    Streamed(700, RelationMessage(WIDE)),
    Streamed(701, TypeMessage(16999, "s", "mood")),
    Streamed(700, Insert(7, ("1", "x"))),
    Streamed(700, Update(7, "K", ("1", "x"), ("1", "x"))),
    Streamed(700, Truncate(True, True, (7, 8))),
    Streamed(700, LogicalMessage(True, 5, "p", b"\xff")),
]


@pytest.mark.parametrize("message", [*MESSAGES, *IN_STREAM], ids=lambda m: type(m).__name__)
def test_what_is_written_is_read_whole_and_only_whole(message: Message) -> None:
    payload, options = encode(message), {"in_stream": isinstance(message, Streamed)}
    assert read_message(payload, **options) == message
    with pytest.raises(ProtocolError, match="left over") as error:
        read_message(payload + b"\0", **options)
    assert error.value.offset == len(payload)
    for length in range(len(payload)):
        with pytest.raises(ProtocolError) as error:
            read_message(payload[:length], **options)
        assert error.value.offset <= length
        assert error.value.message_type == payload[: min(1, length)].decode()


def test_an_abort_tells_position_and_time_only_in_parallel() -> None:
    told = StreamAbort(700, 701, 0, TIME)
    assert read_message(encode(told), parallel=True) == told
    with pytest.raises(ProtocolError, match="left over"):
        read_message(encode(told))
    with pytest.raises(ProtocolError, match="too early"):
        read_message(encode(StreamAbort(700, 701)), parallel=True)


def test_binary_values_are_read_where_asked_for() -> None:
    row = Insert(7, (BinaryValue(b""), BinaryValue(b"\0\xff"), "text"))
    assert read_message(encode(row), binary=True) == row
    with pytest.raises(ProtocolError, match="the option binary is off") as error:
        read_message(encode(row))
    assert error.value.offset == 8
    with pytest.raises(ProtocolError, match="too early"):
        read_message(encode(Insert(7, (BinaryValue(b"12"),)))[:-1], binary=True)


NUMBERS = struct.pack(">QQq", 1, 2, 0)
REFUSED = [
    (b"S\0\0\0\0\1", 1, "transaction id is not set"),
    (b"S\0\0\0\1\2", 5, "reserved flags"),
    (b"c\0\0\0\1\1" + NUMBERS, 5, "reserved flags"),
    (b"c\0\0\0\0\0" + NUMBERS, 1, "transaction id is not set"),
    (b"c\0\0\0\1\0" + struct.pack(">QQq", 0, 2, 0), 6, "position is not set"),
    (b"c\0\0\0\1\0" + struct.pack(">QQq", 1, 1 << 63, 0), 14, "larger than any position"),
    (b"A\0\0\0\1\0\0\0\0", 5, "transaction id is not set"),
    (b"b" + NUMBERS + b"\0\0\0\0g\0", 25, "transaction id is not set"),
    (b"b" + NUMBERS + b"\0\0\0\1g", 29, "no zero byte at its end"),
    (b"P\1" + NUMBERS + b"\0\0\0\1g\0", 1, "reserved flags"),
    (b"p\1" + NUMBERS + b"\0\0\0\1g\0", 1, "reserved flags"),
    (b"K\1" + NUMBERS + b"\0\0\0\1g\0", 1, "reserved flags"),
    (b"K\0" + NUMBERS + b"\0\0\0\1" + b"g" * 200 + b"\0", 30, "199 bytes"),
    (b"K\0" + NUMBERS + b"\0\0\0\1\xff\0", 30, "UTF-8"),
    (b"r\0" + struct.pack(">QQqq", 1, 0, 0, 0) + b"\0\0\0\1g\0", 10, "position is not set"),
    (b"r\0" + struct.pack(">QQqq", 1, 2, 1 << 62, 0) + b"\0\0\0\1g\0", 18, "years"),
    (b"r\0" + struct.pack(">QQqq", 1, 2, 0, 0) + b"\0\0\0\0g\0", 34, "transaction id is not set"),
]


@pytest.mark.parametrize(("payload", "offset", "reason"), REFUSED)
def test_a_wrong_message_is_refused_with_its_type_and_offset(
    payload: bytes, offset: int, reason: str
) -> None:
    with pytest.raises(ProtocolError, match=reason) as error:
        read_message(payload)
    assert (error.value.message_type, error.value.offset) == (chr(payload[0]), offset)


BEGIN, COMMIT = Begin(0x100, TIME, 700), Commit(0x100, 0x140, TIME)
START, STOP = StreamStart(700, True), StreamStop()
DESCRIBED = Streamed(700, RelationMessage(NARROW))
LOOSE = LogicalMessage(False, 5, "p", b"")
OPENING: dict[State, list[Message]] = {
    State.BETWEEN: [],
    State.TRANSACTION: [BEGIN],
    State.PREPARED: [BeginPrepare(*PREPARED)],
    State.BLOCK: [START],
}
ANY: dict[str, Message] = {
    "B": BEGIN,
    "C": COMMIT,
    "O": Origin(0, "elsewhere"),
    "R": RelationMessage(NARROW),
    "Y": TypeMessage(16999, "s", "mood"),
    "I": Insert(7, ("1",)),
    "U": Update(7, "", None, ("1",)),
    "D": Delete(7, "K", ("1",)),
    "T": Truncate(False, False, ()),
    "M": LogicalMessage(True, 5, "p", b""),
    "S": StreamStart(800, True),
    "E": STOP,
    "c": StreamCommit(700, 0x100, 0x140, TIME),
    "A": StreamAbort(700, 700, 0, TIME),
    "b": BeginPrepare(*PREPARED),
    "P": Prepare(*PREPARED),
    "K": CommitPrepared(0x180, 0x1C0, TIME, 700, "the gid"),
    "r": RollbackPrepared(0x140, 0x1C0, TIME, TIME, 700, "the gid"),
    "p": StreamPrepare(*PREPARED),
}


@pytest.mark.parametrize(("state", "tag"), itertools.product(State, ANY))
def test_the_table_says_what_may_come_where(state: State, tag: str) -> None:
    """What the table lacks is refused as out of place, what it has never is."""
    reader = reader_after(*OPENING[state])
    assert reader.state is state
    message: Any = ANY[tag]
    streamed = state is State.BLOCK and tag in "RYIUDTM"
    payload = encode(Streamed(700, message) if streamed else message)
    what = ""
    try:
        reader.read(payload)
    except ProtocolError as error:
        what = error.what
        assert error.message_type == tag
    out_of_place = what.startswith(("a transaction begins inside", "the message may not come"))
    assert out_of_place == (tag not in NEXT[state] or (state is State.BETWEEN and tag == "M"))
    if not what:
        assert reader.state is NEXT[state][tag]


def reader_after(*messages: Message, **options: Any) -> StreamReader:
    reader = StreamReader(**{**ALL, **options})
    for message in messages:
        reader.read(encode(message))
    return reader


OTHER = (*PREPARED[:3], 701, "the gid")
LOGGED = LogicalMessage(True, 5, "p", b"")
WAITING: list[Message] = [BeginPrepare(*PREPARED), Prepare(*PREPARED)]
OUT_OF_PLACE: list[tuple[list[Message], str]] = [
    ([StreamStart(700, False)], "no block came before it"),
    ([START, STOP, START], "but a block came before it"),
    ([START, STOP, StreamCommit(701, 1, 2, TIME)], "not being streamed"),
    ([START, STOP, StreamCommit(700, 2, 2, TIME)], "ends before"),
    ([START, STOP, StreamCommit(700, 1, 2, TIME), StreamCommit(700, 1, 2, TIME)], "not being streamed"),
    ([StreamPrepare(*PREPARED)], "not being streamed"),
    ([START, Streamed(700, Insert(7, ("1",)))], "not described"),
    ([START, DESCRIBED, Streamed(700, Insert(7, ("1", "2")))], "another number of columns"),
    ([START, Streamed(700, LOOSE)], "may not come in a stream block"),
    ([BeginPrepare(*PREPARED), LOOSE], "may not come in a transaction that will be prepared"),
    ([START, DESCRIBED, STOP, StreamStart(800, True), Streamed(700, RelationMessage(NARROW))],
     "subtransaction of transaction 700"),
    ([BeginPrepare(*PREPARED), Prepare(0x101, *PREPARED[1:])], "different values of prepare_lsn"),
    ([BeginPrepare(*PREPARED), Prepare(*PREPARED[:4], "other")], "different values of gid"),
    ([START, DESCRIBED, Streamed(701, LOGGED), STOP, StreamAbort(700, 701, 1, TIME), StreamStart(700, False),
      Streamed(701, LOGGED)], "rolled back"),
    ([BEGIN, RelationMessage(NARROW), COMMIT, START, Streamed(700, Insert(7, ("1",)))], "not described"),
    ([*WAITING, *WAITING], "prepared already"),
    ([CommitPrepared(2, 2, TIME, 700, "the gid")], "ends before"),
    ([*WAITING, RollbackPrepared(2, 2, TIME, TIME, 700, "the gid")], "ends before"),
]  # fmt: skip


@pytest.mark.parametrize(("messages", "reason"), OUT_OF_PLACE)
def test_a_message_out_of_place_is_refused(messages: list[Message], reason: str) -> None:
    reader = reader_after(*messages[:-1])
    with pytest.raises(ProtocolError, match=reason) as error:
        reader.read(encode(messages[-1]), 0x16_B374D848)
    assert error.value.message_type == encode(messages[-1])[:1].decode()
    assert error.value.lsn == 0x16_B374D848
    assert "WAL 16/B374D848" in str(error.value)


def test_what_was_not_asked_for_is_refused() -> None:
    for message in MESSAGES:
        tag = encode(message)[:1].decode()
        if tag == "A":  # a server sends it all the same
            continue
        with pytest.raises(ProtocolError, match="this option is off"):
            StreamReader().read(encode(message))
        if tag in "SEc":
            with pytest.raises(ProtocolError, match="this option is off"):
                StreamReader(two_phase=True).read(encode(message))
        elif tag in "bPKr":
            with pytest.raises(ProtocolError, match="this option is off"):
                StreamReader(streaming="on").read(encode(message))


@pytest.mark.parametrize("streaming", ["off", "on"])
def test_a_rollback_of_what_never_came_means_nothing(streaming: Any) -> None:
    """PostgreSQL 18 sends it of transactions that were rolled back before they were streamed."""
    reader = StreamReader(streaming=streaming)
    for rolled_back in (StreamAbort(700, 700), StreamAbort(700, 701)):
        assert reader.read(encode(rolled_back)) == rolled_back
    assert reader.streams == {}


def test_a_rollback_of_what_was_prepared_before_the_slot_is_no_error() -> None:
    reader_after(RollbackPrepared(1, 2, TIME, TIME, 700, "old"))
    reader_after(CommitPrepared(1, 2, TIME, 700, "old"))
    messages = [*WAITING, CommitPrepared(1, 2, TIME, 701, "the gid")]
    with pytest.raises(ProtocolError, match="was not prepared"):  # its changes are not here
        list(reference_transactions([(0, encode(m)) for m in messages], **ALL))


def test_a_name_whose_outcome_was_filtered_may_be_used_again() -> None:
    """COMMIT PREPARED by a session with an origin is not sent under origin 'none', the PREPARE was."""
    outcome = CommitPrepared(0x180, 0x1C0, TIME, 701, "the gid")
    reader = reader_after(*WAITING, BeginPrepare(*OTHER), Prepare(*OTHER), outcome)
    assert set(reader.prepared) == {("the gid", 700)}


def test_a_description_of_a_streamed_and_prepared_transaction_holds_with_its_outcome() -> None:
    streamed: list[Message] = [START, Streamed(700, RelationMessage(WIDE)), STOP, StreamPrepare(*PREPARED)]
    reader = reader_after(*streamed, CommitPrepared(0x180, 0x1C0, TIME, 700, "the gid"))
    assert reader.relations == {7: WIDE}
    assert reader_after(*streamed, ANY["r"]).relations == {}


def test_a_description_holds_for_its_stream_at_once_and_for_all_with_its_commit() -> None:
    reader = reader_after(BEGIN, RelationMessage(NARROW), COMMIT, START, Streamed(700, RelationMessage(WIDE)))
    assert (reader.relation(7), reader.relations[7]) == (WIDE, NARROW)
    reader.read(encode(STOP))
    assert reader.relation(7) == NARROW
    reader.read(encode(StreamCommit(700, 0x200, 0x240, TIME)))
    assert reader.relation(7) == WIDE


@pytest.mark.parametrize("end", [StreamAbort(700, 700, 1, TIME), StreamPrepare(*PREPARED)])
def test_a_description_goes_with_a_stream_that_is_not_committed(end: Message) -> None:
    streamed: list[Message] = [START, Streamed(700, RelationMessage(WIDE)), STOP]
    reader = reader_after(BEGIN, RelationMessage(NARROW), COMMIT, *streamed, end)
    assert reader.relations == {7: NARROW}
    assert reader.streams == {}


def test_a_description_goes_with_its_subtransaction() -> None:
    reader = reader_after(
        START, DESCRIBED, Streamed(701, RelationMessage(WIDE)), STOP, StreamAbort(700, 701, 1, TIME),
        StreamStart(700, False),
    )  # fmt: skip
    assert reader.relation(7) == NARROW


def test_an_older_description_does_not_replace_a_newer_one_at_commit() -> None:
    """What is published changed after the block: the server does not describe the table once more."""
    reader = reader_after(
        START, Streamed(700, RelationMessage(WIDE)), STOP,
        BEGIN, RelationMessage(NARROW), COMMIT,
        StreamCommit(700, 0x200, 0x240, TIME), Begin(0x300, TIME, 9), Insert(7, ("1",)),
    )  # fmt: skip
    assert reader.relations == {7: NARROW}


def test_a_description_in_a_prepared_transaction_outlives_its_rollback() -> None:
    reader = reader_after(
        BeginPrepare(*PREPARED), RelationMessage(NARROW), Prepare(*PREPARED),
        BEGIN, Insert(7, ("1",)), COMMIT, RollbackPrepared(0x140, 0x1C0, TIME, TIME, 700, "the gid"),
    )  # fmt: skip
    assert reader.relations == {7: NARROW}


def test_nested_subtransactions_drop_exactly_their_own_in_any_order() -> None:
    rows = [Streamed(xid, Insert(7, (str(n),))) for n, xid in enumerate([700, 701, 702, 701, 700, 703, 702])]
    for gone in itertools.permutations([701, 702]):
        aborts = [StreamAbort(700, xid, 1, TIME) for xid in gone]
        messages: list[Message] = [
            START,
            DESCRIBED,
            *rows,
            STOP,
            *aborts,
            StreamCommit(700, 0x200, 0x240, TIME),
        ]
        (found,) = reference_transactions([(0, encode(m)) for m in messages], **ALL)
        assert isinstance(found, Transaction)
        assert [c.message.new for c in found.changes if isinstance(c.message, Insert)] == [
            ("0",),
            ("4",),
            ("5",),
        ]
