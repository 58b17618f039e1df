"""What a change met in the lake that the source did not have: four kinds, their counts, the choice.

The kinds and their names are PostgreSQL's own (conflict.h; pg_stat_subscription_stats counts the same):
a lake equal to the source never meets one.  What is done then is chosen per table:

* ``apply``: the lake becomes what the change says, as far as it says it.  An insert replaces the row of
  its key; a row that moves to another key replaces the one there; an update of a missing row inserts its
  new row if all values are known, and is passed over if one was sent as unchanged; a delete of a missing
  row has nothing to do.
* ``skip``: the change is passed over whole, as by a subscriber that skips it; later changes of the same
  key meet the row that was left.
* ``fail``: nothing of the batch is applied.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from slotlake.decoder.errors import ApplyError

OnConflict = Literal["apply", "skip", "fail"]
CONFLICTS_PROPERTY = "slotlake.conflicts"
CONFLICTS_TOTAL_PROPERTY = "slotlake.conflicts-total"
_LSN = "slotlake.lsn"


@dataclass(frozen=True)
class Conflicts:
    """Changes by what they met.

    Attributes:
        insert_exists: inserts of a key that a row had.
        update_exists: updates that took their row to a key that another row had.
        update_missing: updates of a row that was not there.
        delete_missing: deletes of a row that was not there.
    """

    insert_exists: int = 0
    update_exists: int = 0
    update_missing: int = 0
    delete_missing: int = 0

    def __add__(self, other: Conflicts) -> Conflicts:
        own_counts, other_counts = asdict(self), asdict(other)
        return Conflicts(**{kind: own_counts[kind] + other_counts[kind] for kind in own_counts})

    def __bool__(self) -> bool:
        return any(asdict(self).values())

    @property
    def counts(self) -> dict[str, int]:
        """Those kinds that there are."""
        return {kind: count for kind, count in asdict(self).items() if count}

    def properties(self, before: Conflicts) -> dict[str, str]:
        """For the snapshot that a batch makes; ``before``: what the table had met until then."""
        by_property = {CONFLICTS_PROPERTY: self} if self else {}
        total = before + self
        by_property |= {CONFLICTS_TOTAL_PROPERTY: total} if total else {}
        return {name: json.dumps(which.counts) for name, which in by_property.items()}

    @classmethod
    def total_in(cls, summaries: Iterable[Mapping[str, Any]]) -> Conflicts:
        """What a table had met since it was copied.

        Args:
            summaries: of its snapshots, newest first; one that slotlake did not make does not say.
        """
        newest = next((summary for summary in summaries if _LSN in summary), {})
        return cls(**json.loads(newest.get(CONFLICTS_TOTAL_PROPERTY, "{}")))


@dataclass(frozen=True)
class Choices:
    """What to do, for all tables and for single ones, by (schema, table)."""

    default: OnConflict = "apply"
    tables: Mapping[tuple[str, str], OnConflict] = field(default_factory=dict)

    def of(self, schema: str, table: str) -> OnConflict:
        """For one table."""
        return self.tables.get((schema, table), self.default)


def conflict_error(table: str, conflicts: Conflicts) -> ApplyError:
    """The error of the choice ``fail``."""
    counts_text = ", ".join(f"{kind} {count}" for kind, count in conflicts.counts.items())
    error = ApplyError(
        f"the batch meets rows in the lake that the source did not have, or lacks some: {counts_text}",
        where=f"table {table}, on_conflict: fail",
        way_out=f"copy the table again: slotlake backfill --table '{table}' after setting on_conflict: apply "
        "(or skip) for it, which lets this batch pass; nothing of the batch was applied",
    )
    error.choice = "on_conflict"
    return error
