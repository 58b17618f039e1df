"""The change log in an object store: what the steps of a batch share when they run on different machines.

The folder of this machine stays what decoder/ and spark/ work with.  The store has the same, each part
whole or not at all::

    batches/<batch>               the batch's files in one archive; large files are named, not contained
    batches/<batch>.<sidecar>     its sidecar, likewise
    batch-files/<random>/<file>   a large file, uploaded before the archive that names it
    prepared/<file>               a prepared transaction

An archive is written last, under the condition that it is not there yet.  The names sort so that one list
from a batch on shows all that matters now: `refresh` makes the folder equal to that, and `save` brings to the
store what is new here.  Invariants: what is applied or confirmed was saved before; what is only here was
never applied, and the slot still has it, so `refresh` removes it.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import secrets
import shutil
import zipfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from slotlake.decoder.assembly.prepared import DIRECTORY as PREPARED
from slotlake.decoder.changelog.batches import MANIFEST, batch_positions
from slotlake.decoder.changelog.incoming import incoming_path, make_incoming, release_renamed
from slotlake.decoder.changelog.writer import sync_path, writing
from slotlake.decoder.errors import ChangeLogError
from slotlake.decoder.failpoints import reach
from slotlake.infra.state.notes import STORED
from slotlake.infra.state.own_keys import register_own
from slotlake.spark.lake import LakeSettings
from slotlake.spark.storage import stores
from slotlake.spark.storage.base import StoredFile
from slotlake.spark.storage.location import Location

_BATCHES, _FILES = "batches", "batch-files"
_ARCHIVE_BYTES: Final = 4 << 20
_LARGE: Final = "large.json"  # in an archive: the large files' names and their folder
_AT_ONCE: Final = 4
_COPY_BYTES: Final = 4 << 20


class StoredChangeLog:
    """A pipeline's change log in an object store, and the folder of this machine that follows it.

    Args:
        root: where it is.
        folder: the change log's folder on this machine.
    """

    def __init__(self, root: Location, folder: Path) -> None:
        self.root = root
        self._folder = folder
        self._store = stores.store_of(root)
        self._note = STORED.of(folder)
        self._from: int | None = None  # not refreshed yet
        self._seen: set[str] = set()

    @classmethod
    def of(cls, lake: LakeSettings, path: str, pipeline: str, folder: Path) -> StoredChangeLog:
        """Return the change log of a pipeline.

        Args:
            lake: has the store's endpoint and keys.
            path: of the pipeline file, a place in an object store.
            pipeline: its name; pipelines can share the place.
            folder: the change log's folder on this machine.
        """
        location = Location(path.rstrip("/"))
        root = Location(f"{location.bucket}/{location.key}".rstrip("/")) / pipeline
        register_own(lake, root)
        return cls(root, folder)

    # -- both sides -----------------------------------------------------------------------------------

    def refresh(self, start: int) -> None:
        """Make the folder equal to the store, from a batch on.

        Args:
            start: the LSN at which the last published batch starts; 0 for all.

        Raises:
            LakeError: the store does not answer, or refuses.
            ChangeLogError: the folder cannot be written.
        """
        if not self._note.path.exists():
            self._bring_all()
        self._from = start
        listed = {self._name(file): file for file in self._listed(f"{_BATCHES}/{start:016X}")}
        known = {name: each for name, each in self._known().items() if name in listed}
        for name in self._present() - listed.keys():
            _remove(self._path(name))
        for name, file in sorted(listed.items()):
            if not self._path(name).exists() or known.get(name, ["", ""])[1] != file.version:
                known[name] = [self._fetch(name, file), file.version]
        self._write_note(known)
        self._seen = self._present()

    def _bring_all(self) -> None:
        """Bring to the store what it lacks: the pipeline's change log was a folder until now."""
        self._from, stored = 0, {self._name(file) for file in self._store.files(self.root)}
        for name in sorted(self._present() - stored):
            self._upload(name, replaces=False)

    def save(self) -> None:
        """Bring to the store what is new in the folder, and remove what was removed here.

        Raises:
            LakeError: the store does not answer, or refuses.
            ChangeLogError: another machine has pulled the same batch meanwhile.
        """
        if self._from is None:
            return
        known, present = self._known(), self._present()
        if gone := sorted(self._seen - present):
            self.forget(gone)
            known = self._known()
        changed = False
        for name in sorted(present, key=lambda name: (not name.startswith(PREPARED), name)):
            signature = _signature(self._path(name))
            before = known.get(name)
            if before is None or before[0] != signature:
                known[name] = [signature, self._upload(name, replaces=before is not None)]
                changed = True
                reach("changelog.stored")
        if changed or not self._note.path.exists():
            self._write_note(known)
        self._seen = present

    def forget(self, names: Iterable[str]) -> None:
        """Remove batches, sidecars or prepared transactions from the store; missing ones are fine.

        Args:
            names: as the folder has them; a batch with its sidecar.
        """
        known = self._known()
        for name in names:
            location = self._location(name)
            large = self._large_files(location) if batch_positions(name[:33]) else []
            self._store.remove([location])  # first: what it names is then nobody's
            self._store.remove(large)
            known.pop(name, None)
        self._write_note(known)

    def fetch(self, wanted: Callable[[str], bool], start: int = 0) -> None:
        """Bring older batches of the store, and their sidecars, into the folder.

        Args:
            wanted: asked with the name of each batch from ``start`` on.
            start: an LSN.
        """
        known = self._known()
        for file in self._listed(f"{_BATCHES}/{start:016X}"):
            name = self._name(file)
            if not self._path(name).exists() and wanted(name.partition(".")[0]):
                known[name] = [self._fetch(name, file), file.version]
        self._write_note(known)

    def forget_older(self, position: int, oldest: float) -> int:
        """Remove published batches that were written long ago, also those that this machine never had.

        Args:
            oldest: seconds since 1970; what was written before it goes.
        """
        old = {self._name(file): file for file in self._store.files(self.root) if file.modified < oldest}
        ends = {name: batch_positions(name.partition(".")[0]) for name in old}
        batches = {name: each[1] for name, each in ends.items() if each is not None}
        names = [name for name, end in batches.items() if end <= position]
        self.forget(names)
        for name in names:
            _remove(self._path(name))
        if len(names) == len(
            batches
        ):  # then no old batch needs an old large file: killed runs have left them
            self._store.remove([f.location for name, f in old.items() if name.startswith(f"{_FILES}/")])
        return len(names)

    def sizes(self) -> tuple[int, int]:
        """Return how many batches the store has, and the bytes of all that belongs to the change log."""
        files = list(self._store.files(self.root))
        whole = [file for file in files if batch_positions(self._name(file)) is not None]
        return len(whole), sum(file.size for file in files)

    def remove_all(self) -> None:
        """Remove the change log from the store."""
        self._store.remove_tree(self.root)
        self._from = None

    # -- one of them ----------------------------------------------------------------------------------

    def _upload(self, name: str, *, replaces: bool) -> str:
        """Write it to the store, and return its version there."""
        path, location = self._path(name), self._location(name)
        if path.is_file():
            self._store.put(path, location)  # a repeated pull writes the same; there is no moment without it
            return ""
        folder = self.root / _FILES / secrets.token_hex(8)
        small, large = _by_size(path)
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as contents:
            for inside in small:
                contents.writestr(zipfile.ZipInfo(inside), (path / inside).read_bytes())
            contents.writestr(zipfile.ZipInfo(_LARGE), json.dumps({"folder": folder.name, "files": large}))
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(lambda inside: self._store.put(path / inside, folder / inside), large))
        reach("changelog.uploaded")
        return self._write(location, archive.getvalue(), replaces=replaces)

    def _write(self, location: Location, content: bytes, *, replaces: bool) -> str:
        if replaces:
            self._store.remove([location])
        try:
            return self._store.write_new(location, content)
        except FileExistsError:
            raise ChangeLogError(
                "another machine has pulled this batch meanwhile",
                where=str(location),
                way_out="run the same command again: it goes on with the batch of the other machine",
            ) from None

    def _fetch(self, name: str, file: StoredFile) -> str:
        """Write it to the folder as the store has it, and return its signature."""
        content, path = self._store.read(file.location), self._path(name)
        incoming = incoming_path(self._folder, f"{secrets.token_hex(4)}")
        with writing(incoming):
            make_incoming(incoming)
            if name.startswith(f"{PREPARED}/"):
                (incoming / path.name).write_bytes(content)
                path.parent.mkdir(parents=True, exist_ok=True)
                (incoming / path.name).replace(path)
                incoming.rmdir()
            else:
                self._unpack(content, incoming)
                _remove(path)
                incoming.rename(path)
                os.utime(path, (file.modified, file.modified))  # changelog.keep_days counts from there
            release_renamed()
            sync_path(path.parent)
        return _signature(path)

    def _unpack(self, content: bytes, folder: Path) -> None:
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                large = json.loads(archive.read(_LARGE))
                for name in archive.namelist():
                    if name != _LARGE:
                        archive.extract(name, folder)
        except (zipfile.BadZipFile, ValueError, KeyError):
            (folder / MANIFEST).write_bytes(content)  # as damaged here as there: `recover` knows the way out
            return
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            place = self.root / _FILES / large["folder"]
            list(pool.map(lambda name: self._download(place / name, folder / name), large["files"]))

    def _download(self, location: Location, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self._store.open(location) as source, path.open("wb") as target:
                shutil.copyfileobj(source, target, _COPY_BYTES)
        except FileNotFoundError:
            path.unlink(missing_ok=True)  # the batch's own check says that it is missing

    def _large_files(self, location: Location) -> list[Location]:
        try:
            with zipfile.ZipFile(io.BytesIO(self._store.read(location))) as archive:
                large = json.loads(archive.read(_LARGE))
        except (FileNotFoundError, zipfile.BadZipFile, ValueError, KeyError):
            return []
        return [self.root / _FILES / large["folder"] / name for name in large["files"]]

    # -- names ----------------------------------------------------------------------------------------

    def _listed(self, after: str) -> Iterable[StoredFile]:
        return self._store.files(self.root, after)

    def _name(self, file: StoredFile) -> str:
        """``<batch>``, ``<batch>.<sidecar>`` or ``prepared/<file>``."""
        return file.location.removeprefix(f"{self.root}/").removeprefix(f"{_BATCHES}/")

    def _location(self, name: str) -> Location:
        return self.root / name if name.startswith(f"{PREPARED}/") else self.root / _BATCHES / name

    def _path(self, name: str) -> Path:
        return self._folder / name

    def _present(self) -> set[str]:
        """What the folder has, from the batch on from which it follows the store."""
        if not self._folder.is_dir():
            return set()
        prepared = {f"{PREPARED}/{path.name}" for path in (self._folder / PREPARED).glob("*.arrow")}
        names = [path.name for path in self._folder.iterdir()]
        positions = {name: batch_positions(name.partition(".")[0]) for name in names}
        return prepared | {name for name, ends in positions.items() if ends and ends[0] >= (self._from or 0)}

    def _known(self) -> dict[str, list[str]]:
        return {str(name): list(each) for name, each in self._note.mapping().items()}

    def _write_note(self, known: dict[str, list[str]]) -> None:
        with writing(self._note.path):
            self._note.write(known)


def _by_size(path: Path) -> tuple[list[str], list[str]]:
    """The names of the files that fit into an archive, the smallest first, and of those that do not."""
    files = sorted((file.stat().st_size, file) for file in path.rglob("*") if file.is_file())
    totals = itertools.accumulate(size for size, _ in files)
    names = [(str(file.relative_to(path)), total) for (_, file), total in zip(files, totals, strict=True)]
    fits = [total <= _ARCHIVE_BYTES or name.endswith(".json") for name, total in names]
    small = [name for (name, _), fit in zip(names, fits, strict=True) if fit]
    return small, [name for (name, _), fit in zip(names, fits, strict=True) if not fit]


def _signature(path: Path) -> str:
    """Other for another content: of a batch by its manifest, of a sidecar by what it says."""
    files = [path] if path.is_file() else sorted(path.glob("*.json"))
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
