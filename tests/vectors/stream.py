"""Receiving a slot's stream in a test: a walsender connection, read until a position is passed."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import psycopg
from psycopg import pq

OPTIONS = (
    "-c DateStyle=ISO -c IntervalStyle=postgres -c extra_float_digits=1 -c TimeZone=UTC -c bytea_output=hex"
)


def receive(
    dsn: str, slot: str, publications: list[str], until: int, **options: str
) -> list[tuple[int, bytes]]:
    """All messages up to ``until``: (WAL start, payload)."""
    settings = {
        "proto_version": "4",
        "publication_names": ",".join(f'"{p}"' for p in publications),
        **options,
    }
    quoted = ", ".join(f"{name} '{value}'" for name, value in settings.items())
    connection = psycopg.connect(dsn, autocommit=True, replication="database", options=OPTIONS)
    with contextlib.closing(connection):
        result = connection.pgconn.exec_(f"START_REPLICATION SLOT {slot} LOGICAL 0/0 ({quoted})".encode())
        assert result.status == pq.ExecStatus.COPY_BOTH, result.get_error_message()
        return _messages(connection.pgconn, until)


def _messages(connection: Any, until: int) -> list[tuple[int, bytes]]:
    messages = []
    while True:
        length, data = connection.get_copy_data(0)
        assert length > 0, connection.get_error_message()
        data = bytes(data)
        if data[:1] == b"w":
            messages.append((struct.unpack(">Q", data[1:9])[0], data[25:]))
        elif struct.unpack(">Q", data[1:9])[0] >= until:
            return messages
