"""The plan that a person approves, and whether it is still the plan when it is to be carried out.

`note_plan` notes an outline of a plan in the state folder and names it; `require_approved` makes the plan
again and compares.  Invariant: an approved plan is carried out only if wrong, lost and planned are the same.
The source goes on while a person reads, so the rows that differ may become more, but within a margin that the
person has seen.

A recovery that was killed has changed what it was planned for. So the note says that it was begun, and the
same approval goes on with it.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from slotlake.decoder.errors import LakeError
from slotlake.infra.recover.compare import EQUAL, LEFT, NEW, NOTHING, ROWS, WHOLE
from slotlake.infra.state.notes import RECOVER_PLAN, StateFile

if TYPE_CHECKING:
    from slotlake.infra.config.pipeline_file import PipelineFile
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.recover.report import RecoverReport

MARGIN_ROWS, MARGIN_FACTOR = 1000, 2
MARGIN = f"up to {MARGIN_FACTOR} times as many, or {MARGIN_ROWS:,} rows more"
_SHOWN_MAX = 10
_IN_WORDS = {
    ROWS: "write the rows that differ",
    WHOLE: "copy all of it again",
    NEW: "copy it, the lake lacks it",
    LEFT: "leave it as it is",
    NOTHING: "write nothing",
}


def note_plan(file: PipelineFile, report: RecoverReport) -> str:
    """Note a plan in the state folder, in place of an earlier one; return the name to approve it by.

    Args:
        report: of a recovery that was planned and not carried out.
    """
    outline = _outline(report)
    text = json.dumps([time.time(), outline], sort_keys=True)
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    _note(file).write({"plan": name, "begun": False, "outline": outline})
    return name


def require_approved(pipeline: OpenPipeline, name: str, plan_now: Callable[[], RecoverReport]) -> None:
    """Check that a plan is the one that was approved, and note that it is being carried out.

    Args:
        name: of the plan that was approved.
        plan_now: makes the plan again; not called if the approved recovery was begun before.

    Raises:
        LakeError: another plan was made since, or the plan would be another one now; nothing was changed.
    """
    file = _note(pipeline.file)
    noted = file.mapping()
    if noted.get("plan") != name:
        raise _refusal(
            pipeline.name, "the approved plan was carried out already, or another one was made since"
        )
    if not noted["begun"]:
        differences = list(_differences(noted["outline"], _outline(plan_now())))
        if differences:
            more = len(differences) - _SHOWN_MAX
            also = [f"and {more:,} more differences"] if more > 0 else []
            listed = "; ".join([*differences[:_SHOWN_MAX], *also])
            raise _refusal(pipeline.name, f"the plan is not the one that was approved: {listed}")
        file.write({**noted, "begun": True}, durable=True)


def forget_plan(file: PipelineFile) -> None:
    """Forget the plan: it was carried out, or nothing is wrong any more."""
    _note(file).remove()


def _note(file: PipelineFile) -> StateFile:
    return RECOVER_PLAN.of(file.state_dir)


def _refusal(name: str, what: str) -> LakeError:
    return LakeError(
        f"the recovery was refused, and nothing was changed: {what}",
        where=f"pipeline {name}",
        way_out="plan again, read the new plan, and approve that one",
    )


def _outline(report: RecoverReport) -> dict[str, Any]:
    """What of a plan must stay the same: no LSN of the source, no time, no count of equal tables."""
    changing = (EQUAL, *(f"{table.table}: " for table in report.tables))
    return {
        "lsn": report.lsn,
        "findings": sorted([each.kind, each.repair, *each.tables] for each in report.findings),
        "lost": report.lost,
        "steps": [line for line in report.plan if not line.startswith(changing)],
        "tables": {table.table: [table.how, table.rows] for table in report.tables if table.how != NOTHING},
    }


def _differences(approved: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield in words what is not as it was approved."""
    if approved["lsn"] != now["lsn"]:
        yield f"the lake was at {approved['lsn']}, and is at {now['lsn']}"
    for name, words in (("findings", "wrong"), ("steps", "to do"), ("lost", "lost")):
        before, after = ([_text(each) for each in plan[name]] for plan in (approved, now))
        yield from (f"also {words}: {each}" for each in after if each not in before)
        yield from (f"no longer {words}: {each}" for each in before if each not in after)
    for table in sorted({*approved["tables"], *now["tables"]}):
        pair = [plan["tables"].get(table, [NOTHING, 0]) for plan in (approved, now)]
        yield from _table_differences(table, *pair)


def _text(entry: str | list[str]) -> str:
    return entry if isinstance(entry, str) else " ".join([entry[0], *entry[2:]])


def _table_differences(table: str, approved: list[Any], now: list[Any]) -> Iterator[str]:
    (how, rows), (how_now, rows_now) = approved, now
    by_rows = {how, how_now} <= {ROWS, NOTHING}
    if how != how_now and not by_rows:
        yield f"{table}: {_IN_WORDS[how_now]}; approved was: {_IN_WORDS[how]}"
    elif by_rows and rows_now > max(rows * MARGIN_FACTOR, rows + MARGIN_ROWS):
        yield f"{table}: {rows_now:,} rows differ; approved were {rows:,}, and {MARGIN}"
