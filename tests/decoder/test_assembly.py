"""The assembler refuses what the reference refuses, also inside transactions that never come out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slotlake.decoder.errors import ProtocolError
from slotlake.decoder.protocol.messages import (
    Begin,
    BeginPrepare,
    Commit,
    Insert,
    LogicalMessage,
    Message,
    Prepare,
    RelationMessage,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    Streamed,
    StreamPrepare,
    StreamStart,
    StreamStop,
)
from slotlake.decoder.protocol.relations import Column, Relation
from tests.decoder.assembling import assembled
from tests.decoder.reference import reference_transactions
from tests.decoder.wire import encode

pytestmark = pytest.mark.fast

ALL: dict[str, Any] = {"streaming": "parallel", "two_phase": True}
TIME = 946_684_800_000_000
TABLE = Relation(7, "public", "t", "d", (Column("a", 25, -1, True, "text"),))
PREPARED = (0x100, 0x140, TIME, 700, "the gid")
START, AGAIN, STOP = StreamStart(700, True), StreamStart(700, False), StreamStop()
DESCRIBED, PLAIN_DESCRIBED = Streamed(700, RelationMessage(TABLE)), RelationMessage(TABLE)
BEGIN, COMMIT = Begin(0x80, TIME, 600), Commit(0x80, 0x90, TIME)
ROW, LOGGED = Insert(7, ("ä",)), LogicalMessage(True, 5, "p", b"\xff")
LOOSE = LogicalMessage(False, 5, "p", b"")
ROLLED_BACK: list[Message] = [StreamAbort(700, 700, 1, TIME)]
NEVER_COMMITTED: list[Message] = []
IN_A_PART: list[Message] = [StreamAbort(700, 701, 1, TIME), StreamCommit(700, 0x200, 0x240, TIME)]


def streamed(content: Message | bytes, xid: int = 701) -> list[bytes]:
    """A block that holds it, with all that it needs before."""
    raw = content if isinstance(content, bytes) else encode(Streamed(xid, content))  # type: ignore[arg-type]
    return [encode(START), encode(DESCRIBED), raw, encode(STOP)]


def prepared(content: Message | bytes) -> list[bytes]:
    raw = content if isinstance(content, bytes) else encode(content)
    return [encode(BeginPrepare(*PREPARED)), encode(PLAIN_DESCRIBED), raw, encode(Prepare(*PREPARED))]


def refused(stream: list[bytes], folder: Path, **options: Any) -> str:
    """Why both refuse it, "" if both take it."""
    asked = {**ALL, **options}
    numbered = [(number + 1, payload) for number, payload in enumerate(stream)]
    found: list[tuple[str, str, int | None]] = []
    for read in (
        lambda: list(reference_transactions(numbered, **asked)),
        lambda: assembled(numbered, options=asked, folder=folder),
    ):
        try:
            read()
            found.append(("", "", None))
        except ProtocolError as error:
            found.append((error.message_type, error.what, error.lsn))
    assert found[0] == found[1]
    return found[0][1]


ROW_BYTES, LOGGED_BYTES = encode(Streamed(701, ROW)), encode(Streamed(701, LOGGED))
DAMAGED = [
    (ROW_BYTES[:-1], "the message ends too early"),
    (ROW_BYTES + b"\0", "bytes are left over"),
    (ROW_BYTES[:-2] + b"\xc3\x28", "the text is not UTF-8"),
    (ROW_BYTES[:-7] + b"b\0\0\0\2ab", "a value is binary, but the option binary is off"),
    (ROW_BYTES.replace(b"N\0\1", b"N\0\2"), "the message ends too early"),
    (ROW_BYTES[:1] + bytes(4) + ROW_BYTES[5:], "transaction id is not set"),
    (ROW_BYTES.replace(b"\0\0\0\7", b"\0\0\0\x08", 1), "relation 8 was not described"),
    (LOGGED_BYTES[:-1], "the message ends too early"),
    (LOGGED_BYTES + b"\0", "bytes are left over"),
    (LOGGED_BYTES.replace(b"p\0", b"\xe4\0"), "the text is not UTF-8"),
    (encode(Streamed(701, Insert(7, ("1", "2")))), "another number of columns"),
    (encode(Streamed(701, LOOSE)), "may not come in a stream block"),
    (encode(BEGIN), "a transaction begins inside another|may not come"),
    (b"?", "unknown type"),
]


@pytest.mark.parametrize("end", [ROLLED_BACK, NEVER_COMMITTED, IN_A_PART], ids=["all", "open", "part"])
@pytest.mark.parametrize(("payload", "reason"), DAMAGED, ids=[reason for _, reason in DAMAGED])
def test_damage_in_a_stream_is_damage_whatever_becomes_of_it(
    payload: bytes, reason: str, end: list[Message], tmp_path: Path
) -> None:
    stream = [*streamed(payload), *map(encode, end)]
    if payload[:1] == b"B":
        with pytest.raises(ProtocolError):
            assembled([(1, each) for each in stream], options=ALL, folder=tmp_path)
    else:
        assert any(part in refused(stream, tmp_path) for part in reason.split("|"))


@pytest.mark.parametrize("end", [[], [RollbackPrepared(0x140, 0x1C0, TIME, TIME, 700, "the gid")]])
@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (encode(ROW)[:-1], "the message ends too early"),
        (encode(ROW)[:-2] + b"\xff\xff", "the text is not UTF-8"),
        (encode(Insert(8, ("1",))), "relation 8 was not described"),
        (encode(Insert(7, ("1", "2"))), "another number of columns"),
        (encode(LOOSE), "may not come in a transaction that will be prepared"),
    ],
)
def test_damage_in_what_is_prepared_is_found_before_it_is_kept(
    payload: bytes, reason: str, end: list[Message], tmp_path: Path
) -> None:
    assert reason in refused([*prepared(payload), *map(encode, end)], tmp_path)
    assert not list(tmp_path.rglob("*.arrow"))


@pytest.mark.parametrize("field", range(5))
def test_prepare_and_begin_prepare_agree_in_every_field(field: int, tmp_path: Path) -> None:
    others = (0x101, 0x141, TIME + 1, 701, "another")
    fields: list[Any] = [*PREPARED[:field], others[field], *PREPARED[field + 1 :]]
    stream = [encode(BeginPrepare(*PREPARED)), encode(Prepare(*fields))]
    assert "Prepare and Begin Prepare have different values of" in refused(stream, tmp_path)


def test_records_that_end_before_they_start(tmp_path: Path) -> None:
    for bad in (
        [*streamed(ROW), encode(StreamPrepare(0x140, 0x140, TIME, 700, "the gid"))],
        [*streamed(ROW), encode(StreamCommit(700, 0x140, 0x140, TIME))],
        [*prepared(ROW), encode(RollbackPrepared(0x140, 0x140, TIME, TIME, 700, "the gid"))],
    ):
        assert "ends before it starts" in refused(bad, tmp_path)


def test_what_only_the_whole_stream_tells(tmp_path: Path) -> None:
    logged, open_again = (
        encode(Streamed(701, LOGGED)),
        [encode(StreamAbort(700, 701, 1, TIME)), encode(AGAIN)],
    )
    assert "rolled back" in refused([*streamed(ROW), *open_again, logged], tmp_path)
    assert "subtransaction of transaction 700" in refused(
        [*streamed(ROW), encode(StreamStart(800, True)), logged], tmp_path
    )
    assert "subtransaction of transaction 700" in refused(
        [*streamed(ROW), encode(StreamStart(701, True))], tmp_path
    )
    assert "prepared already" in refused([*prepared(ROW), *prepared(ROW)], tmp_path)
    described: list[Message] = [BEGIN, PLAIN_DESCRIBED, COMMIT, START]
    in_session = [*map(encode, described), ROW_BYTES]
    assert "relation 7 was not described" in refused(in_session, tmp_path)
    again = encode(Streamed(700, ROW))
    gone = [encode(START), encode(Streamed(701, RelationMessage(TABLE))), encode(STOP), *open_again, again]
    assert "relation 7 was not described" in refused(gone, tmp_path)


def test_what_was_not_asked_for(tmp_path: Path) -> None:
    assert "this option is off" in refused(streamed(ROW), tmp_path, streaming="off")
    assert "this option is off" in refused(prepared(ROW), tmp_path, two_phase=False)
    binary = ROW_BYTES[:-7] + b"b\0\0\0\2ab"
    assert refused(streamed(binary), tmp_path, binary=True) == ""


def test_what_is_right_is_taken(tmp_path: Path) -> None:
    for letters in (
        "",
        "a" * 17,
        "ä€𐍈" * 5,
        "x" * 7 + "é",
        "\x7f\x80\u07ff\u0800\ud7ff\ue000\uffff\U0010ffff",
    ):
        row = Insert(7, (letters,))
        for end in (ROLLED_BACK, NEVER_COMMITTED, IN_A_PART):
            assert refused([*streamed(row), *map(encode, end)], tmp_path) == ""
        assert refused(prepared(row), tmp_path) == ""
    assert refused(streamed(LOGGED), tmp_path) == ""


@pytest.mark.parametrize(
    "letters",
    [b"\x80", b"\xc0\x80", b"\xc1\xbf", b"\xe0\x9f\xbf", b"\xed\xa0\x80", b"\xf0\x8f\xbf\xbf",
     b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98",
     b"12345678\xff", b"\xe2\x28\xa1"],
)  # fmt: skip
def test_letters_that_are_none(letters: bytes, tmp_path: Path) -> None:
    raw = encode(Streamed(701, Insert(7, ("",))))[:-4] + len(letters).to_bytes(4, "big") + letters
    assert "not UTF-8" in refused(streamed(raw), tmp_path)


def test_values_of_any_bytes_pass_where_the_decoder_judges_them(tmp_path: Path) -> None:
    """A value that is not UTF-8 is one table's trouble; a name, or a message that is cut short, is not."""
    value = encode(Insert(7, ("",)))[:-4] + b"\0\0\0\2\xff\xfe"
    in_block = value[:1] + (701).to_bytes(4, "big") + value[1:]
    committed = encode(StreamCommit(700, 0x200, 0x240, TIME))
    options = {**ALL, "any_bytes": True}
    stream = list(enumerate([*streamed(in_block), committed, *prepared(value)], 1))
    assert value in [raw for _, raw in assembled(stream, options=options, folder=tmp_path / "taken")]
    for damaged in (in_block[:-1], LOGGED_BYTES.replace(b"p\0", b"\xe4\0")):
        with pytest.raises(ProtocolError):
            numbered = list(enumerate(streamed(damaged), 1))
            assembled(numbered, options=options, folder=tmp_path / "refused")
