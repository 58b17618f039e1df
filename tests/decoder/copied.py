"""One table copied whole, as the engine does it, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.catalog.vanished import vanished_error
from slotlake.decoder.copy.files import ROWS_PER_FILE
from slotlake.decoder.copy.parts import part_query, plan_parts, whole_part
from slotlake.decoder.copy.table import WORKERS, CopiedFile, CopyCrew, CopyJob, CopyPlace
from slotlake.decoder.server.source import source_session


def copy_table(
    dsn: str,
    snapshot: str,
    table: SourceTable,
    place: CopyPlace,
    *,
    rows_per_file: int = ROWS_PER_FILE,
    workers: int = WORKERS,
    report: Callable[[CopyJob, int, int], None] = lambda *_: None,
) -> list[CopiedFile]:
    """The files, in order; after an error none is left."""
    with source_session(dsn, f"looking at {table.quoted}") as connection:
        parts = plan_parts(connection, [table])[table]
    jobs = [CopyJob(table, place, part, f"copy-{part.number:05d}") for part in parts]
    finished: dict[CopyJob, list[CopiedFile]] = {}
    try:
        with CopyCrew(
            dsn, snapshot, jobs, workers=workers, rows_per_file=rows_per_file, done=finished.__setitem__,
            report=report,
        ) as crew:  # fmt: skip
            crew.wait(jobs)
            if crew.dropped_tables:
                raise vanished_error(table.quoted)
    except BaseException:
        for file in (file for files in finished.values() for file in files):
            file.path.unlink(missing_ok=True)
        raise
    return [file for job in jobs for file in finished[job]]


def copy_query(table: SourceTable) -> str:
    """The COPY command for a whole table."""
    return part_query(table, whole_part(table))
