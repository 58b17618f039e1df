"""What a benchmark yields: our runs beside the peer's, taken in turns, and the ratio between them.

Invariant: run i of ours and run i of the peer happened one after the other, so that what else the
machine does meets both; the ratio is the median of the pairs' ratios.  A ratio always reads "as fast as
the peer", more is better, whether the figure is a rate or a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Literal

PAIRS = 3


@dataclass(frozen=True)
class Figure:
    """One line of the table.

    Attributes:
        what: what was done, a few words.
        peer: what it is held against: a program, a way of doing the same, or a limit.
        unit: of the values: a rate ("changes/s"), or "s".
        ours, theirs: one value per pair; a limit stands once for each.
        better: whether more is better (a rate) or less (a time).
        wanted: the least ratio asked for; None when the figure is only reported.
        aim: the ratio that is asked for next.
        parts: medians of what our value is made of, in seconds, or of other ways of taking it.
        note: what the reader must know to read it right.
    """

    what: str
    peer: str
    unit: str
    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    better: Literal["more", "less"] = "more"
    wanted: float | None = None
    aim: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    note: str = ""

    @property
    def ratios(self) -> tuple[float, ...]:
        """As fast as the peer, per pair."""
        pairs = zip(self.ours, self.theirs, strict=True)
        return tuple(mine / other if self.better == "more" else other / mine for mine, other in pairs)

    @property
    def ratio(self) -> float:
        """The median of the pairs' ratios."""
        return median(self.ratios)

    @property
    def reached(self) -> bool | None:
        """Is it what was asked for? None when nothing was."""
        return None if self.wanted is None else self.ratio >= self.wanted

    def as_dict(self) -> dict[str, Any]:
        """For JSON: all values, and what follows from them."""
        return {
            **asdict(self),
            "ours_median": median(self.ours),
            "theirs_median": median(self.theirs),
            "ratios": self.ratios,
            "ratio": self.ratio,
            "reached": self.reached,
        }


def in_turns(
    ours: Callable[[], float], theirs: Callable[[], float], pairs: int = PAIRS
) -> list[tuple[float, float]]:
    """Take a value of each, pair by pair.

    Args:
        ours, theirs: each takes one value.
        pairs: how many of each.
    """
    return [(ours(), theirs()) for _ in range(pairs)]


def rates(amount: float, seconds: list[tuple[float, float]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Pairs of times as pairs of rates, ours and theirs."""
    return tuple(amount / mine for mine, _ in seconds), tuple(amount / other for _, other in seconds)
