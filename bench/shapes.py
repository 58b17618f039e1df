"""decode_shapes: streams of very different shapes, each decoded on one core, as bytes a second.

Taken from what a connection hands over (CopyData contents) to typed Arrow tables: taken apart, walked,
parsed.  Each shape stands against the best of them: none may fall far behind because of what it looks
like.  Each shape's runs are taken in turns with the others'.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import psycopg

from slotlake.bench.decode import one_core
from slotlake.bench.figures import Figure
from slotlake.bench.workload import COLUMNS, DATABASE, PUBLICATION, bench_server, insert_rows, rows_asked
from slotlake.decoder.columnar.buffer import MessageBuffer
from slotlake.decoder.columnar.decoder import Decoder
from slotlake.decoder.errors import SlotlakeError
from slotlake.decoder.protocol.relation_reading import forget
from slotlake.decoder.server.position import settled_position
from slotlake.decoder.server.source import connect
from slotlake.decoder.stream.framing import Bounds, Framing
from slotlake.decoder.stream.puller import CHUNK_BYTES

if TYPE_CHECKING:
    from slotlake.infra.progress import Progressing

ROWS = 500_000
SLOWER_MAX = 3.0
_RUNS = 5
_DRAIN_BYTES = 512 << 10
_TABLES = 1000
_WIDTH = 1000
_LARGE_BYTES = 8 << 20
_HEADER = struct.Struct(">cQQQ")

Connection = psycopg.Connection[Any]
_Make = Callable[[Connection, int], None]


@dataclass(frozen=True)
class _Frames:
    """CopyData contents as a connection hands them over: one array of bytes and of lengths a drain."""

    data: np.ndarray[Any, np.dtype[np.uint8]]
    lengths: np.ndarray[Any, np.dtype[np.int64]]


def decode_shapes(progress: Progressing) -> list[Figure]:
    """Every shape's rate beside the best one's of the same round."""
    rows = rows_asked(ROWS)
    with bench_server() as server, connect(server.dsn(DATABASE)) as connection:
        streams = {}
        for name, make in _SHAPES.items():
            progress(f"decode_shapes: making {name}", 0)
            streams[name] = _stream(connection, make, rows)
    with one_core():
        for frames in streams.values():
            _decode(frames)
        rounds = []
        for i in range(_RUNS):
            progress("decode_shapes: round", i + 1, _RUNS)
            rounds.append({name: _decode(frames) for name, frames in streams.items()})
    return [_figure(name, streams[name], rounds) for name in streams]


def _figure(name: str, frames: list[_Frames], rounds: Sequence[Mapping[str, tuple[float, int]]]) -> Figure:
    size = sum(len(each.data) for each in frames)
    return Figure(
        what=name,
        peer="the best of the shapes",
        unit="MB/s",
        ours=tuple(each[name][0] for each in rounds),
        theirs=tuple(max(rate for rate, _ in each.values()) for each in rounds),
        wanted=1 / SLOWER_MAX,
        note=f"{size:,} bytes, {rounds[0][name][1]:,} changes; of CPU time",
    )


def _decode(frames: list[_Frames]) -> tuple[float, int]:
    """Megabytes a second of CPU time, and changes, as the first stream of a process."""
    forget()
    framing, decoder, buffer = Framing(Bounds(0, 1 << 62)), Decoder(), MessageBuffer()
    seq = txn = changes = 0
    started = time.thread_time()
    for i, each in enumerate(frames):
        framing.take(each.data, each.lengths, buffer)
        if buffer.full(CHUNK_BYTES) or i == len(frames) - 1:
            decoded = decoder.decode(buffer, first_seq=seq, first_txn=txn, partial=True)
            seq, txn, changes = decoded.next_seq, decoded.next_txn, changes + decoded.counts.changes
            buffer.clear()
    seconds = time.thread_time() - started
    if decoded.open or changes == 0:
        raise SlotlakeError("a stream of the benchmark was not decoded to its end")
    return sum(len(each.data) for each in frames) / 1e6 / seconds, changes


def _stream(connection: Connection, make: _Make, rows: int) -> list[_Frames]:
    """The CopyData contents that the server would send for what ``make`` does."""
    connection.execute("SELECT pg_create_logical_replication_slot('shapes', 'pgoutput')")
    try:
        make(connection, rows)
        settled_position(connection)  # commits are asynchronous: the slot shows what is flushed
        return _frames(connection)
    finally:
        connection.execute("SELECT pg_drop_replication_slot('shapes')")


def _frames(connection: Connection) -> list[_Frames]:
    frames: list[_Frames] = []
    pieces: list[bytes] = []
    size = 0

    def end_frame() -> None:
        lengths = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))
        frames.append(_Frames(np.frombuffer(b"".join(pieces), dtype=np.uint8), lengths))
        pieces.clear()

    with connection.transaction():
        cursor = connection.cursor("shapes", binary=True)
        cursor.itersize = 5000
        cursor.execute(
            "SELECT data FROM pg_logical_slot_peek_binary_changes('shapes', NULL, NULL, "
            "'proto_version', '1', 'publication_names', %s)",
            (PUBLICATION,),
        )
        for i, (message,) in enumerate(cursor):
            pieces.append(_HEADER.pack(b"w", i, i, 0) + message)
            size += len(pieces[-1])
            if size >= _DRAIN_BYTES:
                end_frame()
                size = 0
    end_frame()
    return frames


def _publish(connection: Connection, tables: str) -> None:
    connection.execute(f"DROP PUBLICATION IF EXISTS {PUBLICATION}".encode())
    connection.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {tables}".encode())


def _table(connection: Connection, name: str, columns: str) -> None:
    connection.execute(f"CREATE TABLE {name} ({columns})".encode())
    _publish(connection, name)


def _mixed(connection: Connection, rows: int) -> None:
    _table(connection, "mixed", COLUMNS)
    insert_rows(connection, "mixed", 1, rows)


def _narrow(connection: Connection, rows: int) -> None:
    _table(connection, "narrow", "id int")
    connection.execute(f"INSERT INTO narrow SELECT i FROM generate_series(1, {2 * rows}) i".encode())


def _wide(connection: Connection, rows: int) -> None:
    _table(connection, "wide", ", ".join(f"c{i} int" for i in range(_WIDTH)))
    values = ", ".join(f"i * {i + 1}" for i in range(_WIDTH))
    count = max(2, rows * 10 // _WIDTH)
    connection.execute(f"INSERT INTO wide SELECT {values} FROM generate_series(1, {count}) i".encode())


def _large(connection: Connection, rows: int) -> None:
    _table(connection, "large", "id int, content text")
    connection.execute("ALTER TABLE large ALTER content SET STORAGE EXTERNAL")
    count = max(1, min(10, rows // 50_000))
    connection.execute(
        f"INSERT INTO large SELECT i, repeat(md5(i::text), {_LARGE_BYTES // 32}) "
        f"FROM generate_series(1, {count}) i".encode()
    )


_INTERLEAVE = """
DO $$
BEGIN
  FOR n IN 1..{rounds} LOOP
    FOR t IN 1..{tables} LOOP
      EXECUTE format('INSERT INTO t%s VALUES '
        '(%s, %s, %s.25, ''a note on order %s'', ''2026-01-01 00:00:00+00'', true)', t, n, t, n, n);
    END LOOP;
  END LOOP;
END $$
"""


def _interleaved(connection: Connection, rows: int) -> None:
    names = [f"t{i}" for i in range(1, _TABLES + 1)]
    for first in range(0, _TABLES, 100):
        connection.execute(
            "; ".join(f"CREATE TABLE {name} ({COLUMNS})" for name in names[first : first + 100]).encode()
        )
    _publish(connection, ", ".join(names))
    rounds = max(1, rows // 5 // _TABLES)
    connection.execute(_INTERLEAVE.format(rounds=rounds, tables=_TABLES).encode())


_ONE_BY_ONE = """
DO $$
BEGIN
  FOR i IN 1..{rows} LOOP
    INSERT INTO single VALUES
      (i, i % 1000, i * 1.25, 'a note on order ' || i, '2026-01-01 00:00:00+00', true);
    COMMIT;
  END LOOP;
END $$
"""


def _one_row(connection: Connection, rows: int) -> None:
    _table(connection, "single", COLUMNS)
    connection.execute(_ONE_BY_ONE.format(rows=rows // 2).encode())


def _with_origin(connection: Connection, rows: int) -> None:
    _table(connection, "replicated", COLUMNS)
    connection.execute("SELECT pg_replication_origin_create('upstream')")
    connection.execute("SELECT pg_replication_origin_session_setup('upstream')")
    try:
        connection.execute(_ONE_BY_ONE.replace("single", "replicated").format(rows=rows // 2).encode())
    finally:
        connection.execute("SELECT pg_replication_origin_session_reset()")
        connection.execute("SELECT pg_replication_origin_drop('upstream')")


_SHAPES: Mapping[str, _Make] = {
    "six mixed columns": _mixed,
    "one column": _narrow,
    f"{_WIDTH:,} columns": _wide,
    "values of 8 MB": _large,
    f"{_TABLES:,} tables in turn": _interleaved,
    "one-row transactions": _one_row,
    "one-row transactions with an origin": _with_origin,
}
