"""The objects that have the journal of a pipeline whose machines share no disk, and how they are read.

    journal/<stem>.jsonl            records of one process that works still; it writes it again, with more
    journal/<stem>.done.jsonl       records of one that has ended
    journal/base-<number>.json.gz   what earlier records come to, with the names of the objects that had them
    journal/look.json               the last look, whole

The base with the highest number counts.  It is written under the condition that there is none of that number,
and the objects that it names are removed afterwards; a reader passes over them.  So nothing is counted twice,
whoever is killed where, and a list of the names tells a reader what is new.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from slotlake.infra.state.journal_records import History
from slotlake.infra.state.notes import DROPPED, FreeNotes, NoteSeen

FOLDER: Final = "journal"
LOOK: Final = f"{FOLDER}/look.json"
_DONE, _OPEN = ".done.jsonl", ".jsonl"
_BASE: Final = re.compile(rf"{FOLDER}/base-(\d{{8}})\.json\.gz")
_AT_ONCE: Final = 8
_TRIES_MAX: Final = 4
# A process writes a segment again for some minutes at most (infra.state.shared_journal).
_STILL_WRITTEN_SECONDS: Final = 900.0
_COMPACTED_FROM, _COMPACTED_MIN = 20, 12


class _GoneError(Exception):
    """An object was removed since it was listed: somebody has compacted it."""


def segment_name(stem: str, *, done: bool) -> str:
    """Return the name of a segment.

    Args:
        stem: what no other segment has.
        done: no more is written to it.
    """
    return f"{FOLDER}/{stem}{_DONE if done else _OPEN}"


class StoredJournal:
    """The journal in an object store, as a reader keeps it: what has not changed is not read again.

    Attributes:
        dropped: there is the note that the pipeline was dropped.
    """

    def __init__(self) -> None:
        self.dropped = False
        self.look: dict[str, Any] = {}
        self._contents: dict[str, tuple[str, bytes]] = {}
        self._read: tuple[object, History] = (None, History())

    def read(self, notes: FreeNotes) -> History:
        """Return all that was noted, as it is now.

        Raises:
            OSError: the store does not answer, or the objects are removed faster than they are read.
        """
        for _ in range(_TRIES_MAX):
            listed = notes.listed()
            self.dropped = DROPPED.name in listed
            names = [*_bases(listed)[-1:], *_segments(listed).values()]
            signature = [(name, listed[name].version) for name in names]
            try:
                self._fetch(notes, listed, [*names, *({LOOK} & listed.keys())])
            except _GoneError:
                continue
            self.look = _mapping(self._contents[LOOK][1]) if LOOK in listed else {}
            if signature != self._read[0]:
                self._read = signature, self._added(names)
            return self._read[1]
        raise OSError(None, "the journal's objects are removed faster than they can be read")

    def read_look(self, notes: FreeNotes) -> dict[str, Any]:
        """Return the last look; empty if there was none.

        Raises:
            OSError: the store does not answer.
        """
        return _mapping(notes.read(LOOK) or b"")

    def _fetch(self, notes: FreeNotes, listed: Mapping[str, NoteSeen], names: Sequence[str]) -> None:
        known = self._contents
        missing = [name for name in names if name not in known or known[name][0] != listed[name].version]
        contents = dict(zip(missing, _read_all(notes, missing), strict=True))
        fetched = {name: (listed[name].version, content) for name, content in contents.items()}
        self._contents = {name: fetched.get(name) or known[name] for name in names}

    def _added(self, names: Iterable[str]) -> History:
        contents = {name: self._contents[name][1] for name in names}
        history, _ = _total(contents)
        history.settle(everything=True)
        return history


def compact(notes: FreeNotes) -> bool:
    """Put a base in place of the segments that nobody writes any more, if there are many.

    Returns:
        Whether it did; another machine may have been first.

    Raises:
        OSError: the store does not answer.
    """
    if sum(is_segment(name) for name in notes.known()) < _COMPACTED_FROM:
        return False
    listed = notes.listed()
    bases, segments = _bases(listed), _segments(listed)
    newest = max((listed[name].modified for name in segments.values()), default=0.0)
    ended = [name for name in segments.values() if _is_ended(name, newest - listed[name].modified)]
    if len(ended) < _COMPACTED_MIN:
        return False
    names = [*bases[-1:], *ended]
    try:
        history, named = _total(dict(zip(names, _read_all(notes, names), strict=True)))
    except _GoneError:
        return False
    history.settle(everything=False)
    both = [name for name in listed if is_segment(name) and segments[_stem(name)] in ended]
    content = {**history.content(), "segments": sorted({*both, *(named & listed.keys())})}
    number = int(_BASE.fullmatch(bases[-1])[1]) + 1 if bases else 0  # type: ignore[index]  # `_bases` matched
    packed = gzip.compress(json.dumps(content, ensure_ascii=False).encode(), 5, mtime=0)
    if not notes.write_new(f"{FOLDER}/base-{number:08d}.json.gz", packed):
        return False
    notes.remove([*bases, *both])
    return True


def forget(notes: FreeNotes) -> None:
    """Remove all of a pipeline's journal.

    Raises:
        OSError: the store does not answer.
    """
    notes.remove([name for name in notes.listed() if name.startswith(f"{FOLDER}/")])


def is_segment(name: str) -> bool:
    """Return whether a note is a segment of the journal."""
    return name.startswith(f"{FOLDER}/") and name.endswith(_OPEN)


def _is_ended(name: str, age_seconds: float) -> bool:
    """By the store's clock: how long before the newest segment was it written."""
    return name.endswith(_DONE) or age_seconds > _STILL_WRITTEN_SECONDS


def _bases(listed: Iterable[str]) -> list[str]:
    return sorted(name for name in listed if _BASE.fullmatch(name))


def _segments(listed: Iterable[str]) -> dict[str, str]:
    """Stem → the segment's name; the one that is done, if a killed process has left both."""
    return {
        _stem(name): name
        for name in sorted(listed, key=lambda each: each.endswith(_DONE))
        if is_segment(name)
    }


def _stem(name: str) -> str:
    return name.removesuffix(_DONE).removesuffix(_OPEN)


def _read_all(notes: FreeNotes, names: Sequence[str]) -> list[bytes]:
    def content(name: str) -> bytes:
        read = notes.read(name)
        if read is None:
            raise _GoneError
        return read

    if len(names) < 2:
        return [content(name) for name in names]
    with ThreadPoolExecutor(min(_AT_ONCE, len(names))) as pool:
        return list(pool.map(content, names))


def _total(contents: Mapping[str, bytes]) -> tuple[History, Collection[str]]:
    """What base and segments come to, and the names of the segments that the base has."""
    history, named = History(), set[str]()
    for name, content in contents.items():
        if _BASE.fullmatch(name):
            base = _mapping(gzip.decompress(content))
            history.add_content(base)
            named = {_stem(each) for each in base.get("segments", ())}
    for name, content in contents.items():
        if is_segment(name) and _stem(name) not in named:
            for line in content.splitlines():
                history.add(_mapping(line))
    return history, {f"{stem}{ending}" for stem in named for ending in (_DONE, _OPEN)}


def _mapping(content: bytes) -> dict[str, Any]:
    try:
        value = json.loads(content) if content else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
