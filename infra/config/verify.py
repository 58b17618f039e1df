"""The section ``verify`` of the pipeline file: what is compared unasked, and at which cost."""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from slotlake.infra.config.durations import duration_seconds
from slotlake.infra.config.sections import Section

_WITHIN_SECONDS_MIN = 60.0
_CONNECTIONS_MAX = 4


class VerifySection(Section):
    """Verifications that are left on (docs/verify.md).

    ``changed``: rows that changed are compared after each batch of a continuous run and by `cdc_verify`
    (``every_batch``), by `cdc_verify` only (``every_verify``), or not (``off``).  ``full_within``: in which
    time all rows are compared, a slice at a time; None: `cdc_verify` compares all rows each time.
    ``source_load``: the share of one core of the source that these verifications may take.
    ``connections``: how many read the source at the same time; None: `connections_for` says.
    """

    changed: Literal["every_batch", "every_verify", "off"] = "off"
    full_within: Annotated[float, Field(ge=_WITHIN_SECONDS_MIN)] | None = None
    source_load: Annotated[float, Field(gt=0, le=1, strict=False)] = 0.1
    connections: Annotated[int, Field(ge=1, le=64)] | None = None

    @field_validator("changed", mode="before")
    @classmethod
    def _yaml_boolean(cls, value: object) -> object:
        return "off" if value is False else value  # YAML reads `off` so

    @field_validator("full_within", mode="before")
    @classmethod
    def _duration(cls, value: Any) -> Any:
        if isinstance(value, bool):
            return value
        return duration_seconds(value) if isinstance(value, str) else value

    def connections_for(self, source_load: float | None) -> int:
        """Return how many connections read the source at the same time.

        Args:
            source_load: the share that a verification may take; one connection takes it more evenly than two.
        """
        usual = min(_CONNECTIONS_MAX, max(2, os.cpu_count() or 1)) if source_load is None else 1
        return self.connections or usual

    @property
    def scopes(self) -> tuple[str, ...]:
        """What `cdc_verify` compares: changed rows, slices, or all rows."""
        changed = ("changed",) if self.changed != "off" else ()
        rolling = ("rolling",) if self.full_within is not None else ()
        return (*changed, *rolling) or ("full",)

    @property
    def is_left_on(self) -> bool:
        """Return whether `cdc_verify` compares less than all rows of all tables each time."""
        return self.changed != "off" or self.full_within is not None
