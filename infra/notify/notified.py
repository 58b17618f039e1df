"""What receivers have heard: one value that several machines change, without the pipeline's lock.

    notified/00000012.json    in the state folder, or where the state is in an object store

A change is the next number, which is written only if nobody has written it.  The newest number counts; some
older ones stay, so that who is late meets them.  Invariant: of two who change the same number, one
learns that it was late.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from slotlake.infra.state.notes import SharedState, shared_place

FOLDER: Final = "notified"
_NUMBERS_MAX = 20
_TRIES_MAX = 3


class Notified:
    """The note about what was notified, of one pipeline.

    Args:
        state_dir: its state folder.
    """

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / FOLDER

    def read(self) -> tuple[int, dict[str, Any]]:
        """Return the newest number and its value; 0 and an empty one if nothing was noted.

        Raises:
            OSError: the note, or the store that has it, cannot be read.
        """
        for _ in range(_TRIES_MAX):
            numbers = self._numbers()
            if not numbers:
                return 0, {}
            content = self._content(self._name(numbers[-1]))
            if content is not None:  # else it was removed meanwhile
                return numbers[-1], _mapping(content)
        raise OSError(None, "the note changes faster than it can be read")

    def replace(self, number: int, value: dict[str, Any]) -> bool:
        """Write the value that follows.

        Args:
            number: of the value that was read.

        Returns:
            False: somebody else has changed it meanwhile.

        Raises:
            OSError: it cannot be written.
        """
        if not self._write_once(self._name(number + 1), json.dumps(value, ensure_ascii=False).encode()):
            return False
        self._remove([each for each in self._numbers() if each <= number - _NUMBERS_MAX])
        return True

    def forget(self) -> None:
        """Remove the note; the pipeline was dropped.

        Raises:
            OSError: the store that has it does not answer.
        """
        self._remove(self._numbers())
        with suppress(OSError):
            self._folder.rmdir()

    # -- in the folder, or in the store -------------------------------------------------------------------

    def _place(self) -> SharedState | None:
        place = shared_place(self._folder)
        return None if place is None else place[0]

    def _name(self, number: int) -> str:
        return f"{number:08d}.json"

    def _numbers(self) -> list[int]:
        state = self._place()
        if state is not None:
            names = [name.rpartition("/")[2] for name in state.names(FOLDER)]
        else:
            names = [path.name for path in self._folder.iterdir()] if self._folder.is_dir() else []
        return sorted(int(name[:8]) for name in names if name[:8].isdecimal() and name[8:] == ".json")

    def _content(self, name: str) -> bytes | None:
        state = self._place()
        if state is not None:
            return state.read_now(f"{FOLDER}/{name}")
        try:
            return (self._folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def _write_once(self, name: str, content: bytes) -> bool:
        state = self._place()
        if state is not None:
            return state.write_once(f"{FOLDER}/{name}", content)
        self._folder.mkdir(parents=True, exist_ok=True)
        incoming = self._folder / f".{os.uname().nodename}-{os.getpid()}"
        incoming.write_bytes(content)
        try:
            os.link(incoming, self._folder / name)
        except FileExistsError:
            return False
        finally:
            incoming.unlink()
        return True

    def _remove(self, numbers: list[int]) -> None:
        names = [self._name(number) for number in numbers]
        state = self._place()
        if state is not None:
            state.free.remove([f"{FOLDER}/{name}" for name in names])
        else:
            for name in names:
                (self._folder / name).unlink(missing_ok=True)


def _mapping(content: bytes) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
