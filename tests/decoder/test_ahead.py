"""What a reader that looks ahead makes of messages that no batch has taken yet."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from slotlake.decoder.stream.ahead import AHEAD_BYTES_MAX, Frames, asks_for_reply, calls_for_batch, joined


def frames(*messages: bytes) -> Frames:
    data = np.array(list(b"".join(messages)), dtype=np.uint8)
    return data, np.array([len(each) for each in messages], dtype=np.int64)


def row(tag: bytes, size: int = 20) -> bytes:
    return struct.pack(">cQQq", b"w", 1, 2, 3) + tag + bytes(size)


def keepalive(wal_end: int, reply: int = 0) -> bytes:
    return struct.pack(">cQqB", b"k", wal_end, 0, reply)


@pytest.mark.parametrize("tag", [b"C", b"c", b"K", b"P", b"p", b"r", b"M"])
def test_the_end_of_a_transaction_calls_for_a_batch(tag: bytes) -> None:
    assert calls_for_batch(joined(None, *frames(row(b"B"), row(b"I"), keepalive(7), row(tag))))


def test_rows_of_an_open_transaction_do_not() -> None:
    waiting = joined(None, *frames(row(b"S"), row(b"I"), row(b"E"), keepalive(ord("C"))))
    assert not calls_for_batch(waiting)
    assert not calls_for_batch(None)
    assert calls_for_batch(joined(waiting, *frames(row(b"I", AHEAD_BYTES_MAX))))  # but so much of them


def test_only_the_last_keepalive_in_a_row_stays_and_in_its_place() -> None:
    waiting = joined(None, *frames(keepalive(1), keepalive(2)))
    waiting = joined(waiting, *frames(keepalive(3)))
    assert waiting is not None
    assert bytes(waiting[0]) == keepalive(3)
    waiting = joined(waiting, *frames(row(b"I"), keepalive(4)))
    waiting = joined(waiting, *frames(keepalive(5), keepalive(6)))
    assert waiting is not None
    assert bytes(waiting[0]) == keepalive(3) + row(b"I") + keepalive(6)
    assert waiting[1].tolist() == [18, 46, 18]
    assert joined(waiting, *frames()) is waiting


def test_what_waits_is_a_copy() -> None:
    data = np.frombuffer(row(b"C"), dtype=np.uint8).copy()
    waiting = joined(None, data, np.array([len(data)]))
    data[:] = 0
    assert calls_for_batch(waiting)


def test_a_request_for_a_reply_is_seen() -> None:
    assert asks_for_reply(*frames(row(b"I"), keepalive(1, 1), keepalive(2)))
    assert not asks_for_reply(*frames(row(b"I"), keepalive(1)))
    assert not asks_for_reply(*frames())
