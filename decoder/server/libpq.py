"""The libpq that psycopg uses, for functions that psycopg does not offer.

Invariant: a function is called only in the library that made the connection.  The library is searched among
the mapped files, and it must give the same version and the same socket as psycopg.
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
    """The libpq that psycopg uses; None if it cannot be identified with certainty."""
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
    """The address of libpq's connection object; 0 when closed."""
    return int(getattr(pgconn, "pgconn_ptr", None) or 0)


def same_library(pgconn: pq.abc.PGconn) -> bool:
    """True if `library` is the one that made this connection."""
    libpq, at = library(), address(pgconn)
    if libpq is None or not at:
        return False
    libpq.PQsocket.argtypes = [ctypes.c_void_p]
    with suppress(psycopg.Error):  # it has no socket
        return bool(libpq.PQsocket(at) == pgconn.socket)
    return False
