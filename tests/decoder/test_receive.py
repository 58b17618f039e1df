"""What travels in COPY BOTH, taken apart; when a batch ends; how long to nap; answers in time."""

from __future__ import annotations

import os
import socket
import struct
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from slotlake.decoder.columnar.buffer import MessageBuffer
from slotlake.decoder.columnar.decoder import DecodedChunk
from slotlake.decoder.errors import ProtocolError
from slotlake.decoder.server.source import SourceSettings
from slotlake.decoder.stream.framing import ENDED_EARLY, REACHED, RUNNING, Bounds, Framing, status_update
from slotlake.decoder.stream.nap import FIRST_LOOPBACK_SECONDS, NAP_TRICKLE_SECONDS, NAPS_SECONDS, Nap
from slotlake.decoder.stream.options import negotiate
from slotlake.decoder.stream.receive import Stream, start_command
from tests.conftest import Database
from tests.decoder.sources import held_by, pulled, replayed, slotted
from tests.decoder.test_pull import TABLE, TEXTS, inserted


def take(framing: Framing, pieces: list[bytes], buffer: MessageBuffer) -> None:
    lengths = np.array([len(piece) for piece in pieces], dtype=np.int64)
    framing.take(np.frombuffer(b"".join(pieces), dtype=np.uint8), lengths, buffer)


def data(payload: bytes, wal_start: int = 7) -> bytes:
    return b"w" + struct.pack(">QQQ", wal_start, wal_start, 0) + payload


def keepalive(wal_end: int, reply: bool = False) -> bytes:
    return b"k" + struct.pack(">QQB", wal_end, 0, reply)


def begin(commit_lsn: int) -> bytes:
    return data(b"B" + struct.pack(">QQI", commit_lsn, 0, 1))


def commit(commit_lsn: int, end_lsn: int) -> bytes:
    return data(b"C" + struct.pack(">BQQQ", 0, commit_lsn, end_lsn, 0))


def message(lsn: int, transactional: bool) -> bytes:
    return data(b"M" + struct.pack(">BQ", transactional, lsn) + b"p\0" + struct.pack(">I", 0))


def fed(pieces: list[bytes], **bounds: int) -> tuple[Framing, list[bytes]]:
    """The framing and the payloads taken in; the same however the pieces are grouped."""
    outcomes = []
    for size in (1, 2, 3, len(pieces) or 1):
        framing, buffer = Framing(Bounds(**{"start": 100, "until": 1000, **bounds})), MessageBuffer()
        for i in range(0, len(pieces), size):
            take(framing, pieces[i : i + size], buffer)
        ends = buffer.ends.tolist()
        taken = [buffer.data[a:b].tobytes() for a, b in pairwise(ends)]
        outcomes.append((framing, taken, (framing.end, framing.open, framing.received_lsn, framing.commits)))
    assert all(outcome[1:] == outcomes[0][1:] for outcome in outcomes)
    return outcomes[0][0], outcomes[0][1]


ROW = data(b"I....")


@pytest.mark.fast
@pytest.mark.parametrize(
    ("pieces", "end", "taken"),
    [
        ([begin(900), ROW, commit(900, 950)], RUNNING, 3),
        ([begin(900), ROW, commit(900, 1000)], REACHED, 3),  # the commit record ends at the bound
        ([begin(900), ROW, commit(900, 1050), begin(1060)], REACHED, 3),  # the bound lies within it
        ([begin(999), ROW, commit(999, 1050), begin(1060)], REACHED, 3),
        ([begin(1000), ROW, commit(1000, 1050)], REACHED, 0),  # the commit record starts at the bound
        ([begin(900), ROW, commit(900, 950), begin(1000), ROW], REACHED, 3),
        ([keepalive(999)], RUNNING, 0),
        ([keepalive(1000)], REACHED, 0),
        ([keepalive(1000), begin(1010)], REACHED, 0),
        ([data(b"I....", wal_start=2000)], RUNNING, 1),  # where a record lies proves nothing
        ([message(999, False)], RUNNING, 1),
        ([message(1000, False)], RUNNING, 1),  # its position is its end: it lies before the bound
        ([message(1001, False)], REACHED, 0),
        ([begin(900), message(1000, True), commit(900, 950)], RUNNING, 3),
    ],
)
def test_where_a_batch_ends(pieces: list[bytes], end: int, taken: int) -> None:
    framing, payloads = fed(pieces)
    assert (framing.end, len(payloads)) == (end, taken)


@pytest.mark.fast
def test_a_byte_bound_ends_a_batch_at_a_commit() -> None:
    pieces = [begin(200), ROW, ROW, commit(200, 210), begin(300), ROW, commit(300, 310)]
    framing, payloads = fed(pieces, max_bytes=10)
    assert (framing.end, framing.received_lsn, len(payloads)) == (ENDED_EARLY, 210, 4)


@pytest.mark.fast
def test_cutting_waits_for_the_commit() -> None:
    framing, buffer = Framing(Bounds(100, 1000)), MessageBuffer()
    framing.end_at_commit()
    assert framing.end == RUNNING, "nothing came yet"
    take(framing, [begin(200), ROW], buffer)
    framing.end_at_commit()
    assert framing.end == RUNNING, "inside a transaction"
    take(framing, [commit(200, 210), begin(300)], buffer)
    assert (framing.end, framing.received_lsn, buffer.count) == (ENDED_EARLY, 210, 3)


@pytest.mark.fast
def test_cutting_between_transactions_is_at_once() -> None:
    framing = Framing(Bounds(100, 1000))
    take(framing, [keepalive(150)], MessageBuffer())
    framing.end_at_commit()
    assert (framing.end, framing.received_lsn) == (ENDED_EARLY, 150)


@pytest.mark.fast
@pytest.mark.parametrize("bad", [b"", b"w", ROW[:25], b"k" + bytes(16), b"x" + bytes(40)])
def test_damaged_frames(bad: bytes) -> None:
    framing = Framing(Bounds(100, 1000))
    with pytest.raises(ProtocolError):
        take(framing, [keepalive(150), bad], MessageBuffer())


@pytest.mark.fast
def test_a_reply_is_asked_for_once() -> None:
    framing = Framing(Bounds(100, 1000))
    take(framing, [keepalive(150, reply=True)], MessageBuffer())
    assert framing.asked_for_reply()
    assert not framing.asked_for_reply()


@pytest.mark.fast
def test_status_messages() -> None:
    assert struct.unpack(">cQQQqB", status_update(5, 946_684_801.0)) == (b"r", 5, 0, 0, 1_000_000, 0)


@pytest.mark.fast
def test_names_are_quoted_in_the_command() -> None:
    source = SourceSettings("host=h", ('a"b', "c'd,e"), "s", messages=True, origin="none")
    command = start_command(source, negotiate(source, 180004), 0x16B374D848).decode()
    assert command == (
        "START_REPLICATION SLOT \"s\" LOGICAL 16/B374D848 (proto_version '4', "
        "publication_names '\"a\"\"b\",\"c''d,e\"', streaming 'parallel', messages 'true', origin 'none')"
    )


def napped(fill_rate: float, room: float) -> tuple[Nap, float]:
    """A sender that fills ``room`` bytes at ``fill_rate`` a second, read for 20 s: rate of the last half."""
    nap, passed, received, from_half = Nap(), 0.0, 0.0, 0.0
    while passed < 20:
        elapsed = max(nap.seconds, 2e-5)
        size = min(room, fill_rate * elapsed)
        nap.drained(int(size), elapsed)
        passed, received = passed + elapsed, received + size
        from_half = from_half or (received if passed >= 10 else 0.0)
    return nap, (received - from_half) / 10


@pytest.mark.fast
def test_a_nap_grows_while_it_costs_nothing() -> None:
    nap, rate = napped(1e8, 1e9)
    assert nap.level >= len(NAPS_SECONDS) - 2
    assert rate > 0.99e8


@pytest.mark.seconds
@pytest.mark.fast
@pytest.mark.parametrize("room", [5_000, 30_000, 300_000])
def test_a_nap_stays_short_when_buffers_are_small(room: int) -> None:
    nap, rate = napped(1e8, room)
    assert NAPS_SECONDS[nap.level] <= 1.7 * room / 1e8 or nap.level <= 1
    assert rate > 0.6e8


@pytest.mark.fast
def test_a_trickle_is_never_kept_waiting() -> None:
    nap = Nap(FIRST_LOOPBACK_SECONDS)
    for _ in range(10_000):
        nap.drained(200, nap.seconds)
        assert nap.seconds <= NAP_TRICKLE_SECONDS
    nap.drained(1 << 20, nap.seconds)
    assert nap.seconds > NAP_TRICKLE_SECONDS


@pytest.mark.fast
def test_quiet_means_waiting_on_the_socket() -> None:
    nap = Nap()
    idle = [nap.idle]  # nothing has come yet
    nap.drained(100, 0.001)
    idle.append(nap.idle)
    for _ in range(3):
        nap.drained(0, nap.seconds)
    idle.append(nap.idle)
    nap.drained(100, 10.0)
    idle.append(nap.idle)  # a long wait for the first byte is no trial of anything
    assert idle == [True, False, True, False]


def test_an_idle_stream_costs_next_to_nothing(database: Database) -> None:
    database.execute(TABLE)
    source, start = slotted(database)
    with Stream(source, start) as stream:
        framing, buffer = Framing(Bounds(start, 1 << 60)), MessageBuffer()
        end, before = time.monotonic() + 2.5, 0.0
        while time.monotonic() < end:
            frames = stream.drain()
            framing.take(frames.data, frames.lengths, buffer)
            stream.report(framing.received_lsn, now=framing.asked_for_reply())
            stream.rest(1.0)
            if not before and time.monotonic() > end - 2:  # the first half second compiles
                before = time.process_time()
    assert time.process_time() - before < 0.02, "1 % of two seconds"


def test_the_server_is_answered_while_a_batch_is_written(
    pg: object, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """wal_sender_timeout is 1 s and writing takes 3: without answers the server would hang up."""
    monkeypatch.setattr("slotlake.decoder.stream.puller.CHUNK_BYTES", 50_000)
    monkeypatch.setattr("slotlake.decoder.stream.copy_data.DRAIN_BYTES", 50_000)
    database.execute(TABLE + f"ALTER DATABASE {database.name} SET wal_sender_timeout = '1s'")
    source, start = slotted(database)
    for i in range(10):
        database.execute(inserted(1000 * i, 1000 * i + 999))
    from slotlake.decoder.changelog.writer import BatchWriter

    append = BatchWriter.append

    def slowly(self: BatchWriter, chunk: DecodedChunk) -> None:
        time.sleep(0.5)
        append(self, chunk)

    monkeypatch.setattr(BatchWriter, "append", slowly)
    begun = time.monotonic()
    batch = pulled(source, tmp_path, start)
    assert time.monotonic() - begun > 3
    assert replayed([batch]) == held_by(database, "t", TEXTS)


@pytest.mark.parametrize("transport", ["unix", "tiny"])
def test_small_buffers_neither_hang_nor_crawl(
    database: Database, tmp_path: Path, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute(TABLE)
    source, start = slotted(database)
    database.execute(inserted(1, 20_000))
    if transport == "unix":
        source = SourceSettings(database.server.dsn(database.name, unix_socket=True), ("p",), source.slot)
    else:

        def tiny(pgconn: object) -> float:
            with socket.socket(fileno=os.dup(pgconn.socket)) as channel:  # type: ignore[attr-defined]
                # Far below this TCP itself falls back on probes every 0.2 s, whoever reads.
                channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
            return FIRST_LOOPBACK_SECONDS

        monkeypatch.setattr("slotlake.decoder.stream.receive._shape_socket", tiny)
    begun = time.monotonic()
    assert pulled(source, tmp_path, start).changes == 20_000
    assert time.monotonic() - begun < 20
