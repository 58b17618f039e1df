"""A SQL catalog whose tables several processes make at the same moment."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from slotlake.spark.catalog.sql.catalog import SqlPointers
from slotlake.spark.lake import LakeSettings
from tests.conftest import Database

OPENERS, ROUNDS = 4, 6


def opened_at_once(uris: list[str], folder: Path) -> list[BaseException]:
    """What the openers of new catalogs fail with, all of one catalog at the same moment."""
    failures: list[BaseException] = []
    for uri in uris:
        together = threading.Barrier(OPENERS)

        def opens(at: str = uri, gate: threading.Barrier = together) -> None:
            gate.wait()
            try:
                SqlPointers(LakeSettings("lake", at, folder.as_uri(), "shop")).close()
            except Exception as failure:  # noqa: BLE001 - each is told of
                failures.append(failure)

        threads = [threading.Thread(target=opens) for _ in range(OPENERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return failures


def test_several_may_begin_a_catalog_in_sqlite(tmp_path: Path) -> None:
    assert opened_at_once([f"sqlite:///{tmp_path}/{n}.db" for n in range(ROUNDS)], tmp_path) == []


@pytest.mark.seconds
def test_several_may_begin_a_catalog_in_postgresql(database: Database, tmp_path: Path) -> None:
    schemas = [f"round{n}" for n in range(ROUNDS)]
    for schema in schemas:
        database.execute(f"CREATE SCHEMA {schema}")
    plain = database.server.url(database.name).replace("postgresql://", "postgresql+psycopg://")
    joined = "&" if "?" in plain else "?"
    uris = [f"{plain}{joined}options=-csearch_path%3D{schema}" for schema in schemas]
    assert opened_at_once(uris, tmp_path) == []
