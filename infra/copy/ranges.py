"""The ranges of a shared copy that are done: a note for each, which the first who writes it wins.

    <state>/copying/done/<beginning of the table's copy>/<range>      one line, as of `infra.copy.record`

Machines write these without the pipeline's lock.  Invariant: a note is written once and never changed, after
the files that it names are whole and where they are to be.  So of two machines that have copied one range,
the files of one are the table's, and the other removes its own.
"""

from __future__ import annotations

import json
import os
import secrets
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from slotlake.decoder.changelog.writer import sync_path
from slotlake.decoder.errors import ChangeLogError
from slotlake.infra.state.notes import shared_place


class DoneRanges:
    """The notes of a copy.

    Args:
        folder: where they are, in the pipeline's state folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, beginning: str, part: int, entry: Mapping[str, Any]) -> bool:
        """Note that a range is done.

        Args:
            beginning: of the table's copy, as the record names it.
            part: number of the range.
            entry: what is noted of it.

        Returns:
            False if another machine was first: its files are the table's.

        Raises:
            LakeError: the object store does not answer, or refuses.
            ChangeLogError: the state folder cannot be written.
        """
        path = self._path(beginning, part)
        content = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
        if (place := shared_place(path)) is not None:
            return place[0].write_once(place[1], content)
        try:
            return _written_once(path, content)
        except OSError as error:
            raise ChangeLogError(
                f"what is copied cannot be recorded: {error.strerror}",
                where=str(path.parent),
                way_out="free the disk (or correct its permissions), then run the same command again",
            ) from None

    def look(self) -> dict[str, set[int]]:
        """Return the ranges that are done now: beginning of a table's copy → their numbers."""
        done: dict[str, set[int]] = defaultdict(set)
        if (place := shared_place(self._folder)) is not None:
            names = [name.removeprefix(f"{place[1]}/") for name in place[0].names(place[1])]
        else:
            names = [path.relative_to(self._folder).as_posix() for path in self._folder.glob("*/*")]
        for name in names:
            beginning, _, part = name.partition("/")
            if part.isdigit():
                done[beginning].add(int(part))
        return dict(done)

    def entry(self, beginning: str, part: int) -> dict[str, Any] | None:
        """Return what is noted of a range, as it is now; None if it is not done."""
        path = self._path(beginning, part)
        if (place := shared_place(path)) is not None:
            content = place[0].read_now(place[1])
        else:
            content = path.read_bytes() if path.exists() else None
        return None if content is None else dict(json.loads(content))

    def entries(self, beginning: str, parts: Collection[int]) -> dict[int, dict[str, Any]]:
        """Return what is noted of ranges that `look` has seen, by their numbers."""
        paths = [self._path(beginning, part) for part in sorted(parts)]
        places = [place for path in paths if (place := shared_place(path)) is not None]
        if places:
            contents = places[0][0].read_several([name for _, name in places])
        else:
            contents = [path.read_bytes() for path in paths]
        return {part: json.loads(content) for part, content in zip(sorted(parts), contents, strict=True)}

    def remove(self, beginning: str, parts: Collection[int]) -> None:
        """Remove notes whose files are not there any more; for who has the pipeline's lock."""
        for part in parts:
            path = self._path(beginning, part)
            if (place := shared_place(path)) is not None:
                place[0].remove(place[1])
            else:
                path.unlink(missing_ok=True)

    def _path(self, beginning: str, part: int) -> Path:
        return self._folder / beginning / f"{part:08d}"


def _written_once(path: Path, content: bytes) -> bool:
    path.parent.mkdir(parents=True, exist_ok=True)
    incoming = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        with incoming.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(incoming, path)  # unlike a rename it replaces nothing, on a disk that machines share too
        sync_path(path.parent)
    except FileExistsError:
        return False
    finally:
        incoming.unlink(missing_ok=True)
    return True
