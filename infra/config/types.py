"""The part of the pipeline file about types, and the mistakes in it that show without the source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationInfo, field_validator

Lossy = Literal["text", "quarantine", "fail"]
EVERY = "*"
_DECIMAL = re.compile(r"decimal\(\s*([1-9][0-9]?)\s*,\s*([0-9]{1,2})\s*\)")
_DIGITS_MAX = 38
# Those of `lake.readers`, as infra.selection.reader_facts has them, beside pyiceberg.
READ_NO_VARIANT: Final = frozenset({"trino", "bigquery", "athena", "clickhouse"})


def decimal_word(value: str) -> str:
    """Check ``decimal(precision,scale)``, and write it without spaces.

    Raises:
        ValueError: it is something else, or Iceberg has no such decimal.
    """
    match = _DECIMAL.fullmatch(value)
    if match is None:
        raise ValueError(f"write text, or decimal(precision,scale) as decimal(38,10), not {value!r}")
    precision, scale = int(match[1]), int(match[2])
    if not 0 <= scale <= precision <= _DIGITS_MAX:
        raise ValueError(
            f"{value}: Iceberg's decimals have 1 to 38 digits, and no more of them after the point"
        )
    return f"decimal({precision},{scale})"


def _word(value: str) -> str:
    return value if value in {"text", "list", "struct"} else decimal_word(value)


def _text_or_decimal(value: str) -> str:
    return value if value == "text" else decimal_word(value)


Representation = Annotated[str, AfterValidator(_word)]


class TypesSection(BaseModel):
    """The representation of types for which Iceberg has no scalar type (docs/types.md)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    arrays: Literal["text", "list"] = "text"
    ranges: Literal["text", "struct"] = "text"
    composites: Literal["text", "struct"] = "text"
    numerics: Annotated[str, AfterValidator(_text_or_decimal)] = "text"
    jsonb: Literal["text"] = "text"
    uuid: Literal["text", "uuid"] = "text"
    time: Literal["text", "time"] = "text"

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


def no_variant(types: object, info: ValidationInfo) -> object:
    """Refuse ``jsonb: variant``, with the readers that the file names and that cannot read it.

    Args:
        types: the section, as the file has it.
        info: what of the file was checked before, with the section ``lake``.

    Raises:
        ValueError: it is asked for.
    """
    if isinstance(types, dict) and types.get("jsonb") == "variant":
        named = [name for name in getattr(info.data.get("lake"), "readers", ()) if name in READ_NO_VARIANT]
        others = f", nor can {', '.join(named)} (lake.readers)" if named else ""
        raise ValueError(
            f"jsonb: pyiceberg cannot read a table with a VARIANT{others}, so only text (docs/types.md)"
        )
    return types


def one_representation(types: Mapping[str, Representation], lossy: object) -> None:
    """Check that no column has two representations.

    Args:
        types: the representation by column, of one table.
        lossy: the table's ``on_lossy``: one word, or a word by column.

    Raises:
        ValueError: a column is text by ``on_lossy`` and something else by ``types``.
    """
    choices = lossy if isinstance(lossy, dict) else {}
    if types.get(EVERY, "text") in {"list", "struct"}:
        raise ValueError('"*" in types is for numerics: text, or decimal(precision,scale)')
    for column, word in types.items():
        if word != "text" and choices.get(column) == "text":
            raise ValueError(f"column {column} cannot be text (on_lossy) and a {word} (types)")
