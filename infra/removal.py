"""The end of a pipeline, and its second beginning when the slot is lost.

`drop` lets go of what holds the source back (the slot) and removes what this pipeline made; the lake stays
unless asked for.  `recover` compares what the slot still has with what the lake needs, and when
changes are gone for good it makes a new slot and copies the tables again, all of them in one publication.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from psycopg import sql

from decoder.errors import SlotBusyError, SlotError
from decoder.lsn import format_lsn
from decoder.slots import check_slot, drop_slot
from decoder.source import connect, source_errors
from infra import ddl_trigger, follow
from infra.bootstrap import initialise, publications_made
from infra.reports import Report

if TYPE_CHECKING:
    from infra.output import Progressing
    from infra.pipeline import Pipeline


@dataclass(frozen=True)
class DropReport(Report):
    """What was removed, a line each."""

    pipeline: str
    done: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class RecoverReport(Report):
    """What is wrong, and what is, or was, done about it."""

    pipeline: str
    diagnosis: str
    plan: list[str]
    carried_out: bool


def drop(pipeline: Pipeline, *, lake: bool) -> DropReport:
    """Drop the slot and the publications that `init` made; with ``lake`` the tables and the change log."""
    pipeline.stream.end()
    done = ["ended the standing puller"] if follow.stop(pipeline) else []
    if drop_slot(pipeline.source):
        done.append(f"dropped the replication slot {pipeline.source.slot}")
    for name in publications_made(pipeline):
        with connect(pipeline.source.dsn) as connection, source_errors(pipeline.source.dsn):
            connection.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(name)))
        done.append(f"dropped the publication {name}")
    done += ddl_trigger.remove(pipeline)
    (pipeline.file.state_dir / "made.json").unlink(missing_ok=True)
    if lake:
        done += _drop_lake(pipeline)
    return DropReport(pipeline.name, done or ["nothing was there to drop"])


def _drop_lake(pipeline: Pipeline) -> list[str]:
    from spark.removal import drop_tables

    dropped = [f"dropped the lake table {name}" for name in drop_tables(pipeline.lake, pipeline.name)]
    if pipeline.file.changelog_dir.exists():
        shutil.rmtree(pipeline.file.changelog_dir)
        dropped.append("removed the change log")
    return dropped


def recover(pipeline: Pipeline, *, carry_out: bool, progress: Progressing) -> RecoverReport:
    """Judge the slot against the lake; when changes are gone, plan (and carry out) a new copy.

    Raises:
        SlotBusyError: another reader holds the slot; that is no loss, and waiting helps.
    """
    position = pipeline.position()
    try:
        with connect(pipeline.source.dsn) as connection, source_errors(pipeline.source.dsn):
            check_slot(connection, pipeline.source, position=position)
    except SlotBusyError:
        raise
    except SlotError as error:
        diagnosis = error.what
    else:
        fine = f"nothing is lost: the slot still has all changes from {format_lsn(position)} on"
        return RecoverReport(pipeline.name, fine, [], carried_out=False)
    plan = [
        f"drop what is left of the replication slot {pipeline.source.slot}",
        "drop the lake tables of this pipeline and the change log",
        "make a new slot and copy all published tables at its position",
    ]
    if carry_out:
        drop_slot(pipeline.source)
        _drop_lake(pipeline)
        initialise(pipeline, progress)
    return RecoverReport(pipeline.name, diagnosis, plan, carried_out=carry_out)
