"""Reads those rows of a table at a read point whose key some choice takes, as PostgreSQL's text.

The texts of the key's columns decide.  Of each file these columns are read first, and the others only if it
has a chosen row; of a range of whole numbers, only files are looked at whose bounds say that they may have
some.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, GreaterThanOrEqual, LessThan

from slotlake.decoder.compiled.arrays import arrow
from slotlake.spark.read.columns import scan_columns_of, text_of
from slotlake.spark.read.scan import Probe

if TYPE_CHECKING:
    from slotlake.spark.read.point import ReadPoint
    from slotlake.spark.tables.schema import LakeColumn

_at_least, _below = cast("Any", GreaterThanOrEqual), cast("Any", LessThan)  # wrong types of arguments
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Range:
    """Whole numbers from ``low`` on and below ``high``; None: without that end."""

    low: int | None
    high: int | None


class RowChoice(Protocol):
    """Which rows are meant."""

    @property
    def key(self) -> Sequence[str]:
        """The columns whose texts decide."""

    @property
    def range(self) -> Range | None:
        """What the first of these columns is within, in all chosen rows; None if that is not known."""

    def mask(self, key: Sequence[pa.Array]) -> Mask:
        """Return which rows are chosen, by the texts of the key's columns."""


def chosen_text_batches(
    point: ReadPoint, choice: RowChoice, table: str, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the chosen rows, in Arrow string columns named by the source's columns.

    Args:
        columns: source names; those of the key are among them.

    Raises:
        KeyError: the lake has no such table, or column.
        LakeError: a file cannot be read.
    """
    chosen, typed = point.typed_batches(
        table, columns, lambda ids, present: (_files(choice, present), _probe(choice, ids, present))
    )
    for batch in typed:
        texts = _Texts(batch, chosen)
        rows = arrow(choice.mask([texts.of(name) for name in choice.key]))
        some = _Texts(batch.filter(rows), chosen)
        if some.batch.num_rows:
            yield pa.RecordBatch.from_arrays([some.of(name) for name in columns], names=list(columns))


def filtered(batches: Iterator[pa.RecordBatch] | None, choice: RowChoice) -> Iterator[pa.RecordBatch] | None:
    """Return the chosen rows of batches of texts; None for None."""
    if batches is None:
        return None
    return (
        batch.filter(arrow(choice.mask([batch.column(name) for name in choice.key]))) for batch in batches
    )


@dataclass(frozen=True)
class _Texts:
    """The texts of a batch of typed columns, of which some are followed by their exact texts."""

    batch: pa.RecordBatch
    chosen: Sequence[tuple[LakeColumn, bool]]

    def of(self, name: str) -> pa.Array:
        place = 0
        for column, exact in self.chosen:
            if column.name == name:
                return text_of(
                    column, self.batch.column(place), self.batch.column(place + 1) if exact else None
                )
            place += 1 + exact
        raise KeyError(name)


def _probe(choice: RowChoice, ids: Mapping[str, int], columns: Sequence[LakeColumn]) -> Probe:
    by_name = {column.name: column for column in columns}
    key, scan_columns = scan_columns_of(ids, [by_name[name] for name in choice.key])

    def is_wanted(batch: pa.RecordBatch) -> bool:
        texts = _Texts(batch, key)
        return bool(choice.mask([texts.of(name) for name in choice.key]).any())

    return Probe(scan_columns, is_wanted)


def _files(choice: RowChoice, columns: Sequence[LakeColumn]) -> BooleanExpression:
    """What holds of the bounds of files that may have chosen rows."""
    first = next((column for column in columns if column.name == choice.key[0]), None)
    bounds = choice.range
    if first is None or bounds is None or not pa.types.is_integer(first.representation.arrow):
        return AlwaysTrue()
    ends: list[BooleanExpression] = []
    if bounds.low is not None:
        ends.append(_at_least(first.lake_name, bounds.low))
    if bounds.high is not None:
        ends.append(_below(first.lake_name, bounds.high))
    return ends[0] if len(ends) == 1 else And(*ends) if ends else AlwaysTrue()
