"""The section ``airflow`` of the pipeline file: when the DAGs run, and what a run of `cdc_sync` is."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from slotlake.infra.config.durations import duration_seconds
from slotlake.infra.config.sections import Section

ON_CHANGE = "on_change"
_VERIFY_WORDS = ("daily", "every_batch", "manual")
_LINK = re.compile(r"^(https?://[^/\s]+|mailto:[^\s]+@)")
_CRON = re.compile(r"^(@[a-z]+|\S+( +\S+){4,5})$")


class AirflowSection(Section):
    """When the DAGs run. ``schedule``: a cron expression, a number of seconds, or null (only by hand).

    ``schedule: on_change``: Airflow's triggerer watches the source, and its changes start a run.

    ``tasks``: a micro-batch is four tasks, or one.  ``run``: a run of `cdc_sync` is one micro-batch, or
    ``continuous``: micro-batches for the time ``run_for``, and the next run follows at once.
    ``deadline``: Airflow warns of a run that has not ended so long after it was queued; of a continuous run
    this is added to ``run_for``.
    ``copy_tasks``: how many more tasks copy ranges of the initial copy, next to `bootstrap`.
    ``owner``, ``owner_link``, ``tags``: of all DAGs, in the lists of Airflow's pages.
    A verification reads all rows of both sides, and batches wait meanwhile. So it runs only once a day.
    """

    schedule: str | int | None = 60
    verify: str | int | None = "daily"
    maintenance: str | int | None = 3600
    run_hours_max: Annotated[float, Field(gt=0, strict=False)] = 6.0
    tasks: Literal["four", "one"] = "four"
    run: Literal["batch", "continuous"] = "batch"
    run_for: Annotated[float, Field(gt=0)] = 600.0
    deadline: Annotated[float, Field(gt=0)] | None = None
    copy_tasks: Annotated[int, Field(ge=0, le=64)] = 0
    owner: Annotated[str, Field(min_length=1)] = "slotlake"
    owner_link: str | None = None
    tags: list[Annotated[str, Field(min_length=1, max_length=100)]] = Field(default_factory=list)

    @field_validator("run_for", "deadline", mode="before")
    @classmethod
    def _duration(cls, value: object) -> object:
        return duration_seconds(value) if isinstance(value, str) else value

    @field_validator("owner_link")
    @classmethod
    def _link(cls, value: str | None) -> str | None:
        if value is not None and not _LINK.match(value):
            raise ValueError("write an address that begins with https://, http:// or mailto:")
        return value

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        if self.run == "continuous" and "tasks" in self.model_fields_set and self.tasks == "four":
            raise ValueError("a continuous run is one task: leave tasks out, or write tasks: one")
        if self.run == "continuous" and self.schedule == ON_CHANGE:
            raise ValueError("a continuous run waits for changes itself: leave schedule out")
        if self.run_for >= self.run_hours_max * 3600:
            raise ValueError("run_for must be shorter than run_hours_max, after which Airflow ends a run")
        return self

    @field_validator("verify")
    @classmethod
    def _when(cls, value: str | int | None) -> str | int | None:
        words = (*_VERIFY_WORDS, None)
        scheduled = value > 0 if isinstance(value, int) else value in words or bool(_CRON.match(value or ""))
        if not scheduled:
            raise ValueError(f"write {', '.join(_VERIFY_WORDS)}, a cron expression, or a number of seconds")
        return value

    @field_validator("schedule", "maintenance")
    @classmethod
    def _times(cls, value: str | int | None, info: ValidationInfo) -> str | int | None:
        words = (ON_CHANGE,) if info.field_name == "schedule" else ()
        if isinstance(value, int) and value < 1:
            raise ValueError("write a number of seconds, 1 or more")
        if isinstance(value, str) and value not in words and not _CRON.match(value):
            raise ValueError(
                f"write {', '.join((*words, 'a cron expression'))}, a number of seconds, or null"
            )
        return value
