"""What of a batch is folded together: one stretch of changes that name rows by the same columns.

A batch is one stretch, unless the table's key or replica identity changed in it.  Changes before the
last TRUNCATE do not matter at all and are left out here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from slotlake.spark.fold.columns import Part, naming

TRUNCATE = ord("T")


@dataclass(frozen=True)
class Segment:
    """Changes to fold together, TRUNCATE no longer among them.

    Attributes:
        parts: relation versions with their rows; the newest last, also if it has none.
        truncated: the table is emptied first.
        changes: changes in the batch that this segment stands for, those left out included.
    """

    parts: tuple[Part, ...]
    truncated: bool
    changes: int


def segments(changes: Sequence[Part]) -> list[Segment]:
    """Cut a table's changes where they begin to name their row by something else."""
    if not changes:
        return []
    changes = _by_last_change(changes)
    rows_total = sum(rows.num_rows for _, rows in changes)
    truncated_at = max(last_truncate(rows) for _, rows in changes)
    parts = [(relation, between(rows, truncated_at + 1, None)) for relation, rows in changes]
    starts = _segment_starts(parts, [frozenset(naming(relation)) for relation, _ in parts])
    part_groups = [tuple(parts)]
    if len(starts) > 1:
        part_groups = [
            _parts_between(parts, low, end) for low, end in zip(starts, [*starts[1:], None], strict=True)
        ]
    left_out = rows_total - sum(rows.num_rows for _, rows in parts)
    return [
        Segment(group, truncated_at >= 0 and not number, _rows(group) + (0 if number else left_out))
        for number, group in enumerate(part_groups)
    ]


def segments_with_truncates(changes: Sequence[Part]) -> list[tuple[Part, ...]]:
    """Cut a table's changes likewise, with all TRUNCATEs left among them."""
    if not changes:
        return []
    changes = _by_last_change(changes)
    starts = _segment_starts(changes, [frozenset(naming(relation)) for relation, _ in changes])
    if len(starts) == 1:
        return [tuple(changes)]
    return [_parts_between(changes, low, end) for low, end in zip(starts, [*starts[1:], None], strict=True)]


def _rows(parts: Sequence[Part]) -> int:
    return sum(rows.num_rows for _, rows in parts)


def _seq(rows: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.asarray(rows.column("seq").to_numpy())


def _by_last_change(changes: Sequence[Part]) -> list[Part]:
    """Versions by their last change; one without rows, as a filter leaves it, follows those before."""
    last: list[int] = []
    for _, rows in changes:
        last.append(int(_seq(rows)[-1]) if rows.num_rows else max(last, default=-1))
    return [changes[i] for i in sorted(range(len(changes)), key=last.__getitem__)]


def last_truncate(rows: pa.Table) -> int:
    """Return the ``seq`` of the last TRUNCATE among changes; -1 if there is none."""
    truncates = np.flatnonzero(rows.column("op").to_numpy() == TRUNCATE)
    return int(_seq(rows)[truncates[-1]]) if len(truncates) else -1


def between(rows: pa.Table, low: int, high: int | None) -> pa.Table:
    """Return the changes from one ``seq`` on and before another one.

    Args:
        rows: changes in ``seq`` order.
        low: the ``seq`` of the first one.
        high: the ``seq`` of the one after the last; None for all.
    """
    seq = _seq(rows)
    start = int(np.searchsorted(seq, low))
    stop = len(seq) if high is None else int(np.searchsorted(seq, high))
    return rows if stop - start == len(seq) else rows.slice(start, stop - start)


def _segment_starts(parts: Sequence[Part], keys: Sequence[frozenset[tuple[Any, ...]]]) -> list[int]:
    """The ``seq`` at which each stretch begins."""
    if len(set(keys)) == 1:
        return [0]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    seq = np.concatenate([_seq(rows) for _, rows in parts])
    counted = zip(keys, (rows.num_rows for _, rows in parts), strict=True)
    key_of = np.concatenate([np.full(count, numbers[key]) for key, count in counted])
    order = np.argsort(seq)
    changed = np.flatnonzero(np.diff(key_of[order])) + 1
    return [0, *(int(seq[order][at]) for at in changed)]


def _parts_between(parts: Sequence[Part], low: int, high: int | None) -> tuple[Part, ...]:
    inside = ((relation, between(rows, low, high)) for relation, rows in parts)
    return tuple(part for part in inside if part[1].num_rows)
