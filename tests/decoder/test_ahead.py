"""What a reader that looks ahead makes of messages that no batch has taken yet."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from slotlake.decoder.stream.ahead import CALL_BYTES, READ_BYTES_MAX, Ahead, Frames, asks_for_reply


def frames(*messages: bytes) -> Frames:
    data = np.array(list(b"".join(messages)), dtype=np.uint8)
    return data, np.array([len(each) for each in messages], dtype=np.int64)


def row(tag: bytes, size: int = 20) -> bytes:
    return struct.pack(">cQQq", b"w", 1, 2, 3) + tag + bytes(size)


def keepalive(wal_end: int, reply: int = 0) -> bytes:
    return struct.pack(">cQqB", b"k", wal_end, 0, reply)


def ahead(*messages: bytes) -> Ahead:
    waiting = Ahead()
    waiting.add(*frames(*messages))
    return waiting


@pytest.mark.parametrize("tag", [b"C", b"c", b"K", b"P", b"p", b"r", b"M"])
def test_the_end_of_a_transaction_calls_for_a_batch(tag: bytes) -> None:
    waiting = ahead(row(b"B"), row(b"I"), keepalive(7), row(tag))
    waiting.add(*frames(row(b"B"), row(b"I")))
    assert waiting.calls_for_batch
    waiting.take()
    assert not waiting.calls_for_batch


def test_rows_of_an_open_transaction_do_not() -> None:
    waiting = ahead(row(b"S"), row(b"I"), row(b"E"), keepalive(ord("C")))
    assert not waiting.calls_for_batch
    assert not Ahead().calls_for_batch
    waiting.add(*frames(row(b"I", CALL_BYTES)))  # but so much of them
    assert waiting.calls_for_batch


@pytest.mark.seconds
def test_reading_ends_when_too_much_waits() -> None:
    waiting = ahead(*[row(b"I", CALL_BYTES)] * (READ_BYTES_MAX // CALL_BYTES - 1))
    was_full = waiting.full
    waiting.add(*frames(row(b"I", CALL_BYTES)))
    assert (was_full, waiting.full) == (False, True)
    data, lengths = waiting.take()
    assert len(data) == lengths.sum() > READ_BYTES_MAX
    assert (waiting.size_bytes, bool(waiting)) == (0, False)


def test_only_the_last_keepalive_in_a_row_stays_and_in_its_place() -> None:
    waiting = ahead(keepalive(1), keepalive(2))
    waiting.add(*frames(keepalive(3)))
    assert waiting.size_bytes == len(keepalive(3))
    waiting.add(*frames(row(b"I"), keepalive(4)))
    waiting.add(*frames(keepalive(5), keepalive(6)))
    waiting.add(*frames())
    assert waiting.size_bytes == 18 + 46 + 18
    data, lengths = waiting.take()
    assert bytes(data) == keepalive(3) + row(b"I") + keepalive(6)
    assert lengths.tolist() == [18, 46, 18]
    assert not waiting


def test_what_waits_is_a_copy() -> None:
    waiting = Ahead()
    data = np.frombuffer(row(b"C"), dtype=np.uint8).copy()
    waiting.add(data, np.array([len(data)]))
    data[:] = 0
    assert bytes(waiting.take()[0]) == row(b"C")


def test_a_request_for_a_reply_is_seen() -> None:
    assert asks_for_reply(*frames(row(b"I"), keepalive(1, 1), keepalive(2)))
    assert not asks_for_reply(*frames(row(b"I"), keepalive(1)))
    assert not asks_for_reply(*frames())
