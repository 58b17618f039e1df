"""Checks whether the lake has the rows that a batch's changes expect: before a MERGE, or from its counts.

``lake_rows_query`` asks the lake itself, for the choices that must know beforehand; that scans the key
columns.  ``changed_as_expected`` costs nothing: it compares the expected counts with those that Spark wrote
into the summaries of its snapshots.  Two rows can hide each other in these counts, one missing and one
unexpected (an insert and then a delete of a key that is there, and a delete of one that is not; where rows
are replaced, also an insert of a key that is there); but only pairs for which the outcome is the same anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from slotlake.spark.fold.batch import Folded
from slotlake.spark.merge.bag_sql import bag_join
from slotlake.spark.merge.replacement import rows_staying
from slotlake.spark.merge.sql import DELETE, MOVED, WHOLE, Target, key_range, same_key
from slotlake.spark.names import quote

_MERGED = "spark.merge-into.num-target-rows-"
_UPDATED, _DELETED, _INSERTED = (
    _MERGED + what for what in ("matched-updated", "matched-deleted", "inserted")
)


def lake_rows_query(target: Target, lookup: pa.Table, view: str) -> str:
    """Return the query for how many rows the lake has per key: (code, held); keys without a row are left out.

    Args:
        target: with the fold's columns; its ``view_columns`` are those of ``lookup``.
        lookup: as `fold.batch.SegmentFold.lookup_rows` gives it.
        view: the view with the rows of ``lookup``.
    """
    if target.fold.bag:
        pairs = bag_join(target, lookup, view, "code")
    else:
        condition = " AND ".join(same_key(target, "l") + key_range(target, lookup, "l"))
        pairs = f"{target.branch} AS l JOIN {quote(view)} AS s ON {condition}"
    return f"SELECT s.code AS code, count(*) AS held FROM {pairs} GROUP BY s.code"


def counts_on_the_lake(fold: Folded) -> bool:
    """Return whether the result of the fold depends on the rows that the lake has."""
    return not fold.truncated and (fold.bag or bool(fold.key)) and fold.rows.num_rows > 0


def changed_as_expected(target: Target, summaries: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a fold's statements changed as many rows as on a lake that has all expected rows."""
    fold = target.fold
    if not any(_DELETED in summary for summary in summaries):
        return fold.bag and not fold.expected.any()
    deleted = _total(summaries, _DELETED)
    if fold.bag:
        return deleted == int(fold.expected.sum())
    action, expected = fold.rows["action"].to_numpy(), fold.expected > 0
    puts_row = np.isin(action, (WHOLE, MOVED))
    changed = (deleted, _total(summaries, _UPDATED), _total(summaries, _INSERTED))
    if any(_DELETED not in summary for summary in summaries):
        # Of two statements the second appends whole rows, the first took away what was there of them.
        staying = rows_staying(target)
        return changed == (int((expected & ~staying).sum()), int((expected & staying).sum()), 0)
    return changed == (
        int((expected & (action == DELETE)).sum()),
        int((expected & (action != DELETE)).sum()),
        int((~expected & puts_row).sum()),
    )


def _total(summaries: Iterable[Mapping[str, Any]], name: str) -> int:
    return sum(int(summary.get(name, 0)) for summary in summaries)
