"""What `status` tells of a copy that is under way, or that was cut off and holds its slot."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from slotlake.infra.copy.unfinished import unfinished
from slotlake.infra.reports import TableStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slotlake.infra.pipeline_open import OpenPipeline


def copy_under_way(
    pipeline: OpenPipeline, retained_bytes: int | None, warnings: list[str]
) -> dict[str, Any] | None:
    """What `infra.copy.unfinished` finds; a warning if an `init` was cut off.

    Args:
        retained_bytes: WAL that the pipeline's slot holds back, None without a slot.
    """
    copy = unfinished(pipeline)
    if copy is not None and copy["slot"] is not None and copy["process"] is None:
        held = "" if retained_bytes is None else f", which holds back {retained_bytes / 1e6:,.1f} MB of WAL"
        warnings.append(
            f"an initial copy is unfinished, and has the slot {copy['slot']}{held}: slotlake init goes on "
            "with what is left, slotlake drop ends it"
        )
    return copy


def state(copy: Mapping[str, Any] | None) -> str | None:
    """The pipeline's state while its first copy is not published; None for any other."""
    if copy is None or copy["slot"] is None:
        return None
    return "initial copy unfinished" if copy["process"] is None else "copying"


def with_copied(
    pipeline: OpenPipeline, there: Sequence[TableStatus], copy: Mapping[str, Any] | None
) -> list[TableStatus]:
    """All tables: those that readers see, with what is copied of them again, and those that are copied."""
    copied = {entry.table: entry for entry in _tables(pipeline, copy)}
    known = [replace(e, copied=copied[e.table].copied) if e.table in copied else e for e in there]
    names = {entry.table for entry in there}
    return known + [entry for name, entry in copied.items() if name not in names]


def _tables(pipeline: OpenPipeline, copy: Mapping[str, Any] | None) -> list[TableStatus]:
    from slotlake.spark.names import lake_table, parse_postgres_name

    entries = []
    for told in () if copy is None else copy["tables"]:
        lake_name = str(lake_table(pipeline.lake.namespace, *parse_postgres_name(told["table"])))
        rest = {key: value for key, value in told.items() if key not in ("table", "state")}
        entries.append(TableStatus(told["table"], lake_name, told["state"], None, [], copied=rest))
    return entries
