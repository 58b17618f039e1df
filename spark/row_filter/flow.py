"""How the parts of a filter are put together: NULL, and which rows a part sees at all.

PostgreSQL's three-valued logic and its order of evaluation (execExprInterp.c).  Invariant: a part is
evaluated for those rows only for which the server would evaluate it, so an error is raised here if, and
only if, one is raised there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from slotlake.spark.row_filter.functions import Work
from slotlake.spark.row_filter.values import Array, Frame, Vector, empty


@dataclass(frozen=True)
class Typed:
    """A compiled part: its kind, how it is evaluated, and the columns it looks at."""

    kind: str
    run: Callable[[Frame], Vector]
    columns: frozenset[str] = frozenset()


def strict(kind: str, work: Work, parts: list[Typed]) -> Typed:
    """Return a function that is NULL when one of its arguments is, and is not called then."""

    def run(frame: Frame) -> Vector:
        vectors = [part.run(frame) for part in parts]
        null = np.logical_or.reduce([vector.null for vector in vectors])
        rows = np.flatnonzero(~null)
        values = empty(kind, frame.size)
        if len(rows):
            values[rows] = work(*(vector.values[rows] for vector in vectors))
        return Vector(values, null)

    return Typed(kind, run, frozenset[str]().union(*(part.columns for part in parts)))


def connected(parts: list[Typed], *, ends_with: bool, all_run: bool = False) -> Typed:
    """Return AND or OR of conditions: the first part with the value ``ends_with`` decides; else NULL wins.

    Args:
        ends_with: the value that decides: False for AND, True for OR.
        all_run: evaluate every part for every row.
    """

    def run(frame: Frame) -> Vector:
        values, null = np.full(frame.size, not ends_with), np.zeros(frame.size, np.bool_)
        for part in parts:
            open_still = np.ones(frame.size, np.bool_) if all_run else values != ends_with
            undecided = np.flatnonzero(open_still)
            vector = part.run(frame.only(open_still))
            decided = ~vector.null & (vector.values == ends_with)
            null[undecided[vector.null]] = True
            values[undecided[decided]] = ends_with
        null &= values != ends_with
        return Vector(values, null)

    return Typed("bool", run, frozenset[str]().union(*(part.columns for part in parts)))


def chosen(conditions: list[Typed], results: list[Typed]) -> Typed:
    """The result of the first condition that is true, else the last result."""
    kind = results[0].kind

    def run(frame: Frame) -> Vector:
        values, null = empty(kind, frame.size), np.ones(frame.size, np.bool_)
        undecided = np.arange(frame.size)
        for number, result in enumerate(results):
            some = _rows(frame, undecided)
            takes = np.ones(len(undecided), np.bool_)
            if number < len(conditions):
                condition = conditions[number].run(some)
                takes = condition.values & ~condition.null
            rows = undecided[takes]
            vector = result.run(_rows(frame, rows))
            values[rows], null[rows] = vector.values, vector.null
            undecided = undecided[~takes]
        return Vector(values, null)

    parts = [*conditions, *results]
    return Typed(kind, run, frozenset[str]().union(*(part.columns for part in parts)))


def _rows(frame: Frame, rows: Array) -> Frame:
    chosen = np.zeros(frame.size, np.bool_)
    chosen[rows] = True
    return frame.only(chosen)


def is_known(part: Typed) -> Callable[[Frame], Vector]:
    return lambda frame: known(~part.run(frame).null)


def known(values: Array) -> Vector:
    return Vector(np.asarray(values, np.bool_), np.zeros(len(values), np.bool_))
