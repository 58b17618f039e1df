"""Log sequence numbers: positions in PostgreSQL's WAL, kept as plain integers.

A *position* P, here and in all of slotlake, means: every transaction whose commit record starts
before P is included, and no other (``SnapBuildXactNeedsSkip`` in snapbuild.c).
"""

from __future__ import annotations

import re

_LSN = re.compile(r"^([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})$")


def parse_lsn(text: str) -> int:
    """Read ``"16/B374D848"`` as PostgreSQL's pg_lsn prints it.

    Raises:
        ValueError: if the text is not an LSN.
    """
    match = _LSN.match(text.strip())
    if match is None:
        raise ValueError(f"not an LSN: {text!r} (expected something like 16/B374D848)")
    return (int(match[1], 16) << 32) | int(match[2], 16)


def format_lsn(lsn: int) -> str:
    """Print an LSN as PostgreSQL's pg_lsn does."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
