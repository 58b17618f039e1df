"""A pipeline whose tables are made, filled and changed without Spark: for tests of slotlake's own work."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock

import pytest
import yaml
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DecimalType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestamptzType,
)

from slotlake.infra.opened.open_pipeline import OpenPipeline
from slotlake.infra.pipeline import Pipeline
from slotlake.spark.catalog.base import load_one
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.copy.initial import InitialCopy
from slotlake.spark.names import LakeName, copying
from slotlake.spark.publish.place import claim_directory, table_directory
from slotlake.spark.tables.schema import PIPELINE_PROPERTY, SCHEMA_PROPERTY
from tests.conftest import Database

_KINDS: dict[str, PrimitiveType] = {
    "bigint": LongType(),
    "int": IntegerType(),
    "string": StringType(),
    "boolean": BooleanType(),
    "timestamp": TimestamptzType(),
    "decimal(12,2)": DecimalType(12, 2),
}


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are made by pyiceberg; every batch must be one that is staged without Spark."""
    monkeypatch.setenv("SLOTLAKE_DIRECT", "always")
    session = MagicMock(name="session")
    monkeypatch.setattr(OpenPipeline, "session", property(lambda _: session))
    monkeypatch.setattr(InitialCopy, "_create", _create)


def _create(copy: InitialCopy, name: LakeName) -> None:
    """As `InitialCopy._create` does it with CREATE TABLE."""
    location = table_directory(copy._lake, name)
    claim_directory(location, copy._pipeline, reuse=False)
    schema, hidden = copy._tables[name], copying(name)
    definitions = [column.definition for column in schema.columns]
    definitions += [column.exact_definition for column in schema.columns if column.representation.inexact]
    fields = [_field(number, each) for number, each in enumerate(definitions, 1)]
    properties = {SCHEMA_PROPERTY: schema.to_json(), PIPELINE_PROPERTY: copy._pipeline}
    with open_catalog(copy._lake) as catalog:
        place = hidden.namespace, hidden.table
        catalog.iceberg.create_table(place, Schema(*fields), str(location), properties=properties)
        table = load_one(catalog, hidden)
        newest = {**table.metadata, "format-version": 3, "next-row-id": 0}
        catalog.move([catalog.prepared(table, newest)])


def _field(number: int, definition: str) -> NestedField:
    name, _, kind = definition.partition(" ")
    kind = kind.partition(" COMMENT")[0].lower().replace(", ", ",")
    return NestedField(number, name.strip("`"), _KINDS[kind], required=False)


def opened(database: Database, folder: Path, name: str, tables: list[str]) -> Pipeline:
    """A pipeline of these tables, in a SQLite catalog of its own."""
    file = folder / f"{name}.yaml"
    contents = {
        "name": name,
        "source": {
            "dsn": database.server.url(database.name),
            "publications": [name],
            "slot": f"{name}_{database.name}",
        },
        "lake": {
            "catalog": "lake",
            "uri": f"sqlite:///{folder}/{name}.db",
            "warehouse": f"file://{folder}/{name}",
            "namespace": "shop",
        },
        "tables": {f"public.{table}": {} for table in tables},
    }
    file.write_text(yaml.safe_dump(contents))
    file.chmod(0o600)
    return Pipeline.open(file)
