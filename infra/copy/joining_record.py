"""The record of joining tables on disk, between the syncs over which they are copied.

One file has the lines of all joining tables (`infra.sync.joining_tables`): those of
`infra.copy.record`, and these:

    {"table": oid, "since": {…}}             begins the table again: earlier lines of it are void
    {"table": oid, "noted": [start, end], "keys": file or null, "lost": whether keys cannot tell what changed}
    {"table": oid, "gone": true}             it is published, or joins no more

Invariant: ranges may be brought to a position P only if the noted batches reach, without a gap, from
``since.position`` to P: so a pipeline whose position was moved by anything but pulled batches begins the
table again.  Files of ranges are not read again at each sync: they were on disk before their line was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from slotlake.decoder.changelog.batches import Batch
from slotlake.decoder.changelog.writer import sync_path
from slotlake.decoder.copy.files import CopiedFile
from slotlake.decoder.copy.parts import Part
from slotlake.decoder.errors import ChangeLogError
from slotlake.decoder.failpoints import reach
from slotlake.infra.copy.forward import distinct_keys, named_keys
from slotlake.infra.copy.record import CopyRecord, Recorded, recorded_file
from slotlake.infra.state.notes import StateFile, shared_place

if TYPE_CHECKING:
    from slotlake.infra.opened.open_pipeline import OpenPipeline

JOINING_FOLDER, RECOPYING_FOLDER = "joining", "recopying"
FOLDERS = (JOINING_FOLDER, RECOPYING_FOLDER)


class KeyedBy(NamedTuple):
    """A column of a joining table's key, as it was when its copy began."""

    name: str
    type_oid: int
    typmod: int


@dataclass(frozen=True)
class CopyStart:
    """The beginning of a table's copy.

    Attributes:
        position: LSN of the lake; all that was committed from there on is, or will be, noted.
        visible: what the first snapshot shows, as `pg_snapshot` prints it.
        server: system identifier and timeline.
        columns: of the key.
    """

    schema: str
    table: str
    relation_id: int
    position: int
    visible: str
    server: tuple[str, int]
    columns: tuple[KeyedBy, ...]

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> CopyStart:
        columns = tuple(KeyedBy(*column) for column in fields["columns"])
        return cls(**{**fields, "server": tuple(fields["server"]), "columns": columns})


@dataclass
class JoiningTable:
    """A table that is being copied.

    Attributes:
        noted: start and end of the batches whose keys are noted.
        keys: files with these keys.
        lost: a batch changed rows in a way that no key names.
    """

    since: CopyStart
    noted: list[tuple[int, int]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    lost: bool = False

    def reaches(self, position: int) -> bool:
        """Return whether all that was committed before this position is noted."""
        at = self.since.position
        for start, end in sorted(self.noted):
            if start > at:
                break
            at = max(at, end)
        return self.since.position <= position <= at


class _RecordedUnread(Recorded):
    """A recorded table whose files are taken as intact if they are there with their size."""

    def whole(
        self, directory: Path, delivered: Mapping[str, int] | None = None
    ) -> dict[int, list[CopiedFile]]:
        names = {str(file["name"]) for files in self.files.values() for file in files}
        sizes = {name: _size(directory / name) for name in names} if delivered is None else delivered
        return {
            number: [recorded_file(directory, file) for file in files]
            for number, files in self.files.items()
            if all(sizes.get(str(file["name"])) == file["bytes"] for file in files)
        }


class JoiningRecord(CopyRecord):
    """The record of all joining tables of a pipeline; another one is of those that are copied again.

    Attributes:
        beginning: OID → where the copy of a table begins that begins now.
        unrecorded: OIDs of tables that are copied in one go: nothing of them is recorded.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.beginning: dict[int, CopyStart] = {}
        self.unrecorded: set[int] = set()

    @classmethod
    def of(cls, pipeline: OpenPipeline) -> JoiningRecord:
        return cls(pipeline.file.state_dir / JOINING_FOLDER)

    @property
    def joining(self) -> dict[int, JoiningTable]:
        """The tables that are being copied, by relation id."""
        tables: dict[int, JoiningTable] = {}
        for line in self._valid_lines():
            if "since" in line:
                tables[line["table"]] = JoiningTable(CopyStart.read(line["since"]))
            elif "noted" in line:
                table = tables[line["table"]]
                start, end = line["noted"]
                table.noted.append((start, end))
                table.keys += [line["keys"]] if line["keys"] else []
                table.lost |= line["lost"]
        return tables

    @property
    def tables(self) -> dict[int, Recorded]:
        """As the base's; their files are not read."""
        return {oid: _RecordedUnread(**vars(table)) for oid, table in super().tables.items()}

    @property
    def complete(self) -> set[int]:
        """Tables of which all ranges are there, by relation id."""
        return {oid for oid, table in self.tables.items() if len(table.files) == len(table.parts)}

    def begin(self, table: int, fingerprint: str, partitions: str, parts: Sequence[Part]) -> None:
        """Begin a table, unless it is copied in one go.

        Args:
            table: OID of the source table; `beginning` says where its copy begins.
            fingerprint: what its files depend on.
            partitions: as `TableSchema.partitions`.
            parts: the ranges in which it is copied.
        """
        if table in self.unrecorded:
            return
        self._append({"table": table, "since": asdict(self.beginning[table])})
        super().begin(table, fingerprint, partitions, parts)

    def done(
        self,
        table: int,
        part: int,
        files: Iterable[CopiedFile],
        deliver: Callable[[], None] = lambda: None,
    ) -> None:
        """Record a range, unless the table is copied in one go.

        Args:
            table: OID of the source table.
            part: number of the range.
            files: its files, which are on disk.
            deliver: called before they are recorded; brings them to an object store.
        """
        if table in self.unrecorded:
            deliver()
        else:
            super().done(table, part, files, deliver)

    def note(self, table: int, positions: tuple[int, int], keys: pa.Table | None) -> None:
        """Record which rows of a table a batch changed.

        Args:
            table: OID of the source table.
            positions: LSNs at which the batch starts and ends.
            keys: the keys of these rows, as `named_keys` gives them; None if no key names them.

        Raises:
            ChangeLogError: the keys cannot be written to disk.
        """
        name = None
        if keys is not None and keys.num_rows:
            name = f"{table}-{positions[0]:016X}-{positions[1]:016X}.parquet"
            _write(keys, self.folder / name)
        self._append({"table": table, "noted": positions, "keys": name, "lost": keys is None})

    def changed(self, table: int) -> pa.Table | None:
        """All keys noted of a table; None if they cannot say what changed, or their files were removed."""
        joining = self.joining[table]
        if joining.lost:
            return None
        try:
            return distinct_keys([_read(self.folder / name) for name in joining.keys])
        except (OSError, pa.ArrowException):
            return None

    def forget_table(self, table: int) -> None:
        """Record nothing of a table any more; its copied files are the caller's matter."""
        joining = self.joining.get(table)
        if joining is None:
            return
        self._append({"table": table, "gone": True})
        for name in joining.keys:
            StateFile(self.folder / name).remove()
        if not self.joining:
            self.forget()

    def _lines(self) -> list[dict[str, Any]]:
        return [line for line in self._valid_lines() if line.keys() & {"fingerprint", "more", "part"}]

    def _valid_lines(self) -> list[dict[str, Any]]:
        """All lines that no later line made void."""
        lines: list[dict[str, Any]] = []
        for line in super()._lines():
            if "since" in line or "gone" in line:
                lines = [each for each in lines if each["table"] != line["table"]]
            if "gone" not in line:
                lines.append(line)
        return lines


def _read(path: Path) -> pa.Table:
    if (place := shared_place(path)) is None:
        return pq.read_table(path)
    content = place[0].read(place[1])
    if content is None:
        raise FileNotFoundError(path)
    return pq.read_table(pa.BufferReader(content))


def _write(keys: pa.Table, path: Path) -> None:
    if (place := shared_place(path)) is not None:
        content = pa.BufferOutputStream()
        pq.write_table(keys, content, compression="zstd")
        place[0].write(place[1], content.getvalue().to_pybytes())
        return
    try:
        pq.write_table(keys, path, compression="zstd")
        sync_path(path)
        sync_path(path.parent)
    except OSError as error:
        raise ChangeLogError(
            f"what a batch changes in a table that joins cannot be noted: {error.strerror or error}",
            where=str(path),
            way_out="free the disk (or correct its permissions), then run the same command again",
        ) from None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


def note_changes(state_dir: Path, batch: Batch) -> None:
    """Note which rows a batch changes of tables that are being copied, before anyone applies it."""
    if batch.empty:
        return
    for folder in FOLDERS:
        _note_in(JoiningRecord(state_dir / folder), batch)


def _note_in(record: JoiningRecord, batch: Batch) -> None:
    for relation_id, table in record.joining.items():
        positions = (batch.start_lsn, batch.end_lsn)
        if batch.end_lsn > table.since.position and positions not in table.noted:
            unread = (table.since.schema, table.since.table) in batch.unreadable
            record.note(relation_id, positions, None if unread else named_keys(batch, table.since))
            reach("join.noted")


def joining_table_names(pipeline: OpenPipeline) -> set[tuple[str, str]]:
    """Schema and name of the tables that are half copied."""
    return {(t.since.schema, t.since.table) for t in JoiningRecord.of(pipeline).joining.values()}
