"""The part of `status` about a copy that is under way, or that was interrupted and keeps its slot."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from slotlake.infra.reports import TableStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def interrupted_copy_warnings(copy: Mapping[str, Any] | None, retained_bytes: int | None) -> list[str]:
    """Return a warning if an `init` was interrupted and its slot remains.

    Args:
        copy: what `infra.copy.unfinished` returns.
        retained_bytes: WAL that the pipeline's slot retains, None without a slot.
    """
    if copy is None or copy["slot"] is None or copy["process"] is not None:
        return []
    retained = "" if retained_bytes is None else f", which retains {retained_bytes / 1e6:,.1f} MB of WAL"
    what = f"an initial copy is unfinished and has the slot {copy['slot']}{retained}"
    return [f"{what}: slotlake init copies the rest, slotlake drop gives the copy up"]


def state(copy: Mapping[str, Any] | None) -> str | None:
    """Return the pipeline's state while its first copy is not published; None in all other cases."""
    if copy is None or copy["slot"] is None:
        return None
    return "initial copy unfinished" if copy["process"] is None else "copying"


def with_copies(
    namespace: str, visible: Sequence[TableStatus], copy: Mapping[str, Any] | None
) -> list[TableStatus]:
    """Add the progress of a copy to the status of all tables.

    Args:
        visible: the tables that readers see.
        copy: what `infra.copy.unfinished` returns.
    """
    copying = {entry.table: entry for entry in _copying_tables(namespace, copy)}
    tables = [
        replace(entry, copied=copying[entry.table].copied) if entry.table in copying else entry
        for entry in visible
    ]
    names = {entry.table for entry in visible}
    return tables + [entry for name, entry in copying.items() if name not in names]


def _copying_tables(namespace: str, copy: Mapping[str, Any] | None) -> list[TableStatus]:
    from slotlake.spark.names import lake_table, parse_postgres_name

    entries = []
    for table in () if copy is None else copy["tables"]:
        lake_name = str(lake_table(namespace, *parse_postgres_name(table["table"])))
        progress = {key: value for key, value in table.items() if key not in {"table", "state"}}
        entries.append(TableStatus(table["table"], lake_name, table["state"], None, [], copied=progress))
    return entries
