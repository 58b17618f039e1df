"""CopyData taken from libpq: the compiled loop and the plain one yield the same."""

from __future__ import annotations

import select
from contextlib import closing
from typing import Any

import psycopg
import pytest

from slotlake.decoder.stream.copy_data import CopyReader
from tests.conftest import Database


def started(connection: psycopg.Connection[Any], query: str) -> None:
    pgconn = connection.pgconn
    pgconn.send_query(query.encode())
    while pgconn.is_busy():
        select.select([pgconn.socket], [], [])
        pgconn.consume_input()
    result = pgconn.get_result()
    assert result is not None
    assert result.status == psycopg.pq.ExecStatus.COPY_OUT


def contents(connection: psycopg.Connection[Any], *, plain: bool) -> list[bytes]:
    reader = CopyReader(connection.pgconn)
    assert reader._compiled, "libpq is found where the tests run"
    reader._compiled = not plain
    found: list[bytes] = []
    while True:
        frames = reader.drain()
        data, at = frames.data.tobytes(), 0
        for length in frames.lengths.tolist():
            found.append(data[at : at + length])
            at += length
        assert at == len(data)
        if frames.ended:
            return found
        select.select([connection.pgconn.socket], [], [], 1.0)


@pytest.mark.parametrize("plain", [False, True])
def test_every_message_whole_and_in_order(
    database: Database, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also empty ones, ones larger than the buffer, and more than the arrays hold at first."""
    monkeypatch.setattr("slotlake.decoder.stream.copy_data.DRAIN_BYTES", 100_000)
    query = (
        "COPY (SELECT CASE WHEN i % 20000 = 7 THEN repeat(i::text || ',', 400000) ELSE i::text END "
        "FROM generate_series(1, 60000) i) TO STDOUT"
    )
    with database.connect() as connection:
        started(connection, query)
        found = contents(connection, plain=plain)
        while connection.pgconn.get_result() is not None:
            pass
    expected = [f"{i}," * 400000 if i % 20000 == 7 else str(i) for i in range(1, 60001)]
    assert found == [text.encode() + b"\n" for text in expected]


@pytest.mark.parametrize("plain", [False, True])
def test_a_cut_connection_is_an_error(database: Database, plain: bool) -> None:
    connection = database.connect()
    with closing(connection), pytest.raises(psycopg.OperationalError):
        started(connection, "COPY (SELECT repeat('x', 1000) FROM generate_series(1, 1000000)) TO STDOUT")
        database.execute("SELECT pg_terminate_backend(%s, 5000)", (connection.info.backend_pid,))
        contents(connection, plain=plain)
        # The server had time to say why: then the copy ends, and the reason is its result.
        result = connection.pgconn.get_result()
        assert result is not None
        raise psycopg.errors.error_from_result(result)
