"""A full disk on the lake's side: the error names the disk, the room that is needed, and the way out.

The change log, Spark, SQLite and Python each report a full disk in their own words; here all get the same way
out.  Invariant: the class of the error stays, and so its exit code; a bare OSError becomes a ChangeLogError.
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

_FULL_DISK_TEXTS = ("no space left on", "disk is full", "disk quota exceeded", "file too large")
_FULL_DISK_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FULL_BELOW_BYTES = 64 << 20
_FULL_BELOW_PART = 0.05


@dataclass(frozen=True)
class Places:
    """The places where a pipeline writes, and how to learn how much it is going to write.

    Attributes:
        position: reads the lake's position.
    """

    file: PipelineFile
    lake: LakeSettings
    source: SourceSettings
    position: Callable[[], int]


@contextmanager
def explain_full_disk(places: Places) -> Iterator[None]:
    """Give errors of a full disk a way out that names the disk and the room that is needed.

    Raises:
        SlotlakeError: the error that was raised inside.
        ChangeLogError: instead of a bare OSError of a full disk.
    """
    try:
        yield
    except SourceError:
        raise  # this is the server's disk, and the message says so
    except SlotlakeError as error:
        if any(words in error.what.lower() for words in _FULL_DISK_TEXTS) or _may_be_full(places, error):
            error.way_out = _way_out(places)
        raise
    except OSError as error:
        if error.errno not in _FULL_DISK_ERRNOS:
            raise
        place = str(error.filename or places.file.state_dir)
        raise ChangeLogError(
            f"a file cannot be written: {error.strerror}", where=place, way_out=_way_out(places)
        ) from None


def _may_be_full(places: Places, error: SlotlakeError) -> bool:
    """Return whether a disk has no room at all: Spark's errors do not say that the disk is full."""
    return isinstance(error, LakeError) and bool(full_places(places, below_bytes=64 << 10))


def _way_out(places: Places) -> str:
    full = full_places(places)
    full_text = f"full: {'; '.join(full)}. " if full else ""
    return (
        f"{full_text}{_needed(places)}Free or enlarge the disk, then run the same command again. slotlake "
        "published and confirmed nothing unfinished; the server keeps all WAL that is not confirmed (see "
        "`slotlake status`)"
    )


def full_places(places: Places, below_bytes: int = _FULL_BELOW_BYTES) -> list[str]:
    """Return the pipeline's places on disks with almost no room, with the free and the total size."""
    places_by_name = {
        "the state folder": places.file.state_dir,
        "the change log": places.file.changelog_dir,
        "temporary files": Path(tempfile.gettempdir()),
    }
    if not places.lake.is_in_bucket:
        places_by_name["the warehouse"] = places.lake.warehouse_path
    if places.lake.uri.startswith("sqlite:///"):
        places_by_name["the catalog"] = Path(places.lake.uri.removeprefix("sqlite:///")).parent
    return [
        f"{what} ({place}: {usage.free >> 10} kB of {usage.total >> 20} MB free)"
        for what, place in places_by_name.items()
        if (usage := room_at(place)) is not None
        and usage.free < min(below_bytes, usage.total * _FULL_BELOW_PART)
    ]


def room_at(place: Path) -> shutil._ntuple_diskusage | None:
    """Return the usage of the disk that a place is on, or will be on."""
    existing = next((folder for folder in (place, *place.parents) if folder.exists()), None)
    return None if existing is None else shutil.disk_usage(existing)


def _needed(places: Places) -> str:
    """Say about how much room the next batch takes: the WAL of the source after the lake's position."""
    try:
        behind = source_position(places.source) - places.position()
    except (SlotlakeError, OSError):
        return ""
    return f"The lake is {max(behind, 0) / 1e6:.1f} MB of WAL behind, and needs about as much in each place. "
