"""Airflow's assets of a pipeline: its own, and one of each table; their events and what the store keeps.

Tables are not known when a DAG file is parsed, and a publication may grow, so all events go through an alias:
Airflow makes the asset of a table with its first event.  Without an event in its alias there is none, so a
batch without changes is no event.

Invariants: a batch that changed a table is an event of the pipeline's asset and, up to `TABLES_MAX` tables,
of each table's; the pipeline's event names the tables that are left out.  No row value is in an event.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from airflow import __version__
from airflow.sdk import Asset, AssetAlias

TABLES_MAX = 100  # with an event of their own, of a batch; ADR 67: an event took Airflow 40 ms
_NAMES_MAX = 100  # in an event
_STATE = "last_batch"
# The store needs the asset among a task's inlets, which Airflow 3.1 and 3.2 would forget without an outlet.
_HAS_STORE = tuple(int(part) for part in __version__.split(".")[:2]) >= (3, 3)
_log = logging.getLogger(__name__)


def pipeline_asset(pipeline: str) -> Asset:
    """Return the asset of a pipeline: each batch with changes is an event of it."""
    return Asset(name=f"slotlake_{pipeline}", uri=f"slotlake://{pipeline}")


def table_asset(pipeline: str, table: str) -> Asset:
    """Return the asset of a table: each batch that changed the table is an event of it.

    Args:
        table: as PostgreSQL writes it, with its schema: ``public.orders``, ``public."Odd Name"``.
    """
    path = quote(table, safe=".")
    return Asset(name=f"slotlake_{pipeline}.{path}", uri=f"slotlake://{pipeline}/{path}")


def outlets(pipeline: str) -> dict[str, list[Any]]:
    """Return the arguments ``inlets`` and ``outlets`` of a task that calls `emit`."""
    inlets = [pipeline_asset(pipeline)] if _HAS_STORE else []
    return {"inlets": inlets, "outlets": [_batches(pipeline), _tables(pipeline)]}


def emit(pipeline: str, brought: Mapping[str, Any], outlet_events: Any, store: Any) -> None:
    """Make the events of what batches brought; none if no table was changed.

    Args:
        brought: a `slotlake.infra.airflow.brought.Brought` as a mapping.
        outlet_events: Airflow's, of a task with `outlets`.
        store: Airflow's ``asset_state_store``; None before Airflow 3.3.
    """
    by_size = sorted(brought["tables"].items(), key=lambda table: (-table[1], table[0]))
    if not by_size:
        return
    of_batch = {key: value for key, value in brought.items() if key != "tables"}
    left_out = [table for table, _ in by_size[TABLES_MAX:]]
    extra = {
        **of_batch,
        "changes": sum(brought["tables"].values()),
        "tables": len(by_size),
        **({"left_out": left_out[:_NAMES_MAX], "left_out_tables": len(left_out)} if left_out else {}),
    }
    asset = pipeline_asset(pipeline)
    outlet_events[_batches(pipeline)].add(asset, extra=extra)
    for table, changes in by_size[:TABLES_MAX]:
        own = {**of_batch, "table": table, "changes": changes}
        outlet_events[_tables(pipeline)].add(table_asset(pipeline, table), extra=own)
    if store is not None:
        _keep(store, asset, extra)


def _keep(store: Any, asset: Asset, extra: dict[str, Any]) -> None:
    """Keep the newest batch in the asset's store; the events do not depend on it."""
    from airflow.sdk.exceptions import AirflowRuntimeError

    try:
        store[asset].set(_STATE, extra)
    except AirflowRuntimeError as error:
        _log.warning("the asset's state was not stored: %s", error)


def _batches(pipeline: str) -> AssetAlias:
    return AssetAlias(f"slotlake_{pipeline}_batches")


def _tables(pipeline: str) -> AssetAlias:
    return AssetAlias(f"slotlake_{pipeline}_tables")
