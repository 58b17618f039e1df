"""How a table's rows are spread over its files: what `partition_by` and `sort_by` of a pipeline file say.

The words are Iceberg's (table specification, "Partition Transforms"): a plain column, or ``year``, ``month``,
``day``, ``hour``, ``bucket``, ``truncate`` of one.  Here is what they mean and of which types they can be;
nothing of Iceberg's files or of Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

IDENTITY: Final = "identity"
TIMES: Final = ("year", "month", "day", "hour")
NUMBER_MAX: Final = 1_000_000
_NUMBERED: Final = ("bucket", "truncate")
_COLUMN = r'("(?:[^"]|"")+"|[^"()]+?)'
_OF_TIME = re.compile(rf"(?i)({'|'.join(TIMES)})s?\(\s*{_COLUMN}\s*\)")
_OF_NUMBER = re.compile(rf"(?i)({'|'.join(_NUMBERED)})\(\s*([0-9]+)\s*,\s*{_COLUMN}\s*\)")
_PLAIN = re.compile(_COLUMN)
_ORDER = re.compile(r"(?is)(.+?)(?:\s+(asc|desc))?(?:\s+nulls\s+(first|last))?")
_HOW = (
    "write a column, or year(column), month(column), day(column), hour(column), bucket(16, column), "
    "truncate(4, column)"
)
# By the first word of the type in Spark SQL.
_NUMBERS = ("int", "bigint", "decimal")
_MOMENTS = ("timestamp", "timestamp_ntz")
_TYPES: Final = {
    IDENTITY: (*_NUMBERS, *_MOMENTS, "boolean", "date", "string", "binary"),
    "year": ("date", *_MOMENTS),
    "month": ("date", *_MOMENTS),
    "day": ("date", *_MOMENTS),
    "hour": _MOMENTS,
    "bucket": (*_NUMBERS, *_MOMENTS, "date", "string", "binary"),
    "truncate": (*_NUMBERS, "string", "binary"),
}
_SORTED: Final = (*_TYPES[IDENTITY], "float", "double")


@dataclass(frozen=True)
class Term:
    """A column, or a transform of one.

    Attributes:
        column: the source's name of it; in `spark.tables.layout` the lake's.
        transform: as Iceberg's metadata writes it: ``identity``, ``day``, ``bucket[16]``.
    """

    column: str
    transform: str = IDENTITY

    @property
    def kind(self) -> str:
        """The transform without its number."""
        return self.transform.partition("[")[0]

    @property
    def number(self) -> int:
        """The number of buckets, or the width; 0 of a transform that has none."""
        return int(self.transform.partition("[")[2].rstrip("]") or 0)

    def __str__(self) -> str:
        """As the pipeline file has it."""
        if self.transform == IDENTITY:
            return self.column
        number = f"{self.number}, " if self.number else ""
        return f"{self.kind}({number}{self.column})"


@dataclass(frozen=True)
class SortTerm(Term):
    """One of the values that the rows of a file are sorted by."""

    descending: bool = False
    nulls_last: bool = False

    def __str__(self) -> str:
        """As the pipeline file has it."""
        nulls = (
            "" if self.nulls_last == self.descending else f" nulls {'last' if self.nulls_last else 'first'}"
        )
        return f"{super().__str__()}{' desc' if self.descending else ''}{nulls}"


@dataclass(frozen=True)
class Layout:
    """By what a table is partitioned, and by what its files are sorted."""

    partition: tuple[Term, ...] = ()
    sort: tuple[SortTerm, ...] = ()

    def __bool__(self) -> bool:
        """Return whether there is anything to be done for it."""
        return bool(self.partition or self.sort)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it names."""
        return tuple(dict.fromkeys(term.column for term in (*self.partition, *self.sort)))

    def __str__(self) -> str:
        """For messages."""
        parts = [
            f"{key} {', '.join(map(str, terms))}"
            for key, terms in (("partitioned by", self.partition), ("sorted by", self.sort))
            if terms
        ]
        return " and ".join(parts) or "neither partitioned nor sorted"


def parse_partition(texts: Sequence[str]) -> tuple[Term, ...]:
    """Read `partition_by`.

    Raises:
        ValueError: a text is no column or transform, or two say the same.
    """
    terms = tuple(map(_term, texts))
    _refuse_twice(terms)
    for column in dict.fromkeys(term.column for term in terms):
        times = [term.kind for term in terms if term.column == column and term.kind in TIMES]
        if len(times) > 1:
            raise ValueError(
                f"{times[0]} and {times[1]} of {column} are two times of one column; write the finer one only"
            )
    return terms


def parse_sort(texts: Sequence[str]) -> tuple[SortTerm, ...]:
    """Read `sort_by`.

    Raises:
        ValueError: a text is no column or transform with an order, or two are of the same.
    """
    terms = tuple(map(_sort_term, texts))
    _refuse_twice([Term(term.column, term.transform) for term in terms])
    return terms


def _refuse_twice(terms: Sequence[Term]) -> None:
    for i, term in enumerate(terms):
        if term in terms[:i]:
            raise ValueError(f"{term} is there twice")


def _sort_term(text: str) -> SortTerm:
    match = _ORDER.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no column; {_HOW}, each with asc or desc, nulls first or nulls last")
    term, descending = _term(match[1]), (match[2] or "").lower() == "desc"
    nulls_last = match[3].lower() == "last" if match[3] else descending
    return SortTerm(term.column, term.transform, descending, nulls_last)


def _term(text: str) -> Term:
    text = text.strip()
    if match := _OF_TIME.fullmatch(text):
        return Term(_unquoted(match[2]), match[1].lower())
    if match := _OF_NUMBER.fullmatch(text):
        number = int(match[2])
        if not 1 <= number <= NUMBER_MAX:
            raise ValueError(f"{text}: the number must be between 1 and {NUMBER_MAX:,}")
        return Term(_unquoted(match[3]), f"{match[1].lower()}[{number}]")
    if match := _PLAIN.fullmatch(text):
        return Term(_unquoted(match[1]))
    raise ValueError(f"{text!r} is no column or transform; {_HOW}")


def _unquoted(column: str) -> str:
    return column[1:-1].replace('""', '"') if column.startswith('"') else column.strip()


def types_of(term: Term) -> tuple[str, ...]:
    """The types, by their first word in Spark SQL, that a column must have one of."""
    plain_sort = isinstance(term, SortTerm) and term.transform == IDENTITY
    return _SORTED if plain_sort else _TYPES[term.kind]


def suits(term: Term, spark_type: str) -> bool:
    """Return whether a term can be of a column.

    Args:
        spark_type: the column's type as Spark SQL writes it.
    """
    return re.split(r"[(<]", spark_type.lower())[0] in types_of(term)


def renamed(layout: Layout, names: dict[str, str], first: Iterable[Term] = ()) -> Layout:
    """Return a layout with other names of its columns.

    Args:
        names: each column → its other name.
        first: terms that the table is partitioned by before all others.

    Raises:
        KeyError: a column has no other name.
    """
    partition = tuple(replace(term, column=names[term.column]) for term in layout.partition)
    sort = tuple(replace(term, column=names[term.column]) for term in layout.sort)
    return Layout((*first, *partition), sort)
