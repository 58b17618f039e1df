"""What is to be done for one table of a copy, and what is done of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.copy.files import CopiedFile
from slotlake.decoder.copy.parts import Part
from slotlake.decoder.copy.table import CopyJob

if TYPE_CHECKING:
    from slotlake.spark.publish.place import CopyTarget
    from slotlake.spark.tables.schema import TableSchema


@dataclass
class TableWork:
    """What is to be done for one table.

    Attributes:
        fingerprint: what its files depend on (`fingerprint`).
        parts: its ranges.
        done: number of a range → its files, if they are there.
        stale_keys: keys whose rows in these files are read again; None when all is read now.
        jobs: what is still to be read.
        reread_files: files with the rows of the stale keys.
    """

    table: SourceTable
    schema: TableSchema
    target: CopyTarget
    fingerprint: str
    parts: list[Part] = field(default_factory=list)
    done: dict[int, list[CopiedFile]] = field(default_factory=dict)
    stale_keys: pa.Table | None = None
    jobs: list[CopyJob] = field(default_factory=list)
    reread_files: list[CopiedFile] = field(default_factory=list)

    @property
    def files(self) -> list[CopiedFile]:
        """All files of the table."""
        return [file for number in sorted(self.done) for file in self.done[number]] + self.reread_files

    @property
    def names(self) -> set[str]:
        """The names of the files of its ranges."""
        return {file.path.name for files in self.done.values() for file in files}

    @property
    def is_whole(self) -> bool:
        """Whether all its ranges are done."""
        return len(self.done) == len(self.parts)
