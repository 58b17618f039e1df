"""The pipeline file's words about types: what of it is a mistake can be told without a source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, field_validator

Lossy = Literal["text", "quarantine", "fail"]
Kept = Literal["text", "list", "struct"]


class TypesSection(BaseModel):
    """What becomes of columns of types that Iceberg has no scalar for (docs/types.md)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    arrays: Literal["text", "list"] = "text"
    ranges: Literal["text", "struct"] = "text"
    composites: Literal["text", "struct"] = "text"
    jsonb: Literal["text", "variant"] = "text"

    @field_validator("jsonb")
    @classmethod
    def _no_variant(cls, value: str) -> str:
        if value == "variant":
            raise ValueError("pyiceberg cannot read a table with a VARIANT, so only text (docs/types.md)")
        return value


def one_form(types: Mapping[str, Kept], lossy: object) -> None:
    """Raises ValueError if a column is to be text and something else."""
    chosen = lossy if isinstance(lossy, dict) else {}
    for column, word in types.items():
        if word != "text" and chosen.get(column) == "text":
            raise ValueError(f"column {column} cannot be text (on_lossy) and a {word} (types)")
