"""What `recover` reports."""

from __future__ import annotations

from dataclasses import dataclass, field

from slotlake.infra.recover.compare import TableRepair
from slotlake.infra.reports import Report
from slotlake.infra.sync.findings import Finding


@dataclass(frozen=True)
class RecoverReport(Report):
    """What is wrong, and what is, or was, done about it.

    Attributes:
        diagnosis: in words; "nothing is lost: …" if all is well.
        findings: the same, one by one.
        plan: what is to be done, in order, a line each; empty if there is nothing to do.
        tables: what each table gets. Of a plan: as of the moment when it was made.
        rows, bytes: of all tables: rows to be written, and about what these take at the source. Of tables
            that a plan copies whole, as the source's planner estimates it.
        written: how many tables get rows.
        lost: what is gone for good, a line each.
        lsn: where the lake stood then.
    """

    pipeline: str
    diagnosis: str
    plan: list[str]
    carried_out: bool
    findings: list[Finding] = field(default_factory=list)
    tables: list[TableRepair] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0
    written: int = 0
    lost: list[str] = field(default_factory=list)
    lsn: str = ""
    seconds: float = 0.0
