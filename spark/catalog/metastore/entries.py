"""An entry of AWS Glue or of a Hive Metastore: what these catalogs have of a table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from slotlake.spark.tables.metadata import Metadata


class RefusedError(Exception):
    """An entry was not what it had to be, as the server says."""


@dataclass(frozen=True)
class Entry:
    """A table's entry.

    Attributes:
        location: of its metadata file.
        raw: the entry as the catalog's client has it.
    """

    location: str
    raw: Any


# A table's columns as entries of AWS Glue and of the Hive Metastore have them: for people and search.
#
# Readers of Iceberg take columns from the metadata file.  The entries' types are those that Iceberg itself
# writes (HiveSchemaUtil.java, IcebergToGlueConverter.java), without what only Hive 3 has.

_TYPES: Final = {
    "long": "bigint",
    "time": "string",
    "uuid": "string",
    "timestamptz": "timestamp",
    "timestamp_ns": "timestamp",
    "timestamptz_ns": "timestamp",
}
_FIXED: Final = re.compile(r"fixed\[\d+\]")


def columns(metadata: Metadata) -> list[tuple[str, str, str]]:
    """Name, type and comment of a table's columns, in order."""
    schema = next(s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"])
    return [(field["name"], type_name(field["type"]), field.get("doc", "")) for field in schema["fields"]]


def type_name(of: Any) -> str:
    """A type of Iceberg's schema by Hive's name.

    Args:
        of: as the metadata has it: a word, or a mapping.
    """
    if isinstance(of, str):
        return "binary" if _FIXED.fullmatch(of) else _TYPES.get(of, of).replace(" ", "")
    if of["type"] == "list":
        return f"array<{type_name(of['element'])}>"
    if of["type"] == "map":
        return f"map<{type_name(of['key'])},{type_name(of['value'])}>"
    return "struct<" + ",".join(f"{each['name']}:{type_name(each['type'])}" for each in of["fields"]) + ">"
