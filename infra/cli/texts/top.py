"""The screen of `slotlake top`: a row per pipeline, and of each its alarms, last batches and odd tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from slotlake.infra.health.model import BINS
from slotlake.infra.health.words import batch_end, count, moment, rows_differ, rows_rate, size, spent

if TYPE_CHECKING:
    from slotlake.infra.health.model import Bin, Health

_STYLES = {"broken": "red", "warning": "yellow", "unknown": "dim", "well": "green"}
_BLOCKS = " ▁▂▃▄▅▆▇█"
_BATCHES, _TABLES, _ALARMS = 8, 10, 20
_COLUMNS = ("pipeline", "state", "lag", "rows", "retained WAL", "verified", "last batch", "alarms")
_WIDE, _NARROW_COLUMNS = 100, ("pipeline", "state", "lag", "retained WAL", "alarms")


def screen(pipelines: Sequence[Health], bins: dict[str, Sequence[Bin]], width: int) -> RenderableType:
    """Return what the terminal shows.

    Args:
        pipelines: in any order; the worst is shown first.
        bins: pipeline → its last hour.
        width: of the terminal, in characters; the table has the columns that fit.
    """
    ordered = sorted(pipelines, key=lambda health: health.order)
    parts: list[RenderableType] = [fleet_table(ordered, width)]
    for health in ordered:
        parts += _details(health, bins.get(health.name, ()))
    return Group(*parts)


def fleet_table(pipelines: Sequence[Health], width: int) -> Table:
    """Return the table with a row for each pipeline, and as many columns as are readable."""
    shown = _COLUMNS if width >= _WIDE else _NARROW_COLUMNS
    grid = Table(expand=True)
    for name in shown:
        grid.add_column(name, justify="right" if name in {"lag", "rows", "retained WAL"} else "left")
    for health in pipelines:
        status, batch = health.status, health.last_batch
        cells: dict[str, str | Text] = {
            "pipeline": escape(health.name),
            "state": Text(health.state, style=_STYLES[health.level]),
            "lag": f"{spent(status.get('lag_seconds'))}\n{size(status.get('lag_bytes'))}",
            "rows": rows_rate(health.rate),
            "retained WAL": _retained(health),
            "verified": _verified(health),
            "last batch": "–"
            if batch is None
            else f"{spent(max(0.0, health.now - batch['time']))} ago, lag {spent(batch['lag'])}",
            "alarms": str(len(health.alarms)) if health.alarms else "none",
        }
        grid.add_row(*(cells[name] for name in shown))
    return grid


def _retained(health: Health) -> str:
    seconds = health.status.get("seconds_to_invalidation")
    lost = "" if seconds is None else f"\nlost in {spent(seconds)}"
    return size(health.status.get("retained_wal_bytes")) + lost


def _verified(health: Health) -> Text:
    verified = health.verified
    if verified is None:
        return Text("never", style="dim")
    age = spent(max(0.0, health.now - verified["time"]))
    if verified["equal"]:
        return Text(f"equal at {verified['lsn']}, {age} ago", style="green")
    return Text(f"{rows_differ(verified['differences'])}, {age} ago", style="red")


def _details(health: Health, bins: Sequence[Bin]) -> list[RenderableType]:
    parts: list[RenderableType] = [Text(f"\n{health.name}", style="bold")]
    parts += [
        Text(f"  {each['what']}: {each['way_out']}", style="yellow") for each in health.alarms[:_ALARMS]
    ]
    if len(health.alarms) > _ALARMS:
        parts.append(Text(f"  and {len(health.alarms) - _ALARMS} more alarms", style="yellow"))
    if bins:
        parts.append(Text(f"  lag  {_line([each.lag for each in bins])}  the last hour", style="cyan"))
        parts.append(Text(f"  rows {_line([float(each.changes) for each in bins])}", style="green"))
    for batch in health.batches[: -_BATCHES - 1 : -1]:
        steps = ", ".join(f"{name} {spent(seconds)}" for name, seconds in batch["seconds"].items())
        line = (
            f"  {moment(batch['time'])}  {batch_end(batch['batch']):<16} {count(batch['changes']):>10} rows"
        )
        parts.append(Text(f"{line}  lag {spent(batch['lag'])}  ({steps})"))
    odd = [table for table in health.status.get("tables", ()) if table["state"] != "ready"]
    parts += [Text(f"  {table['table']}: {table['state']}", style="yellow") for table in odd[:_TABLES]]
    return parts


def _line(values: Sequence[float | None]) -> str:
    """Return the values as blocks of eight heights; a space where there is none."""
    half = [
        max((v for v in values[i : i + 2] if v), default=0.0) for i in range(0, min(len(values), BINS), 2)
    ]
    top = max(half, default=0.0) or 1.0
    return "".join(_BLOCKS[0 if not value else 1 + int(7 * value / top)] for value in half)
