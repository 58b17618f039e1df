"""The note ``verified.json`` in a pipeline's state: what was verified of each table, and when.

Verifications write it (infra/verify/outcome.py); status, and who plans the next one, read it.  Who copies a
table says so here (`note_copied`): no row of the copy is verified yet.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slotlake.decoder.lsn import format_lsn, parse_lsn
from slotlake.infra.state.notes import VERIFIED, StateFile

_LOCK = "verified.lock"


def verified_note(state_dir: Path) -> StateFile:
    """Return the note."""
    return VERIFIED.of(state_dir)


def read_verified(state_dir: Path) -> dict[str, Any]:
    """Return its content: ``tables`` by the source's name, ``open`` differences, ``credit_from``."""
    content = verified_note(state_dir).mapping()
    parts = {name: content.get(name) for name in ("tables", "open")}
    return {**content, **{name: part if isinstance(part, dict) else {} for name, part in parts.items()}}


def coverage(verified: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return how much the rolling part of verification covers; None without slices.

    Returns:
        ``slices``; ``never``: those that were never found equal; ``oldest``: when the slice was last found
        equal, or first planned, for which that is longest ago (seconds since 1970).
    """
    entries = [entry for entry in verified["tables"].values() if isinstance(entry, dict)]
    notes = [note for entry in entries for note in entry.get("slices", ())]
    if not notes:
        return None
    never = sum(note["lsn"] is None for note in notes)
    return {"slices": len(notes), "never": never, "oldest": min(note["time"] for note in notes)}


@contextmanager
def locked_note(state_dir: Path) -> Iterator[dict[str, Any]]:
    """Lend the note for a change, and write it; one run on this machine at a time.

    Where the state is in an object store, only who has the pipeline's lock may do so.

    Raises:
        OSError: it cannot be written.
    """
    state_dir.mkdir(parents=True, exist_ok=True)
    handle = os.open(state_dir / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        content = read_verified(state_dir)
        yield content
        verified_note(state_dir).write(content)
    finally:
        os.close(handle)


def note_copied(state_dir: Path, tables: Collection[str], position: int) -> None:
    """Note that tables are copied: what was found equal of them before counts no more.

    Call it under the lock, before the copy is published: a crash between the two costs one
    comparison more.

    Args:
        tables: as PostgreSQL writes them.
        position: the LSN at which they are published.
    """
    if not tables:
        return
    with locked_note(state_dir) as verified:
        copied = verified["copied"] = {**verified.get("copied", {})}
        for name in tables:
            copied[name] = format_lsn(position)
            entry = verified["tables"].get(name)
            if isinstance(entry, dict):
                entry.pop("lsn", None)
                for note in entry.get("slices", ()):
                    note.update(time=round(time.time(), 3), lsn=None)


def copied_since(verified: Mapping[str, Any], name: str, position: int) -> bool:
    """Return whether a table was copied at a later LSN than that of a comparison.

    Args:
        position: the LSN of the comparison.
    """
    copied = verified.get("copied", {}).get(name)
    return copied is not None and parse_lsn(copied) > position
