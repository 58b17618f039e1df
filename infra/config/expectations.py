"""The user's own Great Expectations suites: the section ``expectations``, and the key of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, Self, TypeVar

from pydantic import BaseModel, ConfigDict, model_validator

_FILE = ".json"


class SuiteChoice(BaseModel):
    """A suite for one table.

    Attributes:
        suite: a JSON file, relative to the pipeline file; or a suite's name in ``expectations.project``.
        gate: check each batch before it is published, and publish none that fails; else ``verify`` checks.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    suite: str
    gate: bool = False

    @model_validator(mode="before")
    @classmethod
    def _only_a_name(cls, data: object) -> object:
        return {"suite": data} if isinstance(data, str) else data

    @property
    def is_file(self) -> bool:
        """Whether the suite is a file of its own."""
        return self.suite.endswith(_FILE)


class ExpectationsSection(BaseModel):
    """The user's Great Expectations project.

    Attributes:
        project: its folder, relative to the pipeline file; slotlake only reads it.
        checkpoint: one of its checkpoints, whose actions run after each check of slotlake.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    project: str | None = None
    checkpoint: str | None = None

    @model_validator(mode="after")
    def _of_a_project(self) -> Self:
        if self.checkpoint is not None and self.project is None:
            raise ValueError("checkpoint names a checkpoint of a project: give project too, its folder")
        return self


class HasSuites(Protocol):
    """A pipeline file, as far as suites are concerned."""

    @property
    def expectations(self) -> ExpectationsSection: ...
    @property
    def tables(self) -> Mapping[str, Any]: ...


F = TypeVar("F", bound=HasSuites)


def require_project(file: F) -> F:
    """Check that suites which are no files have a project, and return the pipeline file.

    Raises:
        ValueError: there is no project.
    """
    named = [
        (table, each.suite)
        for table, section in file.tables.items()
        for each in section.expectations
        if not each.is_file
    ]
    if named and file.expectations.project is None:
        table, suite = named[0]
        raise ValueError(
            f"tables.{table}.expectations: {suite!r} is not a .json file, so it is a suite of a Great "
            "Expectations project: write its folder to expectations.project"
        )
    return file
