"""Charts as SVG paths: the numbers of a period, scaled to a picture; the template writes the elements.

A chart is 600 wide and 120 high. Each series is one path, so a picture of 120 parts has a few kilobytes. All
that comes out is numbers: nothing in a path needs to be escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slotlake.infra.health.model import Bin
from slotlake.infra.health.words import rows_rate, size, spent
from slotlake.infra.state.batch_notes import STEPS

WIDTH, HEIGHT = 600.0, 120.0


@dataclass(frozen=True)
class Path:
    """One series; ``name``: its class in the style sheet, and its word in the legend."""

    name: str
    data: str


@dataclass(frozen=True)
class Chart:
    """One picture.

    Attributes:
        title: what it shows.
        paths: its series; empty if nothing is known.
        highest, middle: the numbers at the top and at half the height, in words.
        newest: the last number, in words.
        empty: said where nothing is known.
        legend: whether the names of the series are shown.
    """

    title: str
    paths: tuple[Path, ...]
    highest: str = ""
    middle: str = ""
    newest: str = ""
    legend: bool = False
    empty: str = "no batch in this time"


@dataclass(frozen=True)
class Period:
    """The charts of an hour, a day or a week.

    Attributes:
        start, end: in seconds since 1970.
        bar: how many seconds a bar is of.
    """

    name: str
    start: float
    end: float
    bar: float
    charts: tuple[Chart, ...]


def period_of(name: str, bins: Sequence[Bin]) -> Period:
    """Return the charts of a period.

    Args:
        name: hour, day or week.
        bins: its equal parts, the oldest first; at least two.
    """
    width = bins[1].time - bins[0].time
    charts = (
        _bars("longest lag, oldest commit to queryable", "lag", [each.lag for each in bins], spent),
        _bars(
            "rows in a second",
            "rows",
            [each.changes / width if each.changes else None for each in bins],
            rows_rate,
        ),
        _split(bins),
        _bars(
            "WAL that the slot retains",
            "retained",
            [None if each.retained is None else float(each.retained) for each in bins],
            lambda count: size(round(count)),
            empty="nobody looked in this time",
        ),
    )
    return Period(name, bins[0].time, bins[-1].time + width, width, charts)


def _bars(
    title: str,
    name: str,
    values: Sequence[float | None],
    words: Callable[[float], str],
    empty: str = Chart.empty,
) -> Chart:
    known = [value for value in values if value is not None]
    if not known:
        return Chart(title, (), empty=empty)
    top = max(known) or 1.0
    data = _path([(index, 0.0, value / top) for index, value in enumerate(values) if value], len(values))
    return Chart(title, (Path(name, data),), words(max(known)), words(max(known) / 2), words(known[-1]))


def _split(bins: Sequence[Bin]) -> Chart:
    """The seconds of a batch by step, on average; without the wait, which is most of the time and no work."""
    title = "time of a batch, by step"
    worked = [name for name in STEPS if name != "wait"]
    sums = [sum(each.steps.get(name, 0.0) for name in worked) for each in bins]
    top = max(sums, default=0.0)
    if not top:
        return Chart(title, ())
    floors = [0.0] * len(bins)
    paths = []
    for name in worked:
        parts = [each.steps.get(name, 0.0) / top for each in bins]
        bars = [(i, floors[i], floors[i] + part) for i, part in enumerate(parts) if part]
        paths.append(Path(name, _path(bars, len(bins))))
        floors = [floor + part for floor, part in zip(floors, parts, strict=True)]
    newest = next(total for total in reversed(sums) if total)
    return Chart(title, tuple(paths), spent(top), spent(top / 2), spent(newest), legend=True)


def _path(bars: Sequence[tuple[int, float, float]], count: int) -> str:
    """Return bars (number, lower and upper end between 0 and 1) as one path."""
    width = WIDTH / count
    return "".join(
        f"M{index * width:.1f} {HEIGHT * (1 - low):.1f}V{HEIGHT * (1 - high):.1f}h{width * 0.9:.1f}"
        f"V{HEIGHT * (1 - low):.1f}z"
        for index, low, high in bars
    )


def split_of(steps: dict[str, float]) -> list[tuple[str, float, float]]:
    """Return the parts of one batch's time as (step, start, width), of 100."""
    total = sum(steps.values()) or 1.0
    parts, start = [], 0.0
    for name in STEPS:
        width = 100 * steps.get(name, 0.0) / total
        parts.append((name, round(start, 2), round(width, 2)))
        start += width
    return parts
