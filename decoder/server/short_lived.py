"""Passwords that are valid for some minutes only: they are asked for whenever a connection is opened.

A connection string has no place for a password that is another one in an hour. Who makes such a string
registers who gives out its passwords; `decoder.server.source` asks.  Invariant: the password is in no
connection string, so in no message, no process title and no other process.
"""

from __future__ import annotations

from collections.abc import Callable

# Who opens a session has the connection string alone.
_GIVEN_OUT: dict[str, Callable[[], str]] = {}


def register(dsn: str, give_out: Callable[[], str]) -> None:
    """Have the password of a connection string asked for at each new connection.

    Args:
        dsn: the connection string, without a password.
    """
    _GIVEN_OUT[dsn] = give_out


def password_part(dsn: str) -> dict[str, str]:
    """Return the password of now as a part of a connection string; nothing if the string is complete."""
    give_out = _GIVEN_OUT.get(dsn)
    return {} if give_out is None else {"password": give_out()}
