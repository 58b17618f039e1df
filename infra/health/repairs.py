"""What `recover` would do about the findings of the last look, in words; the command has the exact plan."""

from __future__ import annotations

from slotlake.infra.health.model import Health
from slotlake.infra.health.words import rows_differ

_NEW_SLOT = (
    "make a new slot, compare lake and source under its snapshot, and write only the rows that differ, "
    "as one more batch"
)
_BY_KIND = {
    "slot missing": _NEW_SLOT,
    "slot lost": _NEW_SLOT,
    "slot ahead": _NEW_SLOT,
    "history": _NEW_SLOT,
    "restored": _NEW_SLOT,
    "publication": _NEW_SLOT,
    "slot": _NEW_SLOT,
    "unfinished": "go on with the recovery that was begun",
    "batch": "pull the damaged batch again from the slot",
    "set aside": "nothing: `slotlake resume` copies such a table again, once its cause is gone",
    "derived table gone": "nothing: the next sync begins it again, once no files are in its directory",
}
_TABLE = "move the table back to where slotlake left it, or copy it again if its files are lost"
_EVERYTHING = "plan it: run `slotlake recover`, which changes nothing without --yes"


def repairs(health: Health) -> list[str]:
    """Return a line for each finding: what is wrong, and what `recover` would do."""
    lines = []
    for alarm in health.alarms:
        kind = str(alarm["kind"])
        repair = _BY_KIND.get(kind) or (_TABLE if kind.startswith("table ") else None)
        if repair is not None:
            lines.append(f"{alarm['what']}: {repair}")
        elif "slotlake recover" in alarm["way_out"]:
            lines.append(f"{alarm['what']}: {_EVERYTHING}")
    verified = health.verified
    if verified is not None and not verified["equal"]:
        lines.append(
            f"the last verification says: {rows_differ(verified['differences'])}: "
            "`slotlake backfill` reads the rows or tables again that its keys name"
        )
    return lines
