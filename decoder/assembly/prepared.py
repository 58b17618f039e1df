"""Prepared transactions that wait for their outcome, stored next to the batches of the change log.

Once a position after its PREPARE is confirmed, the server never sends a transaction's changes again: at
COMMIT PREPARED it sends only that message.  So a batch that ends while a transaction is prepared first
stores the transaction here:

    prepared/<position of PREPARE, 16 hex digits>-<xid>.arrow     its messages, an Arrow IPC stream

Invariant: a file is complete or does not exist (it is written under another name, fsynced, renamed).  It has
everything that is needed to read it (the valid relations, too).  It is removed only when the lake is past the
outcome.  If a pull is repeated, it writes the same file again.

COMMIT PREPARED may also come for a transaction that has an id but changed nothing: at its PREPARE older
servers (seen: 16.14) send nothing.  The message does not say which of the two cases it is, or where the
PREPARE was.  A record of the changes decides: each transaction that was stored here is listed in its batch's
manifest, and in the lake (spark/publish/commits.py) until its outcome is there too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from slotlake.decoder.assembly.spool import SCHEMA, Piece
from slotlake.decoder.changelog.batches import Batch, batch_positions, batches
from slotlake.decoder.changelog.writer import sync_path, writing
from slotlake.decoder.errors import ChangeLogError
from slotlake.decoder.lsn import format_lsn, parse_lsn

DIRECTORY = "prepared"
Named: TypeAlias = tuple[str, int]  # gid and xid
Noted: TypeAlias = Callable[[], Iterable[Named]]


@dataclass(frozen=True)
class PreparedId:
    """Identifies a prepared transaction: a gid may be used again, a PREPARE's position is not."""

    gid: str
    xid: int
    prepare_lsn: int

    @property
    def file_name(self) -> str:
        return f"{self.prepare_lsn:016X}-{self.xid}.arrow"

    def entry(self, **more: str) -> dict[str, Any]:
        """The entry for a batch's manifest."""
        return {"gid": self.gid, "xid": self.xid, "prepare_lsn": format_lsn(self.prepare_lsn), **more}


class PreparedStore:
    """The prepared transactions of one slot, in ``<change log>/prepared``.

    Args:
        changelog: the change log's directory.
        origin: system identifier and slot to which the files belong.
        noted: prepared transactions that had changes and whose outcome has not come; without it, any may
            have had changes.
    """

    def __init__(
        self,
        changelog: Path,
        origin: Mapping[str, str],
        noted: Noted | None = None,
    ) -> None:
        self._directory = changelog / DIRECTORY
        self._origin = dict(origin)
        self._noted = noted

    def write(self, which: PreparedId, pieces: Iterable[Piece]) -> Path:
        """Store a transaction on disk; raises ChangeLogError if it cannot be written."""
        final = self._directory / which.file_name
        incoming = self._directory / f".{which.file_name}.{os.getpid()}"
        metadata = {"gid": which.gid, "xid": str(which.xid), "prepare_lsn": format_lsn(which.prepare_lsn)}
        schema = SCHEMA.with_metadata({**metadata, **self._origin})
        with writing(final):
            self._directory.mkdir(parents=True, exist_ok=True)
            with pa.OSFile(str(incoming), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
                for piece in pieces:
                    writer.write_batch(piece.record())
            sync_path(incoming)
            incoming.rename(final)
            sync_path(self._directory)
            sync_path(self._directory.parent)
        return final

    def find(self, gid: str, xid: int, before: int) -> PreparedId | None:
        """Return the newest transaction with that gid and xid prepared before a position, or None.

        Args:
            before: an LSN; only a transaction that was prepared before it counts.
        """
        candidates = [
            which
            for which in self.waiting()
            if which.gid == gid and which.xid == xid and which.prepare_lsn < before
        ]
        return max(candidates, key=lambda which: which.prepare_lsn, default=None)

    def had_changes(self, gid: str, xid: int) -> bool:
        """True if changes of this transaction, which is not on disk, came before; else it was empty."""
        return self._noted is None or (gid, xid) in self._noted()

    def missing(self, gid: str, xid: int, at: str) -> ChangeLogError:
        """The error for a committed prepared transaction whose changes are not on disk.

        Args:
            at: the position of its commit, as text.
        """
        return ChangeLogError(
            f"the prepared transaction {gid!r} (transaction id {xid}) was committed at {at}, but the file "
            "with its changes is missing, and the server does not send them again",
            where=str(self._directory),
            way_out="restore the folder from a copy and run the same command again; else create the lake "
            "again (`slotlake drop`, then `slotlake init`)",
        )

    def waiting(self) -> list[PreparedId]:
        """All transactions on disk, by position."""
        return [which for path in self._paths() if (which := self._identify(path)) is not None]

    def pieces(self, which: PreparedId) -> Iterator[Piece]:
        """A transaction's messages, after the relations that they need."""
        path = self._directory / which.file_name
        with _reading(path), pa.OSFile(str(path), "rb") as file, pa.ipc.open_stream(file) as reader:
            for record in reader:
                yield Piece.read(record)

    def _paths(self) -> list[Path]:
        return sorted(self._directory.glob("*.arrow")) if self._directory.is_dir() else []

    def _identify(self, path: Path) -> PreparedId | None:
        """The transaction in a file; None if it belongs to another slot."""
        with _reading(path), pa.OSFile(str(path), "rb") as file, pa.ipc.open_stream(file) as reader:
            metadata = {k.decode(): v.decode() for k, v in (reader.schema.metadata or {}).items()}
        if any(metadata.get(name) != value for name, value in self._origin.items()):
            return None
        return PreparedId(metadata["gid"], int(metadata["xid"]), parse_lsn(metadata["prepare_lsn"]))


def noted_in(changelog: Path, position: int) -> set[Named]:
    """Transactions that were prepared, with changes, in the batches up to a position, and have no outcome."""
    noted: set[Named] = set()
    for path in batches(changelog):
        ends = batch_positions(path.name)
        if ends is None or ends[1] > position:
            continue
        manifest = Batch.open(path).manifest
        noted |= {(entry["gid"], entry["xid"]) for entry in manifest.get("prepared", ())}
        noted -= {(entry["gid"], entry["xid"]) for entry in manifest.get("resolved", ())}
    return noted


def forget_settled(changelog: Path, position: int) -> None:
    """Remove transactions whose outcome is in the batch that ends at the lake's position."""
    for path in batches(changelog):
        positions = batch_positions(path.name)
        if positions is not None and positions[1] == position:
            for entry in Batch.open(path).manifest.get("resolved", ()):
                which = PreparedId(entry["gid"], entry["xid"], parse_lsn(entry["prepare_lsn"]))
                (changelog / DIRECTORY / which.file_name).unlink(missing_ok=True)


def forget_from(changelog: Path, position: int) -> None:
    """Remove transactions that were prepared at a position or after it: the server sends them again."""
    for path in (changelog / DIRECTORY).glob("*.arrow"):
        if int(path.name.partition("-")[0], 16) >= position:
            path.unlink(missing_ok=True)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn an error about a damaged file into a ChangeLogError."""
    try:
        yield
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise ChangeLogError(
            f"the file of a prepared transaction cannot be read ({type(error).__name__})",
            where=str(path),
            way_out="restore the file from a copy. Without it the lake loses the transaction's changes: copy "
            "its tables again (`slotlake backfill --table`)",
        ) from None
