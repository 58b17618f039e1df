"""What `slotlake validate` has found so far: one result a check, and which checks may follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from slotlake.decoder.errors import LockedError, SlotBusyError, SlotlakeError
from slotlake.infra.reports import Report

if TYPE_CHECKING:
    from slotlake.infra.opened.open_pipeline import OpenPipeline

Result = Literal["ok", "warning", "error", "not checked"]


@dataclass(frozen=True)
class Check(Report):
    """One check; only a warning or an error has a ``way_out``."""

    name: str
    result: Result
    what: str
    way_out: str = ""


class Checks:
    """The results so far; after a failed check, the next checks follow."""

    def __init__(self) -> None:
        self.results: list[Check] = []
        self.opened: OpenPipeline | None = None
        self._passed: set[str] = set()

    def make(self, name: str, look: Callable[[], str], *needs: str) -> None:
        """Make one check.

        Args:
            name: of the check, as the report has it.
            look: returns the text of an ok, or raises an error; it may also add warnings.
            needs: the names of checks that must have passed before.
        """
        lacking = [need for need in needs if need not in self._passed]
        if lacking:
            self.results.append(Check(name, "not checked", f"the check {lacking[0]!r} must pass first"))
            return
        before = len(self.results)
        try:
            what = look()
        except SlotlakeError as error:
            passing = isinstance(error, SlotBusyError | LockedError)
            self.add_error(name, "warning" if passing else "error", error)
            return
        if all(check.result != "error" for check in self.results[before:]):
            self._passed.add(name)
        if len(self.results) == before:
            self.results.append(Check(name, "ok", what))

    def add(self, name: str, result: Result, what: str, way_out: str) -> None:
        """Add a warning or an error to the report; the check that adds it continues."""
        self.results.append(Check(name, result, what, way_out))

    def add_error(self, name: str, result: Result, error: SlotlakeError) -> None:
        """Add what an error says."""
        where = f" ({error.where})" if error.where else ""
        self.add(name, result, f"{error.what}{where}", error.way_out)
