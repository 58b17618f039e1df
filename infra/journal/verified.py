"""The note ``verified.json`` in a pipeline's state: what was verified of each table, and when.

Verifications write it (infra/care/verified.py); status, and who plans the next one, read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slotlake.infra.state_file import StateFile

_NOTE = "verified.json"


def verified_note(state_dir: Path) -> StateFile:
    """Return the note."""
    return StateFile(state_dir / _NOTE)


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
