"""The launcher's only error class; ``decoder.errors`` cannot be imported before the environment exists."""

from __future__ import annotations


class LaunchError(Exception):
    """The environment cannot be made: what, where, and what to do."""

    def __init__(self, what: str, *, where: str = "", way_out: str = "") -> None:
        parts = [what, where and f"where: {where}", way_out and f"what to do: {way_out}"]
        super().__init__("\n  ".join(part for part in parts if part))


def say(text: str) -> None:
    """Print a line of progress to standard error; standard output belongs to the command."""
    import sys

    print(f"slotlake: {text}", file=sys.stderr, flush=True)
