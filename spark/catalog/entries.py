"""An entry of AWS Glue or of a Hive Metastore: what these catalogs have of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
