"""A plugin of dbt-duckdb: all tables of a lake as views of the schema `lake`, all at one point.

It takes the newest namespace `<namespace>__at_<point>`, which `lake.views: true` makes. Nothing moves there,
so all models of a run see one point of the source.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dbt.adapters.duckdb.plugins import BasePlugin
from pyiceberg.catalog.sql import SqlCatalog


class Plugin(BasePlugin):  # type: ignore[misc]
    """Makes the views when dbt opens its connection."""

    def initialize(self, config: Mapping[str, str]) -> None:
        self.namespace = config["namespace"]
        self.catalog = SqlCatalog("lake", uri=config["uri"], warehouse=config["warehouse"])

    def configure_connection(self, connection: Any) -> None:
        for name in ("avro", "iceberg"):
            package = importlib.import_module(f"duckdb_extension_{name}")
            (file,) = Path(str(package.__file__)).parent.rglob(f"{name}.duckdb_extension")
            connection.execute(f"LOAD '{file}'")
        connection.execute("SET enable_external_file_cache = false")  # DuckDB 1.5.5: docs/reading.md
        spaces = [
            space for (space,) in self.catalog.list_namespaces() if space.startswith(f"{self.namespace}__at_")
        ]
        # With a catalog other than SQL the property is set when all views are there.
        points = [
            space for space in spaces if self.catalog.load_namespace_properties(space).get("slotlake.point")
        ]
        if not points:
            raise RuntimeError("the lake has no pinned views: set lake.views: true, then run slotlake sync")
        point = max(points)
        connection.execute("CREATE SCHEMA IF NOT EXISTS lake")
        for _, table in self.catalog.list_tables(point):
            location = self.catalog.load_table((point, table)).metadata_location.removeprefix("file://")
            connection.execute(
                f"CREATE OR REPLACE VIEW lake.\"{table}\" AS SELECT * FROM iceberg_scan('{location}')"
            )
        lsn = self.catalog.load_namespace_properties(point)["slotlake.point"]
        connection.execute(f"CREATE OR REPLACE VIEW lake.point AS SELECT '{lsn}' AS lsn")
