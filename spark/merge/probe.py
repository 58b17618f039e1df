"""Does the lake hold what the changes of a batch count on? Asked before, or told by what a MERGE did.

``asked`` asks the lake itself, for the choices that need to know beforehand; that costs a scan of the key
columns.  ``as_expected`` costs nothing: it compares what the fold counts on with the counts that Spark put
into the summaries of the snapshots it made.  Two rows can hide each other from these counts, one missing
and one unexpected (an insert and then a delete of a key that is there, and a delete of one that is not;
where rows are replaced, also an insert of a key that is there); only such pairs can whose outcome is the same
with and without knowing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from slotlake.spark.fold.batch import Folded
from slotlake.spark.merge.bag_sql import bag_join
from slotlake.spark.merge.sql import DELETE, MOVED, WHOLE, Target, key_range, same_key, stays
from slotlake.spark.names import quote

_MERGED = "spark.merge-into.num-target-rows-"
_UPDATED, _DELETED, _INSERTED = (
    _MERGED + what for what in ("matched-updated", "matched-deleted", "inserted")
)


def lake_rows_query(target: Target, asked: pa.Table, view: str) -> str:
    """The query for how many rows the lake holds of what was asked: (code, rows), none where it is 0.

    Args:
        target: with the fold's columns; ``given`` of ``asked``.
        asked: as `fold.Stretch.asked` gives it, also in the view.
    """
    if target.fold.bag:
        pairs = bag_join(target, asked, view, "code")
    else:
        condition = " AND ".join(same_key(target, "l") + key_range(target, asked, "l"))
        pairs = f"{target.branch} AS l JOIN {quote(view)} AS s ON {condition}"
    return f"SELECT s.code AS code, count(*) AS held FROM {pairs} GROUP BY s.code"


def counts_on_the_lake(fold: Folded) -> bool:
    """Does it matter to the fold which rows the lake holds?"""
    return not fold.truncated and (fold.bag or bool(fold.key)) and fold.rows.num_rows > 0


def as_expected(target: Target, summaries: Sequence[Mapping[str, Any]]) -> bool:
    """Did the statements of a fold change as many rows as they must on a lake that has what it counts on?

    Args:
        target: as the statements were made for.
        summaries: of the snapshots that the statements made.
    """
    fold = target.fold
    if not any(_DELETED in summary for summary in summaries):
        return fold.bag and not fold.expected.any()
    deleted = _total(summaries, _DELETED)
    if fold.bag:
        return deleted == int(fold.expected.sum())
    action, there = fold.rows["action"].to_numpy(), fold.expected > 0
    puts = np.isin(action, (WHOLE, MOVED))
    done = (deleted, _total(summaries, _UPDATED), _total(summaries, _INSERTED))
    if any(_DELETED not in summary for summary in summaries):
        # Of two statements the second appends whole rows, the first took away what was there of them.
        staying = stays(target)
        return done == (int((there & ~staying).sum()), int((there & staying).sum()), 0)
    return done == (
        int((there & (action == DELETE)).sum()),
        int((there & (action != DELETE)).sum()),
        int((~there & puts).sum()),
    )


def _total(summaries: Iterable[Mapping[str, Any]], name: str) -> int:
    return sum(int(summary.get(name, 0)) for summary in summaries)
