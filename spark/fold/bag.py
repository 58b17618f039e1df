"""Fold the changes of a table without a key: how many rows of each kind go and come.

Under REPLICA IDENTITY FULL every update and delete carries the whole old row, and a subscriber removes
one row equal to it, whichever (worker.c, FindReplTupleInLocalRel; execReplication.c, tuples_equal).  So
a batch comes down to two numbers per distinct row: how many go, and how many come then.  A row that was
removed and put back counts in both, so that the number that goes is what the lake must have.

NULL equals NULL.  Rows are told apart as PostgreSQL prints them: numeric 1.0 and 1.00, or float -0 and 0,
are two rows, though ``=`` holds them equal.  That is finer than a subscriber, and right: the server names
the old row by its own bytes, so the lake ends with the source's rows, where a subscriber may keep 1.00
in place of 1.0.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from slotlake.decoder.errors import ApplyError
from slotlake.spark.fold.columns import OLD_WHOLE, Merged
from slotlake.spark.fold.keys import KeyCodes, codes_of
from slotlake.spark.fold.walk import Array, walk_bag

INSERT, UPDATE, DELETE = b"IUD"


def bag_codes(merged: Merged) -> KeyCodes:
    """Number the distinct rows of all changes.

    Raises:
        ApplyError: an update or delete does not carry the whole old row.
    """
    if np.any((merged.op != INSERT) & (merged.old != OLD_WHOLE)):
        raise ApplyError(
            "a change of a table without a key does not carry the whole old row",
            where=f"table {merged.table}",
            way_out="ALTER TABLE … REPLICA IDENTITY FULL (of a partitioned table: on its partitions too), "
            "or a primary key; then `slotlake backfill`",
        )
    for position in range(len(merged.columns)):
        merged.complete_key(position)
    return codes_of(merged.values, merged.op != INSERT, one_zero=False)


def fold_bag(
    merged: Merged, codes: KeyCodes, lake_counts: Array, *, skip: bool = False
) -> tuple[pa.Table, tuple[int, ...]]:
    """Fold all changes.

    Args:
        lake_counts: int64 per code, how many such rows the lake has; -1 for enough.
        skip: see `spark.fold.conflicts`.

    Returns:
        Per distinct row that goes or comes: ``remove`` and ``add`` (int64; remove first), ``n<i>`` and
        ``xn<i>`` as in a fold by key; and conflicts as `fold_walk.walk_bag` has them.
    """
    remove, add, conflicts = walk_bag(merged.op, codes.new, codes.old, lake_counts, skip=skip)
    changed_codes = np.flatnonzero((remove > 0) | (add > 0))
    arrays: dict[str, pa.Array] = {
        "remove": pa.array(remove[changed_codes]),
        "add": pa.array(add[changed_codes]),
    }
    for position in range(len(merged.columns)):
        arrays.update(merged.take(position, codes.representative[changed_codes]))
    return pa.table(arrays), conflicts
