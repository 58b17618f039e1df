"""What the tests of this folder share: a source with test_decoding, and what the roads lead through."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from slotlake.infra.local.postgres import EmbeddedPostgres, temporary_postgres
from slotlake.infra.local.runtime import SparkRuntime
from tests.catalogs import postgres_uri
from tests.cluster import SparkCluster
from tests.conftest import Database, fresh_database
from tests.roads.travel import Services


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    """With test_decoding, and little memory for decoding: what a transaction does is streamed early."""
    conf = {"max_wal_senders": "60", "max_replication_slots": "60", "max_prepared_transactions": "5"}
    conf["logical_decoding_work_mem"] = "64kB"
    with temporary_postgres(version=18, contrib=True, conf=conf) as running:
        yield running


@pytest.fixture(scope="module")
def source(server: EmbeddedPostgres) -> Iterator[Database]:
    with fresh_database(server) as made:
        yield made


@pytest.fixture(scope="module")
def services(
    server: EmbeddedPostgres,
    session: Any,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Services]:
    folder = tmp_path_factory.mktemp("roads")
    with ExitStack() as stack:
        yield Services(
            folder,
            lambda: request.getfixturevalue("object_store"),
            lambda: postgres_uri(stack.enter_context(fresh_database(server))),
            _rest_servers(stack, folder, request),
            lambda: request.getfixturevalue("connect"),
            lambda: request.getfixturevalue("connect_to_cluster"),
        )


@pytest.fixture(scope="session")
def connect_to_cluster(
    spark_runtime: SparkRuntime, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Mapping[str, str]]]:
    """The address of a Spark Connect server with executors on two machines, and what holds its token."""
    with SparkCluster(tmp_path_factory.mktemp("cluster"), spark_runtime) as running:
        yield running.connect()


def _rest_servers(stack: ExitStack, folder: Path, request: pytest.FixtureRequest) -> Callable[[bool], str]:
    running: dict[bool, str] = {}

    def uri(in_s3: bool) -> str:
        if in_s3 not in running:
            from tests.spark.rest_catalog import LocalRestCatalog

            store = request.getfixturevalue("object_store") if in_s3 else None
            server = LocalRestCatalog(folder / f"rest_{in_s3}", store=store)
            running[in_s3] = stack.enter_context(server).uri
        return running[in_s3]

    return uri
