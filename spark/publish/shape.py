"""Changes what a lake table keeps about its shape, and not one of its rows."""

from __future__ import annotations

from collections.abc import Sequence

from slotlake.spark.catalog.base import load_all
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.lake import LakeSettings
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.schema import SCHEMA_PROPERTY, TableSchema


def write_schemas(lake: LakeSettings, schemas: Sequence[TableSchema]) -> None:
    """Keep other shapes; nothing that readers see changes.

    Raises:
        LakeError: a table is not there, or was changed meanwhile; none was changed.
    """
    with open_catalog(lake) as catalog:
        tables = load_all(catalog, [schema.lake_name(lake.namespace) for schema in schemas])
        catalog.move(
            [
                catalog.prepared(
                    table,
                    catalog_metadata.with_properties(table.metadata, {SCHEMA_PROPERTY: schema.to_json()}),
                )
                for table, schema in zip(tables.values(), schemas, strict=True)
            ]
        )
