"""The section ``notify`` of the pipeline file: who is notified of what needs a person, and of its end.

Addresses hold tokens and passwords. Invariant: an error names a receiver by its place in the list, never by
its address.  Whether an address can be used is known to apprise alone (`infra.notify.sending`), whose import
takes a second: Airflow reads this file each time it parses a DAG file.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from slotlake.infra.config.durations import duration_seconds
from slotlake.infra.config.sections import Section

Kind = Literal["alarm", "set_aside", "verification", "failure", "recovery"]
_PAGE = re.compile(r"^https?://[^/\s]+(/\S*)?$")
_SHAPE = "write an address, env:NAME, {command: [program, argument]}, or {url: …, level: broken}"


class ReceiverSection(Section):
    """Who is notified: an address of apprise, or a program that prints it; of which levels and kinds.

    ``level``: ``broken`` leaves warnings out.
    """

    url: SecretStr | None = None
    command: Annotated[tuple[str, ...], Field(min_length=1, strict=False)] | None = None
    level: Literal["warning", "broken"] = "warning"
    kinds: Annotated[tuple[Kind, ...], Field(min_length=1, strict=False)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _address_alone(cls, value: object) -> object:
        if isinstance(value, str):
            return {"url": value}
        if isinstance(value, dict) and not isinstance(value.get("command"), str):
            return value
        raise ValueError(_SHAPE)

    @model_validator(mode="after")
    def _one_address(self) -> Self:
        if (self.url is None) == (self.command is None):
            raise ValueError(f"give either url or command; {_SHAPE}")
        return self


class NotifySection(Section):
    """Who is notified, and how often of what lasts.

    ``repeat``: seconds after which an alarm that lasts is notified again; None: once.
    ``page``: the address of the page that a message names; in Airflow, Airflow's own is known.
    """

    to: tuple[ReceiverSection, ...] = ()
    repeat: Annotated[float, Field(ge=60)] | None = 86_400.0
    page: str | None = None

    @field_validator("to", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> object:
        return tuple(value) if isinstance(value, list) else () if value is None else (value,)

    @field_validator("repeat", mode="before")
    @classmethod
    def _duration(cls, value: object) -> object:
        return duration_seconds(value) if isinstance(value, str) else value

    @field_validator("page")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if value is not None and not _PAGE.match(value):
            raise ValueError("write an address that begins with https:// or http://")
        return value
