"""The part of the pipeline file about types, and the mistakes in it that show without the source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, field_validator

Lossy = Literal["text", "quarantine", "fail"]
Representation = Literal["text", "list", "struct"]


class TypesSection(BaseModel):
    """The representation of types for which Iceberg has no scalar type (docs/types.md)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    arrays: Literal["text", "list"] = "text"
    ranges: Literal["text", "struct"] = "text"
    composites: Literal["text", "struct"] = "text"
    jsonb: Literal["text", "variant"] = "text"
    uuid: Literal["text", "uuid"] = "text"
    time: Literal["text", "time"] = "text"

    @field_validator("jsonb")
    @classmethod
    def _no_variant(cls, value: str) -> str:
        if value == "variant":
            raise ValueError("pyiceberg cannot read a table with a VARIANT, so only text (docs/types.md)")
        return value

    @field_validator("uuid")
    @classmethod
    def _no_uuid(cls, value: str) -> str:
        if value == "uuid":
            raise ValueError(
                "Spark finds no rows by a column of Iceberg's type uuid, so only text (docs/types.md)"
            )
        return value

    @field_validator("time")
    @classmethod
    def _no_time(cls, value: str) -> str:
        if value == "time":
            raise ValueError(
                "Spark cannot read a table with Iceberg's type time, so only text (docs/types.md)"
            )
        return value


def one_representation(types: Mapping[str, Representation], lossy: object) -> None:
    """Check that no column has two representations.

    Args:
        types: the representation by column, of one table.
        lossy: the table's ``on_lossy``: one word, or a word by column.

    Raises:
        ValueError: a column is text by ``on_lossy`` and something else by ``types``.
    """
    choices = lossy if isinstance(lossy, dict) else {}
    for column, word in types.items():
        if word != "text" and choices.get(column) == "text":
            raise ValueError(f"column {column} cannot be text (on_lossy) and a {word} (types)")
