"""Lakes and change logs as versions of slotlake wrote them, kept as archives in tests/vectors/lakes.

A lake's files name each other by their whole address.  So a kept lake lies in a bucket: its addresses
(``s3://lake/kept-1/…``) are the same on every machine, and a test puts the objects into its own server.

An archive's name is the lake's format, and what is special about it: ``1-shapes`` has tables of Iceberg's
format 2, deleted rows that stay, partitions, a sorted table and views, and was maintained.

``python -m tests.e2e.upgrades NAME`` writes ``lake-NAME.tar.xz`` with the code of this checkout.  An archive
that was committed is never written again: it is what that version wrote.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slotlake import Pipeline
from slotlake.infra.local.java import find_java
from slotlake.infra.local.object_store import LocalObjectStore
from slotlake.infra.local.postgres import temporary_postgres
from tests.conftest import ROOT, Database, fresh_database

LAKES = ROOT / "tests" / "vectors" / "lakes"
TABLES = ("public.a", "public.bag", "public.typed")
_BATCHES = (
    """INSERT INTO a SELECT g, 'n', g FROM generate_series(11, 15) g; UPDATE a SET n = -1 WHERE id < 4""",
    """DELETE FROM a WHERE id = 2; UPDATE a SET id = 100 WHERE id = 1; DELETE FROM bag WHERE word = 'twice';
    UPDATE typed SET number = 'NaN', day = 'infinity' WHERE id = 1""",
    """ALTER TABLE a ADD COLUMN later text DEFAULT 'given'; INSERT INTO a VALUES (16, 'wide', 16, 'own')""",
    """TRUNCATE bag; INSERT INTO bag VALUES ('after', 9), (NULL, NULL);
    BEGIN; INSERT INTO a VALUES (17, 'prep', 1, 'x'); PREPARE TRANSACTION 'open'""",
)
_SHAPES: tuple[str, dict[str, str]] = (
    "  format: 2\n  views: true\n",
    {
        "public.a": 'on_delete: mark, partition_by: "bucket(4, id)", sort_by: [n]',
        "public.typed": "on_delete: mark, partition_by: day(moment)",
    },
)
SOURCE = """
CREATE TABLE a (id int PRIMARY KEY, word text, n bigint);
INSERT INTO a SELECT g, 'word ' || g, g FROM generate_series(1, 10) g;
CREATE TABLE bag (word text, n int);
ALTER TABLE bag REPLICA IDENTITY FULL;
INSERT INTO bag VALUES ('once', 1), ('twice', 2), ('twice', 2);
CREATE TABLE typed (id int PRIMARY KEY, number numeric, day date, moment timestamptz, data jsonb, parts int[],
    raw bytea);
INSERT INTO typed
    VALUES (1, 1.5, '2024-02-29', '2024-02-29 12:00:00.123456+00', '{"k": [1, null]}', '{1,NULL}', 'x'),
    (2, NULL, NULL, NULL, NULL, NULL, NULL);
"""


@dataclass(frozen=True)
class KeptLake:
    """One archive: its files, by their names. ``about`` says what each point held, as PostgreSQL's text."""

    name: str
    about: dict[str, Any]
    files: dict[str, bytes]

    @classmethod
    def read(cls, name: str) -> KeptLake:
        """Read an archive.

        Args:
            name: the archive's.
        """
        with tarfile.open(LAKES / f"lake-{name}.tar.xz") as archive:
            members = [each for each in archive if each.isfile()]
            readers = {each.name: archive.extractfile(each) for each in members}
            files = {name: reader.read() for name, reader in readers.items() if reader is not None}
        return cls(name, json.loads(files.pop("about.json")), files)

    @property
    def number(self) -> int:
        """The lake's format."""
        return int(self.name.partition("-")[0])

    def restore(self, folder: Path, store: LocalObjectStore, dsn: str, slot: str) -> Path:
        """Put the lake into a store, and its catalog and change log into a folder; return a pipeline file.

        Args:
            folder: for pipeline file, catalog and state folder.
            store: its bucket gets the objects.
            dsn: of the source that the pipeline is to have.
            slot: the name of its slot.
        """
        put_objects(store, {name: data for name, data in self.files.items() if name.startswith("objects/")})
        for name, data in self.files.items():
            if not name.startswith("objects/"):
                place = folder / name
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(data)
        return write_pipeline_file(folder, self.name, store, dsn, slot)


def names() -> list[str]:
    """The names of the archives that are kept."""
    return sorted(path.name.split(".")[0].removeprefix("lake-") for path in LAKES.glob("lake-*.tar.xz"))


def write_pipeline_file(folder: Path, name: str, store: LocalObjectStore, dsn: str, slot: str) -> Path:
    """Write the pipeline file of a kept lake, and return its path.

    Args:
        folder: where it goes; the catalog lies next to it.
        name: of the archive.
        store: the object store.
        dsn: the source's.
        slot: the slot's name.
    """
    file = folder / "kept.yaml"
    lake, options = _SHAPES if name.endswith("-shapes") else ("", {})
    tables = "\n".join(f"  {table}: {{{options.get(table, '')}}}" for table in TABLES)
    file.write_text(f"""name: kept
source: {{dsn: "{dsn}", publications: [kept], slot: {slot}, two_phase: true}}
lake:
  uri: "sqlite:///lake.db"
  warehouse: "s3://lake/kept-{name}"
  storage: {json.dumps(store.storage)}
  namespace: kept
{lake}mode: [history, append]
tables:
{tables}
""")
    return file


def put_objects(store: LocalObjectStore, objects: dict[str, bytes]) -> None:
    """Put objects into the store's bucket.

    Args:
        store: the server.
        objects: their content, by names that begin with ``objects/``.
    """
    for name, data in objects.items():
        _client(store).put(name.removeprefix("objects/"), data)


def _client(store: LocalObjectStore) -> Any:
    from obstore.store import S3Store

    said = store.storage
    return S3Store(
        "lake",
        endpoint=said["endpoint"],
        region=said["region"],
        access_key_id=said["access_key"],
        secret_access_key=said["secret_key"],
        client_options={"allow_http": True},
    )


def capture(archive: str) -> Path:
    """Write an archive with the code of this checkout, and return its path."""
    with tempfile.TemporaryDirectory() as name, _servers(Path(name)) as (database, store):
        folder = Path(name) / "pipeline"
        folder.mkdir()
        database.execute(SOURCE)
        file = write_pipeline_file(folder, archive, store, database.dsn, "slotlake_kept")
        points = []
        with Pipeline.open(file) as pipeline:
            pipeline.init()
            points.append(_point(pipeline))
            for statements in _BATCHES:
                _execute(database, statements)
                pipeline.sync()
                points.append(_point(pipeline))
            if archive.endswith("-shapes"):
                pipeline.maintain()
        database.execute("ROLLBACK PREPARED 'open'")
        about = {"format": int(archive.partition("-")[0]), "commit": _commit(), "points": points}
        return _pack(archive, folder, store, about)


def _execute(database: Database, statements: str) -> None:
    for part in statements.split("BEGIN;")[:1]:
        database.execute(part)
    if "BEGIN;" in statements:
        with database.connect() as connection:
            for part in ("BEGIN", *statements.split("BEGIN;")[1].split(";")):
                if part.strip():
                    connection.execute(part)


def _point(pipeline: Pipeline) -> dict[str, Any]:
    tables = {name: sorted(pipeline.rows(name), key=str) for name in TABLES}
    return {"lsn": pipeline.status().last_consistent_lsn, "tables": tables}


def _commit() -> str:
    return subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


@contextmanager
def _servers(folder: Path) -> Iterator[tuple[Database, LocalObjectStore]]:
    with (
        temporary_postgres(version=18, conf={"max_prepared_transactions": "5"}) as server,
        fresh_database(server) as database,
        LocalObjectStore(folder / "s3", find_java()) as store,
    ):
        yield database, store


def _pack(archive: str, folder: Path, store: LocalObjectStore, about: dict[str, Any]) -> Path:
    """Write catalog, change log and objects into one archive; no notes of the state folder, and no locks."""
    files = {"about.json": json.dumps(about).encode(), "lake.db": (folder / "lake.db").read_bytes()}
    for path in (folder / ".slotlake" / "kept" / "changelog").rglob("*"):
        if path.is_file():
            files[path.relative_to(folder).as_posix()] = path.read_bytes()
    bucket = store.folder / "objects" / "lake"
    for path in bucket.rglob("*"):
        if path.is_file():
            files[f"objects/{path.relative_to(bucket).as_posix()}"] = path.read_bytes()
    LAKES.mkdir(parents=True, exist_ok=True)
    target = LAKES / f"lake-{archive}.tar.xz"
    with tarfile.open(target, "w:xz", preset=9) as packed:
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            packed.addfile(entry, io.BytesIO(data))
    return target


if __name__ == "__main__":
    made = capture(sys.argv[1])
    print(made, made.stat().st_size)
