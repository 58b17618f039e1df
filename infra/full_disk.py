"""A full disk on the lake's side: said as what is full, how much room the next run needs, and the way out.

Whoever meets a full disk says so in its own words (the change log, Spark, SQLite, Python); here they get the
same end.  Invariant: the kind of the error, and so its exit code, stays; a bare OSError becomes one of ours.
"""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from slotlake.decoder.errors import ChangeLogError, LakeError, SlotlakeError, SourceError
from slotlake.decoder.server.position import source_position
from slotlake.decoder.server.source import SourceSettings
from slotlake.infra.config.pipeline_file import PipelineFile
from slotlake.spark.lake import LakeSettings

_SAID = ("no space left on", "disk is full", "disk quota exceeded", "file too large")
_NUMBERS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FULL_BELOW_BYTES = 64 << 20
_FULL_BELOW_PART = 0.05


@dataclass(frozen=True)
class Places:
    """Where a pipeline writes, and what says how much it is going to write.

    Attributes:
        position: asks for the lake's position.
    """

    file: PipelineFile
    lake: LakeSettings
    source: SourceSettings
    position: Callable[[], int]


@contextmanager
def told_if_full(places: Places) -> Iterator[None]:
    """Whatever fails because a disk is full says which, and how much room is needed.

    Raises:
        SlotlakeError: as inside; ChangeLogError for a bare OSError of a full disk.
    """
    try:
        yield
    except SourceError:
        raise  # it is the server's disk, and says so itself
    except SlotlakeError as error:
        if any(words in error.what.lower() for words in _SAID) or _may_be_full(places, error):
            error.way_out = _way_out(places)
        raise
    except OSError as error:
        if error.errno not in _NUMBERS:
            raise
        place = str(error.filename or places.file.state_dir)
        raise ChangeLogError(
            f"a file cannot be written: {error.strerror}", where=place, way_out=_way_out(places)
        ) from None


def _may_be_full(places: Places, error: SlotlakeError) -> bool:
    """Of what Spark says only the kind is told on; on a disk without any room it is that."""
    return isinstance(error, LakeError) and bool(full_places(places, below_bytes=64 << 10))


def _way_out(places: Places) -> str:
    full = full_places(places)
    found = f"full: {'; '.join(full)}. " if full else ""
    return (
        f"{found}{_needed(places)}Free or enlarge the disk, then run the same command again: nothing "
        "unfinished was published or confirmed, and the server keeps what was not (watch its WAL: `slotlake "
        "status`)"
    )


def full_places(places: Places, below_bytes: int = _FULL_BELOW_BYTES) -> list[str]:
    """The pipeline's places on disks with next to no room."""
    named = {
        "the state folder": places.file.state_dir,
        "the change log": places.file.changelog_dir,
        "the warehouse": Path(places.lake.warehouse_path),
        "temporary files": Path(tempfile.gettempdir()),
    }
    if places.lake.uri.startswith("sqlite:///"):
        named["the catalog"] = Path(places.lake.uri.removeprefix("sqlite:///")).parent
    return [
        f"{what} ({place}: {usage.free >> 10} kB of {usage.total >> 20} MB free)"
        for what, place in named.items()
        if (usage := room_at(place)) is not None
        and usage.free < min(below_bytes, usage.total * _FULL_BELOW_PART)
    ]


def room_at(place: Path) -> shutil._ntuple_diskusage | None:
    """The disk that a place is on, or will be on."""
    there = next((folder for folder in (place, *place.parents) if folder.exists()), None)
    return None if there is None else shutil.disk_usage(there)


def _needed(places: Places) -> str:
    """About how much the next batch takes: what the source has written since the lake's position."""
    try:
        behind = source_position(places.source) - places.position()
    except (SlotlakeError, OSError):
        return ""
    return f"The lake is {max(behind, 0) / 1e6:.1f} MB of WAL behind, and needs about as much in each place. "
