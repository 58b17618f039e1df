"""Ranges of three snapshots, brought to the last by the keys that the stream names: none lost, none twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from psycopg import sql

from slotlake.decoder.catalog.publications import SourceTable, source_tables
from slotlake.decoder.copy.parts import Part, plan_parts, whole_part
from slotlake.decoder.copy.table import CopiedFile, CopyCrew, CopyJob
from slotlake.decoder.server.source import SourceSettings, connect
from slotlake.decoder.slots.slot import create_slot
from slotlake.decoder.types.table import column_type, to_text
from slotlake.infra.copy.forward import key_condition, named_keys
from tests.conftest import Database
from tests.decoder.sources import pulled, settings
from tests.decoder.test_copy import Place, texts
from tests.e2e.oracle import source_rows
from tests.e2e.test_init_resumed import fill, write

TABLES = ("big", "odd", "parts")


def copied(source: SourceSettings, snapshot: str, jobs: list[CopyJob]) -> list[CopiedFile]:
    files: list[CopiedFile] = []
    with CopyCrew(source.dsn, snapshot, jobs, done=lambda job, those: files.extend(those)) as crew:
        crew.wait(jobs)
    return files


def read(
    source: SourceSettings,
    snapshot: str,
    plans: dict[SourceTable, list[Part]],
    folder: Path,
    chosen: Callable[[int], bool],
) -> dict[SourceTable, list[CopiedFile]]:
    """The ranges with these numbers."""
    found = {}
    for table, parts in plans.items():
        place = Place(folder / table.table, table)
        place.directory.mkdir(parents=True)
        jobs = [CopyJob(table, place, part, f"p{part.number}") for part in parts if chosen(part.number)]
        found[table] = copied(source, snapshot, jobs)
    return found


def stale_keys(table: SourceTable, keys: pa.Table) -> set[tuple[str, ...]]:
    kinds = {column.name: column_type(column.type_oid, column.typmod) for column in table.columns}
    columns = []
    for i, name in enumerate(table.key):
        exact = keys[f"xn{i}"].combine_chunks() if f"xn{i}" in keys.column_names else None
        columns.append(to_text(keys[f"n{i}"].combine_chunks(), exact, kinds[name]).to_pylist())
    return set(zip(*columns, strict=True))


def test_ranges_of_three_snapshots_become_the_last_one(database: Database, tmp_path: Path) -> None:
    fill(database)
    source = replace(settings(database), publications=("shop",))
    with connect(source.dsn) as connection:
        tables = [table for table in source_tables(connection, ("shop",)) if table.table in TABLES]
        plans = plan_parts(connection, tables, part_bytes=100_000)
    with create_slot(source) as cut:
        start = cut.lsn
        first = read(source, cut.snapshot, plans, tmp_path / "1", lambda number: number % 2 == 0)
    write(database, 1)
    with create_slot(source, temporary=True) as cut:
        second = read(source, cut.snapshot, plans, tmp_path / "2", lambda number: number % 4 == 1)
    write(database, 2)
    with create_slot(source, temporary=True) as cut:
        write(database, 3)
        third = read(source, cut.snapshot, plans, tmp_path / "3", lambda number: number % 4 == 3)
        batch = pulled(source, tmp_path / "log", start, until=cut.lsn)
        for table in tables:
            keys = named_keys(batch, table)
            assert keys is not None
            assert keys.num_rows
            stale = stale_keys(table, keys)
            places = [[column.name for column in table.columns].index(name) for name in table.key]
            rows = texts(table, first[table] + second[table] + third[table])
            kept = [row for row in rows if tuple(row[place] for place in places) not in stale]
            again = Place(tmp_path / "again" / table.table, table)
            again.directory.mkdir(parents=True)
            with connect(source.dsn) as connection:
                condition = key_condition(connection, table, keys)
                job = CopyJob(table, again, whole_part(table), "again", condition)
                read_again = texts(table, copied(source, cut.snapshot, [job]))
                connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
                taken = sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(cut.snapshot))
                connection.execute(taken)
                _, expected = source_rows(connection, table.table)
            assert len(kept) < len(rows)
            assert Counter(kept) + Counter(read_again) == expected
