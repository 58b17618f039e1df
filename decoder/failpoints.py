"""Named places at which a test can end the process as a crash would, or run an action.

``SLOTLAKE_FAILPOINT=<name>`` or ``<name>:<n>`` kills the process with SIGKILL the first (or n-th)
time it reaches that place.  With ``SLOTLAKE_FAILPOINT_SIGNAL=INT`` its whole process group gets that signal
there, as by Ctrl-C at a terminal.  Without the variable a failpoint costs one dictionary look-up.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

NAMES = frozenset(
    {
        "pull.mid",  # messages received, some written, no commit of the batch yet
        "pull.prepared",  # prepared transactions are durable; the batch has no name yet
        "pull.renamed",  # the batch has its final name; nothing applied
        "changelog.uploaded",  # a batch's large files are in the object store; what names them is not
        "changelog.stored",  # a batch is in the object store, and not noted here as stored; nothing applied
        "evolve.copying",  # a table must be copied again: the batch ends at the copy, nothing is copied yet
        "evolve.compared",  # tables with wider columns equal the source; this is not recorded yet
        "evolve.copied",  # the table is copied; the batch sidecar has no name yet
        "evolve.noted",  # the batch sidecar has its name
        "apply.mid_merge",  # while Spark runs a MERGE
        "apply.between_slices",  # one slice of a table staged, the next not
        "apply.between_tables",  # one table staged, the next not
        "apply.between_modes",  # the mirror staged, a derived table not
        "publish.before_swap",  # next metadata files written, pointers not moved
        "publish.between_tables",  # Glue, Hive Metastore: one table's pointer moved, the next not
        "publish.mid_views",  # not SQL: the tables are published, some of their pinned views are moved
        "publish.between_views",  # REST: the tables are published, their pinned views are not all moved
        "publish.after_swap",  # pointers moved, slot not confirmed
        "init.slot_made",  # the slot is created and recorded; nothing copied
        "init.mid_copy",  # rows of a part written, the part not finished
        "init.part_done",  # a part is on disk and recorded
        "init.forwarded",  # the tables copied earlier have the changes made since; nothing registered
        "init.registered",  # a table's files are registered out of sight
        "init.before_publish",
        "init.settled",  # all ranges of a table are done, on several machines; it is not registered
        "copy_worker.delivered",  # the files of a range are where they are to be; the range is not noted
        "join.noted",  # the keys of a joining table that a batch changed are recorded; it is not applied
        "join.published",  # a joining table is published, and recorded as half copied
        "named.published",  # a table that the file names is in the publication; nothing of it is copied
        "remove.unpublished",  # a table left its publications; the lake still has it
        "remove.unlisted",  # the newest point has the table no more; the catalog still has it
        "recopy.staged",  # large tables that are copied again: complete ones are staged, nothing published
        "aside.written",  # a table is recorded as set aside; the step that failed is not repeated yet
        "drop.source",  # slot and publications gone, the lake still there
        "drop.catalog",  # the tables are gone from the catalog, their files are still there
        "backfill.read",  # whole tables are read, without the lock; nothing is staged
        "backfill.staged",  # their rows are staged, nothing is published
        "backfill.compared",  # chosen rows are compared and read, without the lock; nothing is staged
        "recover.slot_dropped",  # the old slot is gone, there is no new one
        "recover.slot_made",  # the new slot is there, nothing compared
        "recover.lowered",  # the lake's position is below the new slot's
        "recover.batch_written",  # the difference is in the change log, the copies next to it are not
        "recover.published",  # all is done, but the record of the begun recovery is still there
        "compact.rewriting",  # after a batch: while Spark packs small files of a table
        "compact.rewritten",  # they are packed; further tables are not
        "maintain.written",  # a table's files are written anew, and do not belong to it yet
        "maintain.rewritten",  # a table's files rewritten, nothing expired
        "maintain.expired",  # snapshots gone from its metadata, their files not removed
        "layout.before_swap",  # tables with another layout are written, no pointer is moved
        "format.before_swap",  # tables in another format are written, no pointer is moved
    }
)
# The environment names the visit at which the process dies: of all that it makes, whatever it works on.
_reached: dict[str, int] = {}
_actions: dict[str, Callable[[], None]] = {}


@contextmanager
def happening(name: str, action: Callable[[], None]) -> Iterator[None]:
    """Inside the block, ``action`` runs once, when this process first reaches that place."""
    assert name in NAMES, name
    _actions[name] = action
    try:
        yield
    finally:
        _actions.pop(name, None)


def reach(name: str) -> None:
    """Die here if the environment asks for it."""
    assert name in NAMES, name
    if name in _actions:
        _actions.pop(name)()
    if armed(name):
        fall()


def fall() -> None:
    """Send the signal that the environment asks for, which is SIGKILL."""
    name = os.environ.get("SLOTLAKE_FAILPOINT_SIGNAL")
    if name is None:
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        os.killpg(os.getpgrp(), signal.Signals[f"SIG{name}"])


def armed(name: str) -> bool:
    """Count a visit; true when the process must die at this visit."""
    setting = os.environ.get("SLOTLAKE_FAILPOINT", "")
    if not setting:
        return False
    armed_name, _, count = setting.partition(":")
    if armed_name != name:
        return False
    _reached[name] = _reached.get(name, 0) + 1
    return _reached[name] == int(count or 1)
