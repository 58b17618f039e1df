"""How fast a stream is decoded: ``python -m tests.decoder.speed [ROWS]``.

Six mixed columns (bigint, int, numeric(12,2), text, timestamptz, boolean) as text; 40 % inserts,
50 % updates, 10 % deletes; from a `MessageBuffer` to typed Arrow tables, one thread, processor time.
"""

from __future__ import annotations

import sys
import time

from slotlake.decoder.columnar.buffer import MessageBuffer
from slotlake.decoder.columnar.decoder import Decoder
from slotlake.decoder.protocol.messages import (
    Begin,
    Commit,
    Delete,
    Insert,
    Message,
    NoValue,
    RelationMessage,
    Update,
)
from slotlake.decoder.protocol.relations import Column, Relation
from tests.decoder.wire import encode

TIME = 1_795_253_578_287_819
COLUMNS = (
    Column("id", 20, -1, True),
    Column("quantity", 23, -1, False),
    Column("price", 1700, ((12 << 16) | 2) + 4, False),
    Column("note", 25, -1, False),
    Column("at", 1184, -1, False),
    Column("paid", 16, -1, False),
)


def backlog(rows: int) -> MessageBuffer:
    """One transaction of this many row changes."""
    buffer = MessageBuffer()
    relation = Relation(16400, "public", "orders", "d", COLUMNS)
    for message in (Begin(1000, TIME, 7), RelationMessage(relation)):
        buffer.append(encode(message), 1000)
    for i in range(rows):
        buffer.append(encode(_change(i)), 1000 + i)
    buffer.append(encode(Commit(1000, 1048, TIME)), 1000)
    return buffer


def _change(i: int) -> Message:
    if i % 10 == 9:
        return Delete(16400, "K", (str(i), *[NoValue.NULL] * 5))
    at = f"2026-01-{i % 28 + 1:02d} 12:{i % 60:02d}:33.{i % 999_983 + 1:06d}+00"
    price = f"{i % 100_000}.{i % 100:02d}"
    row = (str(i), str(i * 7 % 1000), price, f"a note on order {i}", at, "t" if i % 3 else "f")
    return Insert(16400, row) if i % 10 % 2 else Update(16400, "", None, row)


def rows_per_second(buffer: MessageBuffer, rows: int, runs: int = 7) -> list[float]:
    """One figure a run; the first includes loading (or making) the compiled code."""
    figures = []
    for _ in range(runs):
        start = time.process_time()
        chunk = Decoder().decode(buffer, first_seq=0, first_txn=0)
        figures.append(rows / (time.process_time() - start))
        assert chunk.counts.changes == rows
    return figures


def main() -> None:
    """Print the figures."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 500_000
    first, *later = rows_per_second(backlog(rows), rows)
    print(f"{rows} rows: first run {first / 1e6:.2f} M/s")
    print(f"then best {max(later) / 1e6:.2f}, worst {min(later) / 1e6:.2f} M/s")


if __name__ == "__main__":
    main()
