"""The libpq that psycopg uses, for functions that psycopg does not offer.

Invariant: a function is called only in the library that made the connection.  The library is searched among
the mapped files, and it must give the same version and the same socket as psycopg.
"""

from __future__ import annotations

import ctypes
import re
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Self

import psycopg
from psycopg import pq
from psycopg.abc import PQGenConn
from psycopg.waiting import Wait


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


# The SQLSTATE of a server's error message, whatever the language of the message.
#
# A statement's error has its state.  The error of a refused connection does not: libpq keeps only its text.
# So each connection begins with verbose errors.  In these the state stands before the message (``FATAL:
# 28P01: …``) and ``LOCATION:  …`` after it, both in the language of the server.  Once the connection is
# made, errors have their usual form again.
#
# Invariant: the state and the location are removed again from each text that this module returns.

_DEFAULT, _VERBOSE = 1, 2  # PGVerbosity, libpq-fe.h
_STATE = re.compile(r"(?<=:  )([0-9A-Z]{5}): ")
_LOCATION = re.compile(r"\n[^\n:]+:  \w+, [\w.]+:\d+(?=\n|$)")
_WAITS = {pq.PollingStatus.READING: Wait.R, pq.PollingStatus.WRITING: Wait.W}


def message_and_state(error: psycopg.Error) -> tuple[str, str]:
    """The text of an error, and its SQLSTATE; "" if it does not come from a server."""
    text = str(error)
    states = _STATE.findall(text) if error.sqlstate is None else []
    if not states:
        return text, error.sqlstate or ""
    return _LOCATION.sub("", _STATE.sub("", text)), str(states[-1])


class StatingConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose refusal has a SQLSTATE."""

    @classmethod
    def _connect_gen(cls, conninfo: str = "") -> PQGenConn[Self]:
        """The same as psycopg's own (`psycopg.generators`), except for the verbosity."""
        pgconn = pq.PGconn.connect_start(conninfo.encode())
        _set_verbosity(pgconn, _VERBOSE)
        while True:
            status = pq.PollingStatus.FAILED
            if pgconn.status != pq.ConnStatus.BAD:
                status = pq.PollingStatus(pgconn.connect_poll())
            if status == pq.PollingStatus.OK:
                break
            if status not in _WAITS:
                failed = f"connection failed: {pgconn.get_error_message()}"
                pgconn.finish()
                raise psycopg.OperationalError(failed)
            while not (yield pgconn.socket, _WAITS[status]):
                pass
        _set_verbosity(pgconn, _DEFAULT)
        return cls(pgconn)


def _set_verbosity(pgconn: pq.abc.PGconn, verbosity: int) -> None:
    libpq = library()
    if libpq is not None and same_library(pgconn):
        libpq.PQsetErrorVerbosity(ctypes.c_void_p(address(pgconn)), verbosity)
