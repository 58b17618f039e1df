"""PostgreSQL's own regression SQL as what a source does: all its tables are published, and taken to a lake.

All files of the parallel schedule run in its order, by psql, as `pg_regress` does it; the C library of the
tests is not there.  What is written and altered is taken after each file, or all the time.  Tables without a
primary key get REPLICA IDENTITY FULL by an event trigger: else their publication would refuse their UPDATEs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psycopg
import pyarrow as pa
import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import SlotlakeError, SourceUnavailableError
from tests.conftest import Database
from tests.debian_postgres import debian_postgres
from tests.e2e.readers import duckdb_connection, pyiceberg_catalog
from tests.roads import judge

DATABASE: Final = "regression"
# What a table may be set aside for at the end; all else is wrong.
REFUSALS: Final = ("the table has no published column",)
_SKIPPED: Final = ("psql_pipeline",)  # it waits for ever for a psql that does not know its commands
_FILE_SECONDS_MAX: Final = 300
_SETTINGS: Final = ("lc_messages", "lc_monetary", "lc_numeric", "lc_time")
# Generated columns are not published, though some servers' view lists them.
_PUBLISHED: Final = """
SELECT schemaname, tablename, (
  SELECT array_agg(attname::text) FROM pg_attribute
  WHERE attrelid = format('%I.%I', schemaname, tablename)::regclass
    AND attname = ANY(attnames) AND attgenerated = ''
)
FROM pg_publication_tables WHERE pubname = 'shop'
"""
_PREPARED: Final = """
CREATE FUNCTION public.give_identity() RETURNS event_trigger LANGUAGE plpgsql AS $$
DECLARE made record;
BEGIN
  FOR made IN
    SELECT d.object_identity FROM pg_event_trigger_ddl_commands() d
    JOIN pg_catalog.pg_class c ON c.oid = d.objid AND d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass
    WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
      AND NOT EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)
  LOOP
    EXECUTE pg_catalog.format('ALTER TABLE %s REPLICA IDENTITY FULL', made.object_identity);
  END LOOP;
EXCEPTION WHEN OTHERS THEN NULL;
END $$;
CREATE EVENT TRIGGER give_identity ON ddl_command_end
  WHEN TAG IN ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO') EXECUTE FUNCTION public.give_identity();
CREATE TABLE public.first (k int PRIMARY KEY);
CREATE PUBLICATION shop FOR ALL TABLES WITH (publish_via_partition_root = true);
"""


def psql() -> str:
    """Return the path of the program; skip the test where there is none."""
    if (program := shutil.which("psql")) is not None:
        return program
    program = str(debian_postgres(19) / "psql")
    if not Path(program).exists():
        pytest.skip("psql is not here")
    return program


def regression_database(made_in: Database) -> Database:
    """Make the database in which the tests run."""
    with made_in.connect() as connection:
        connection.execute(
            f"CREATE DATABASE {DATABASE} TEMPLATE template0 LOCALE 'C' ENCODING 'UTF8'".encode()
        )
        for name in _SETTINGS:
            connection.execute(f"ALTER DATABASE {DATABASE} SET {name} TO 'C'".encode())
    database = Database(made_in.server, DATABASE)
    database.execute(_PREPARED)
    return database


@dataclass
class Regression:
    """One pass through the files.

    Attributes:
        source: the folder `src/test/regress`.
        wrong: what was found.
        counts: of files, of statements that PostgreSQL refused, of syncs, of tables.
    """

    source: Path
    database: Database
    file: Path
    folder: Path
    psql: str
    wrong: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def names(self) -> list[str]:
        """The files in the order of the schedule."""
        lines = (self.source / "parallel_schedule").read_text().splitlines()
        names = [name for line in lines if line.startswith("test:") for name in line.split()[1:]]
        return [
            name for name in names if name not in _SKIPPED and (self.source / "sql" / f"{name}.sql").exists()
        ]

    def run(self, names: Sequence[str], *, all_the_time: bool) -> None:
        """Run files, and take what they do: after each, or all the time."""
        with Pipeline.open(self.file) as pipeline:
            pipeline.init()
        done = threading.Event()
        syncing = threading.Thread(target=self._until, args=(done,))
        if all_the_time:
            syncing.start()
        try:
            for name in names:
                self._run_file(name)
                if not all_the_time:
                    self._sync(f"after {name}")
        finally:
            done.set()
            if all_the_time:
                syncing.join()

    def _until(self, done: threading.Event) -> None:
        while not done.is_set():
            self._sync("all the time")

    def _run_file(self, name: str) -> None:
        environment = {
            **os.environ, "PGTZ": "America/Los_Angeles", "PGDATESTYLE": "Postgres, MDY", "PG_DLSUFFIX": ".so",
            "PG_ABS_SRCDIR": str(self.source), "PG_ABS_BUILDDIR": str(self.folder), "PG_LIBDIR": "/none",
        }  # fmt: skip
        for made in ("results", "testtablespace"):
            (self.folder / made).mkdir(exist_ok=True)
        output = self.folder / "results" / f"{name}.out"
        command = [self.psql, "-X", "-a", "-q", "-v", "HIDE_TABLEAM=on", "-v", "HIDE_TOAST_COMPRESSION=on"]
        with (self.source / "sql" / f"{name}.sql").open() as given, output.open("w") as written:
            subprocess.run(
                [*command, "-d", self.database.dsn], stdin=given, stdout=written, stderr=subprocess.STDOUT,
                env=environment, timeout=_FILE_SECONDS_MAX, check=False,
            )  # fmt: skip
        self.counts["files"] += 1
        self.counts["refused by PostgreSQL"] += output.read_text("latin-1").count("\nERROR:")
        self._wait_for_the_server()

    def _wait_for_the_server(self) -> None:
        """Some of the files end a server that lacks a library; it recovers."""
        last = time.monotonic() + 60
        while True:
            try:
                self.database.connect().close()
            except psycopg.OperationalError:
                if time.monotonic() > last:
                    raise
                time.sleep(0.2)
            else:
                return

    def _sync(self, when: str) -> None:
        self.counts["syncs"] += 1
        try:
            with Pipeline.open(self.file) as pipeline:
                pipeline.sync()
        except SourceUnavailableError:
            self.counts["syncs without the source"] += 1
            time.sleep(0.2)
        except SlotlakeError as error:
            self.wrong.append(f"sync {when}: {error}")
        except Exception:  # noqa: BLE001  (all of it is told)
            self.wrong.append(f"sync {when}: {traceback.format_exc()}")

    def judge(self) -> None:
        """Verify, and compare all tables by a reader that shares no code."""
        for _ in range(6):  # a table that is new joins at the next one
            self._sync("at the end")
        with Pipeline.open(self.file) as pipeline:
            tables = {entry.table: entry.lake_table for entry in pipeline.status().tables}
            refused = {
                table: [*result.totals] for table, result in pipeline.verify().tables.items() if result.totals
            }
            reasons = pipeline.sync().set_aside
            catalog = pyiceberg_catalog(pipeline.lake)
        for table, totals in refused.items():
            if not any(why in reasons.get(table, "") for why in REFUSALS):
                self.wrong.append(f"verify: {table}: {totals}: {reasons.get(table)}")
        duckdb = duckdb_connection("avro", "iceberg")
        for schema, name, columns in self.database.execute(_PUBLISHED):
            spelt = next((each for each in _spelt(schema, name) if each in tables), None)
            if spelt is None:
                self.wrong.append(f"{schema}.{name} is published, and status knows no such table")
            elif spelt not in refused:
                location = catalog.load_table(tables[spelt]).metadata_location
                found = duckdb.execute(f"SELECT * FROM iceberg_scan('{location}')").to_arrow_table()
                self._compare(spelt, columns, found)

    def _compare(self, table: str, columns: Sequence[str], found: pa.Table) -> None:
        names, rows = judge.held(self.database, [table])[table]
        at = [
            i for i, name in enumerate(names) if name in (columns or ())
        ]  # generated ones are not published
        expected: judge.Rows = Counter()
        for row, count in rows.items():
            expected[tuple(row[i] for i in at)] += count
        self.counts["tables"] += 1
        self.counts["rows"] += expected.total()
        if wrong := judge.difference(expected, judge.rows_in(found, [names[i] for i in at])):
            self.wrong.append(f"{table}: {wrong}")


def _spelt(schema: str, name: str) -> list[str]:
    """How a table's name may be written, quoted where it must be."""
    one, other = ((part, '"' + part.replace('"', '""') + '"') for part in (schema, name))
    return [f"{left}.{right}" for left in one for right in other]
