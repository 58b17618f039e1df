"""The end of a pipeline: its slot is let go of, its DAGs end, its lake stays unless asked for otherwise.

Invariant: each part is dropped by itself and may be gone already, so a second run ends what the first could
not (killed, or a side out of reach), and says what is left to be done by hand.  Only what this pipeline made
is touched: a slot of its name that something else made stays.  The note ``dropped.json`` in the state folder
is what ends the DAGs (infra/airflow/scheduling.py); `init` and `recover` take it away.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from psycopg import sql

from slotlake.decoder.errors import LakeError, SourceError
from slotlake.decoder.failpoints import reach
from slotlake.decoder.server.source import redact, source_session
from slotlake.decoder.slots.slot import drop_slot, inspect_slot
from slotlake.infra.copy.unfinished import give_up
from slotlake.infra.joining.recopying import give_up_all
from slotlake.infra.reports import Report
from slotlake.infra.source import ddl_trigger, standing_puller
from slotlake.infra.state_file import StateFile

if TYPE_CHECKING:
    from slotlake.infra.pipeline_open import OpenPipeline


@dataclass(frozen=True)
class DropReport(Report):
    """What was removed, and what is left to be done by hand, a line each.

    ``exit_code``: 0, or that of the side that could not be reached.
    """

    pipeline: str
    done: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    exit_code: int = 0


class _Doing:
    """What was done so far; a side that is out of reach leaves its part to be done by hand."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.left: list[str] = []
        self.exit_code = 0

    @contextmanager
    def or_by_hand(self, told: str) -> Iterator[None]:
        try:
            yield
        except (SourceError, LakeError) as error:
            self.left.append(f"{told}  [{error.what}]")
            self.exit_code = self.exit_code or error.exit_code


def drop(pipeline: OpenPipeline, *, lake: bool) -> DropReport:
    """Drop the slot, and what else `init` made; with ``lake`` the tables and the change log.

    Raises:
        SlotBusyError: something reads from the slot now.
    """
    if "stream" in vars(pipeline):
        pipeline.stream.end()
    doing = _Doing()
    doing.done += ["ended the standing puller"] if standing_puller.stop(pipeline) else []
    noted = _noted(pipeline)
    if not noted.get("source"):
        _source(pipeline, doing)
    StateFile(pipeline.file.dropped_note).write({**noted, "source": not doing.left})
    reach("drop.source")
    if lake or noted.get("files"):
        _lake(pipeline, doing)
    done = doing.done or ["nothing was there to drop"]
    if "source" not in noted:
        done.append(f"its DAGs end ({pipeline.file.dropped_note} says so; init brings them back)")
    return DropReport(pipeline.name, done, doing.left, doing.exit_code)


def begin_again(pipeline: OpenPipeline) -> None:
    """The pipeline lives: its DAGs are made again."""
    pipeline.file.dropped_note.unlink(missing_ok=True)


def _source(pipeline: OpenPipeline, doing: _Doing) -> None:
    source = pipeline.source
    at = redact(source.dsn)
    with doing.or_by_hand(f"at {at}: SELECT pg_drop_replication_slot('{source.slot}')"):
        _slot(pipeline, doing)
    for name in _made(pipeline).get("publications", []):
        statement = sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(name))
        with doing.or_by_hand(f"at {at}: {statement.as_string(None)}"):
            with source_session(source.dsn, "dropping the publication") as connection:
                connection.execute(statement)
            doing.done.append(f"dropped the publication {name}")
    with doing.or_by_hand(f"at {at}: {' '.join(ddl_trigger.REMOVE.split())}"):
        doing.done += ddl_trigger.remove(pipeline)
    with doing.or_by_hand(f"files of an unfinished copy in {pipeline.lake.place}"):
        doing.done += give_up(pipeline)
        doing.done += [f"removed what was copied of {table}" for table in give_up_all(pipeline)]
    if not doing.left:
        for note in ("made.json", "making.json"):
            (pipeline.file.state_dir / note).unlink(missing_ok=True)


def _slot(pipeline: OpenPipeline, doing: _Doing) -> None:
    source = pipeline.source
    with source_session(source.dsn) as connection:
        if inspect_slot(connection, source.slot) is None:
            return
    if not _is_ours(pipeline):
        doing.left.append(
            f"the replication slot {source.slot}: this pipeline did not make it, so it is left; if nothing "
            f"needs it: SELECT pg_drop_replication_slot('{source.slot}')"
        )
        return
    if drop_slot(source):
        doing.done.append(f"dropped the replication slot {source.slot}")


def _is_ours(pipeline: OpenPipeline) -> bool:
    """Did `init` note that it made the slot; or, the notes being lost, is the lake this pipeline's?"""
    from slotlake.spark.copy.initial import is_initialised

    if _made(pipeline).get("slot") == pipeline.source.slot:
        return True
    try:
        return is_initialised(pipeline.lake, pipeline.name)
    except LakeError:
        return False


def _made(pipeline: OpenPipeline) -> dict[str, Any]:
    """What `init` noted of what it made, also one that was cut off."""
    for name in ("made.json", "making.json"):
        if note := StateFile(pipeline.file.state_dir / name).mapping():
            return note
    return {}


def _noted(pipeline: OpenPipeline) -> dict[str, Any]:
    """What an earlier `drop` noted: whether the source is done, and files that it was about to remove."""
    return StateFile(pipeline.file.dropped_note).mapping()


def _lake(pipeline: OpenPipeline, doing: _Doing) -> None:
    from slotlake.spark.maintenance.removal import drop_tables, remove_files

    file = pipeline.file

    def note(locations: list[str]) -> None:
        known = _noted(pipeline)
        known["files"] = sorted({*known.get("files", []), *locations})
        StateFile(file.dropped_note).write(known)

    told = f"the tables of pipeline {pipeline.name} in {pipeline.lake.place}, namespace {file.lake.namespace}"
    with doing.or_by_hand(told):
        dropped = drop_tables(pipeline.lake, pipeline.name, before_removal=note)
        doing.done += [f"dropped the lake table {name}" for name in dropped]
        remove_files(_noted(pipeline).get("files", []))
        StateFile(file.dropped_note).write({"source": _noted(pipeline).get("source", False)})
    if file.changelog_dir.exists():
        shutil.rmtree(file.changelog_dir)
        doing.done.append("removed the change log")
