"""The user's suites: read from their files or their project, and checked on a table of the lake by Spark.

Rows stay in Spark: Great Expectations asks it for counts, and for a few examples of values that a suite does
not expect.  Those go into the Data Docs, never into a message.

Invariant: the user's project is only read.  What slotlake stores (results, pages, copies of the suites) is in
a context of its own, where the names of the user's suites begin with the table's name.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotlake.decoder.errors import SlotlakeError
from slotlake.expectations import suite as own
from slotlake.expectations.results import SuiteResult

if TYPE_CHECKING:
    from great_expectations import ExpectationSuite
    from pyspark.sql import DataFrame

_SOURCE = "lake"
_YESTERDAY = "rows_yesterday"


class SuiteError(SlotlakeError):
    """A suite of the user, or a project, cannot be read."""

    exit_code = 2


@dataclass(frozen=True)
class TableSuite:
    """A suite that the user has chosen for a table.

    Attributes:
        table: the table as PostgreSQL writes its name.
        suite: a suite's name in the project; with ``file``, what the pipeline file calls it.
        file: the file that has it; None for a suite of the project.
    """

    table: str
    suite: str
    file: Path | None


@dataclass(frozen=True)
class Rows:
    """The rows of a table that a suite is checked on.

    Attributes:
        frame: the rows, in Spark.
        yesterday: returns how many rows the table had a day ago; called if a suite asks for it.
    """

    frame: DataFrame
    yesterday: Callable[[], int]


@dataclass(frozen=True)
class UserProject:
    """The user's Great Expectations project; ``checkpoint``: whose actions run after a check."""

    folder: Path | None = None
    checkpoint: str | None = None

    def suite(self, name: str) -> ExpectationSuite:
        """Return a suite of the project.

        Raises:
            SuiteError: there is no such project, or no such suite.
        """
        context = self._context()
        try:
            return context.suites.get(name)
        except Exception as error:  # the library has no base of its own for what can go wrong in it
            names = ", ".join(sorted(each.name for each in context.suites.all())) or "none"
            raise SuiteError(
                f"the Great Expectations project has no suite {name!r} that can be read: {_line(error)}",
                where=str(self.folder),
                way_out=f"name one of its suites: {names}",
            ) from error

    def actions(self) -> list[Any]:
        """Return the actions of the checkpoint; none without one.

        Raises:
            SuiteError: there is no such project, or no such checkpoint.
        """
        if self.checkpoint is None:
            return []
        context = self._context()
        try:
            return list(context.checkpoints.get(self.checkpoint).actions)
        except Exception as error:
            raise SuiteError(
                f"the Great Expectations project has no checkpoint {self.checkpoint!r} that can be read: "
                f"{_line(error)}",
                where=str(self.folder),
                way_out="correct expectations.checkpoint, or leave it out",
            ) from error

    def _context(self) -> Any:
        assert self.folder is not None
        # Opened where nothing is, the library would make a new project there.
        places = (self.folder / "great_expectations.yml", self.folder / "gx" / "great_expectations.yml")
        if not any(place.is_file() for place in places):
            raise SuiteError(
                "there is no Great Expectations project: great_expectations.yml is missing",
                where=str(self.folder),
                way_out="write the folder that has gx/great_expectations.yml to expectations.project",
            )
        root = {"context_root_dir": str(self.folder)} if places[0].is_file() else {}
        project = {} if root else {"project_root_dir": str(self.folder)}
        try:
            return own.great_expectations().get_context(mode="file", **root, **project)
        except Exception as error:
            raise SuiteError(
                f"the Great Expectations project cannot be opened: {_line(error)}",
                where=str(self.folder),
                way_out="correct the project; its own tools say more",
            ) from error


def read_suite(choice: TableSuite, project: UserProject) -> ExpectationSuite:
    """Return a user's suite, with the name under which slotlake keeps it.

    Raises:
        SuiteError: it cannot be read, or has an expectation that this version does not know.
    """
    listed = _of_file(choice.file) if choice.file else None
    expectations = [copy(each) for each in project.suite(choice.suite).expectations] if listed is None else []
    name = re.sub(r"[/\\]", " ", f"{choice.table} {choice.suite}")
    try:
        # A suite that is given dictionaries leaves out those that it does not understand.
        expectations += [_expectation(each) for each in listed or ()]
        return own.great_expectations().ExpectationSuite(name, expectations)
    except Exception as error:
        raise SuiteError(
            f"the suite {choice.suite!r} has an expectation that cannot be used: {_line(error)}",
            where=str(choice.file or project.folder),
            way_out="correct the suite; it is to have the form of Great Expectations 1",
        ) from error


def _expectation(stored: Mapping[str, Any]) -> Any:
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    return ExpectationConfiguration(**stored).to_domain_obj()


def _of_file(file: Path) -> list[dict[str, Any]]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SuiteError(
            f"the suite cannot be read: {_line(error)}",
            where=str(file),
            way_out="correct the path in tables.<name>.expectations, or the file",
        ) from None
    listed = content.get("expectations") if isinstance(content, dict) else None
    if not isinstance(listed, list) or not all(isinstance(e, dict) and "type" in e for e in listed):
        raise SuiteError(
            "the file is not a suite of Great Expectations 1: it is to be an object with a list "
            '"expectations", each with a "type" and its "kwargs"',
            where=str(file),
            way_out="save the suite with Great Expectations 1, or name a suite of a project",
        )
    return [{key: each[key] for key in ("type", "kwargs", "meta") if key in each} for each in listed]


def check(
    suites: Mapping[TableSuite, Rows], project: UserProject, folder: Path, run_name: str
) -> list[SuiteResult]:
    """Check suites, each on its table's rows, and bring the Data Docs up to date.

    Args:
        suites: the user's suites, and the rows of each one's table.
        folder: where slotlake's context is; made if missing.

    Raises:
        SuiteError: a suite or the project cannot be read; nothing was checked.
        CheckError: an expectation could not be evaluated, which says nothing about the rows.
    """
    read = {choice: read_suite(choice, project) for choice in suites}
    actions = project.actions()
    with own.checking(folder) as context:
        return [
            _check(context, choice, suite, (suites[choice], actions, run_name))
            for choice, suite in read.items()
        ]


def _check(
    context: Any, choice: TableSuite, suite: ExpectationSuite, inputs: tuple[Rows, Sequence[Any], str]
) -> SuiteResult:
    from great_expectations import ValidationDefinition

    rows, actions, run_name = inputs
    started = time.monotonic()
    source = context.data_sources.add_or_update_spark(_SOURCE, persist=False)
    batch = source.add_dataframe_asset(suite.name).add_batch_definition_whole_dataframe("all")
    suite = context.suites.add_or_update(suite)
    definition = context.validation_definitions.add_or_update(
        ValidationDefinition(name=suite.name, data=batch, suite=suite)
    )
    checkpoint = own.checkpoint(context, suite.name, definition, "SUMMARY", actions)
    asked = _YESTERDAY in json.dumps([each.to_json_dict() for each in suite.expectation_configurations])
    parameters = {_YESTERDAY: rows.yesterday()} if asked else {}
    with _functions_for(rows.frame):
        outcome = checkpoint.run(
            batch_parameters={"dataframe": rows.frame},
            expectation_parameters=parameters,
            run_id=own.run_id(run_name),
        )
    results = [result for run in outcome.run_results.values() for result in run.results]
    if broken := [result for result in results if own.raised(result.exception_info)]:
        names = ", ".join(_name(result) for result in broken)
        raise own.CheckError(
            f"the suite {choice.suite!r} could not be evaluated, which says nothing about the rows: {names}",
            where=f"table {choice.table}",
            way_out="look at the columns and values that these expectations name; the Data Docs say more: "
            f"{own.index(Path(context.root_directory).parent)}",
        )
    failed = tuple(_failure(result) for result in results if not result.success)
    return SuiteResult(choice.table, choice.suite, len(results), failed, time.monotonic() - started)


@contextmanager
def _functions_for(frame: DataFrame) -> Iterator[None]:
    """Make pyspark's functions those of the frame's kind of session, for as long as it is checked.

    Great Expectations calls them, and pyspark has one kind for a process (`pyspark.sql.utils.is_remote`).
    """
    variable = "SPARK_CONNECT_MODE_ENABLED"
    if variable in os.environ or not type(frame).__module__.startswith("pyspark.sql.connect"):
        yield
        return
    os.environ[variable] = "1"
    try:
        yield
    finally:
        del os.environ[variable]


def _name(result: Any) -> str:
    kwargs = result.expectation_config.kwargs
    columns = kwargs.get("column") or ", ".join(kwargs.get("column_list", ()))
    return f"{result.expectation_config.type}({columns})"


def _failure(result: Any) -> str:
    """What failed, with counts, and without values."""
    unexpected, element = result.result.get("unexpected_count"), result.result.get("element_count")
    rows = f": {unexpected:,} of {element:,} rows" if unexpected is not None and element else ""
    return _name(result) + rows


def _line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]
