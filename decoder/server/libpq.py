"""The libpq that psycopg uses, for what psycopg does not hand on.

Invariant: a function is called only in the very library that made the connection: the library is
looked for among the mapped files, and must give the same version and the same socket as psycopg does.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache
from pathlib import Path

import psycopg
from psycopg import pq


@cache
def library() -> ctypes.CDLL | None:
    """The libpq that psycopg uses, if it can be told for certain."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    paths = {line.split(maxsplit=5)[5] for line in lines if "/libpq" in line}
    for path in sorted(paths, key=lambda each: "psycopg" not in each):
        try:
            candidate = ctypes.CDLL(path)
            if candidate.PQlibVersion() == pq.version():
                return candidate
        except (OSError, AttributeError):
            continue
    return None


def address(pgconn: pq.abc.PGconn) -> int:
    """Where libpq's connection object lies; 0 when closed."""
    return int(getattr(pgconn, "pgconn_ptr", None) or 0)


def same_library(pgconn: pq.abc.PGconn) -> bool:
    """Is it the library that made this connection?"""
    libpq, at = library(), address(pgconn)
    if libpq is None or not at:
        return False
    libpq.PQsocket.argtypes = [ctypes.c_void_p]
    with suppress(psycopg.Error):  # it has no socket
        return bool(libpq.PQsocket(at) == pgconn.socket)
    return False
