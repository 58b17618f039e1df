"""A batch through another plugin is the batch through pgoutput, row for row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from slotlake.decoder.changelog.batches import Batch
from slotlake.decoder.errors import ChangeLogError, SlotError, SourceError
from slotlake.decoder.lsn import parse_lsn
from slotlake.decoder.plugins import encode
from slotlake.decoder.plugins.changelog import ChangeLogConsumer, pull_rows
from slotlake.decoder.plugins.delivery import Delivery
from slotlake.decoder.plugins.live import read_file
from slotlake.decoder.plugins.model import Change, Message, Startup, Transaction
from slotlake.decoder.plugins.pgoutput import PgoutputReader
from slotlake.decoder.server.source import SourceSettings
from slotlake.decoder.stream.pull import pull
from slotlake.infra.local.postgres import EmbeddedPostgres, temporary_postgres
from tests.decoder.plugins.collecting import Collecting
from tests.vectors.plugins.capture import HERE, WORKLOAD

pytestmark = pytest.mark.server
# What comes after it does not fit the catalog of now, which only pgoutput does without.
LATER = "ALTER TABLE plain ADD"


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    conf = {"max_wal_senders": "10", "max_replication_slots": "10"}
    with temporary_postgres(version=18, contrib=True, conf=conf) as running:
        yield running


@pytest.fixture(scope="module")
def sources(server: EmbeddedPostgres) -> dict[str, tuple[SourceSettings, int]]:
    """The workload, in a slot of each plugin."""
    setup, _, captured = WORKLOAD.read_text().partition("-- capture\n")
    made = {}
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        _run(connection, setup)
        for plugin in ("pgoutput", "test_decoding"):
            row = connection.execute(
                "SELECT lsn FROM pg_create_logical_replication_slot(%s, %s)", [f"s_{plugin}", plugin]
            ).fetchone()
            assert row is not None
            source = SourceSettings(server.dsn(), ("p",), f"s_{plugin}", messages=True, plugin=plugin)
            made[plugin] = (source, parse_lsn(row[0]))
        _run(connection, captured.partition(LATER)[0])
    return made


def _run(connection: psycopg.Connection[Any], statements: str) -> None:
    for statement in statements.split(";\n"):
        if statement.strip():
            connection.execute(statement.encode())


def test_the_same_batch(sources: dict[str, tuple[SourceSettings, int]], tmp_path: Path) -> None:
    (by_pgoutput, earlier), (by_text, start) = sources["pgoutput"], sources["test_decoding"]
    expected = pull(by_pgoutput, "test", tmp_path / "p", start=earlier)
    found = pull_rows(by_text, "test", tmp_path / "t", start=start, until=expected.end_lsn)
    found.verify()
    assert expected.manifest["changes"] > 60
    for name in ("transactions", "changes", "messages", "first_commit_time", "last_commit_time"):
        assert found.manifest[name] == expected.manifest[name], name
    assert tables(found) == tables(expected)
    again = pull_rows(by_text, "test", tmp_path / "t", start=start)
    assert again.path == found.path, "a batch on disk is used again"


def tables(batch: Batch) -> dict[str, Any]:
    """Per table its description and all rows."""
    found = {}
    for entry, relation in zip(batch.manifest["relations"], batch.relations, strict=True):
        described = {name: entry[name] for name in entry if name not in ("files", "ordinal")}
        rows = batch.relation_table(relation)
        found[f"{entry['schema']}.{entry['table']}"] = (
            described,
            {name: rows[name].to_pylist() for name in sorted(rows.column_names)},
        )
    return {name: _without_nan(found[name]) for name in sorted(found)}


def _without_nan(value: Any) -> Any:
    return repr(value)


def test_an_exact_end_and_the_next_batch(
    sources: dict[str, tuple[SourceSettings, int]], tmp_path: Path
) -> None:
    """Cut at every commit: nothing twice, nothing missing."""
    source, start = sources["test_decoding"]
    whole = pull_rows(source, "test", tmp_path / "whole", start=start)
    collecting = Collecting()
    from slotlake.decoder.plugins.live import read_slot

    read_slot(source, collecting, start=start)
    ends = [t.end_lsn for callback, t, _ in collecting.seen if callback == "commit" and t is not None]
    position, transactions, changes = start, 0, 0
    for end in [*ends[4:40:9], whole.end_lsn]:
        batch = pull_rows(source, "test", tmp_path / "parts", start=position, until=end)
        position = batch.end_lsn
        transactions += batch.manifest["transactions"]
        changes += batch.manifest["changes"]
    assert (transactions, changes) == (whole.manifest["transactions"], whole.manifest["changes"])


def test_generated_columns_and_column_lists(server: EmbeddedPostgres, tmp_path: Path) -> None:
    """What a publication leaves out, other plugins show all the same."""
    batches = []
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        _run(
            connection,
            "CREATE TABLE g (a int, double int GENERATED ALWAYS AS (a * 2) STORED, id int PRIMARY KEY);\n"
            "CREATE TABLE l (secret text, id int PRIMARY KEY, shown text);\n"
            "CREATE PUBLICATION g FOR TABLE g, l (id, shown)",
        )
        starts = [
            connection.execute(
                "SELECT lsn FROM pg_create_logical_replication_slot(%s, %s)", [f"g_{plugin}", plugin]
            ).fetchall()[0][0]
            for plugin in ("pgoutput", "test_decoding")
        ]
        _run(
            connection,
            "INSERT INTO g VALUES (1, DEFAULT, 7);\nINSERT INTO l VALUES ('s', 1, 'x');\n"
            "UPDATE l SET id = 2, secret = 't';\nUPDATE g SET a = 5;\nDELETE FROM l",
        )
    for plugin, start in zip(("pgoutput", "test_decoding"), starts, strict=True):
        source = SourceSettings(server.dsn(), ("g",), f"g_{plugin}", plugin=plugin)
        way = pull if plugin == "pgoutput" else pull_rows
        batches.append(way(source, "test", tmp_path / plugin, start=parse_lsn(start)))
    assert tables(batches[0]) == tables(batches[1])
    assert "secret" not in repr(tables(batches[1]))
    assert len(tables(batches[1])) == 2


def test_what_does_not_fit_the_catalog_is_refused(server: EmbeddedPostgres, tmp_path: Path) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        _run(connection, "CREATE TABLE z (id int PRIMARY KEY, a int);\nCREATE PUBLICATION z FOR TABLE z")
        row = connection.execute(
            "SELECT lsn FROM pg_create_logical_replication_slot('z', 'test_decoding')"
        ).fetchone()
        assert row is not None
        _run(connection, "INSERT INTO z VALUES (1, 2);\nALTER TABLE z DROP COLUMN a")
        source = SourceSettings(server.dsn(), ("z",), "z", plugin="test_decoding")
        with pytest.raises(ChangeLogError, match="the changed columns differ from the catalog") as raised:
            pull_rows(source, "test", tmp_path, start=parse_lsn(row[0]))
        with pytest.raises(SourceError, match="WAL ends at"):  # the server was restored to an earlier moment
            pull_rows(source, "test", tmp_path, start=parse_lsn(row[0]) + (1 << 40))
        assert "public.z; in callback change, transaction " in raised.value.where
        assert list(tmp_path.iterdir()) == []
        connection.execute("ALTER PUBLICATION z SET (publish = 'insert')")
        with pytest.raises(SourceError, match="leaves out an action"):
            pull_rows(source, "test", tmp_path, start=parse_lsn(row[0]))
        _run(connection, "DROP PUBLICATION z;\nCREATE PUBLICATION z FOR TABLE z WHERE (id > 3)")
        with pytest.raises(SourceError, match="row filter"):
            pull_rows(source, "test", tmp_path, start=parse_lsn(row[0]))


@pytest.mark.parametrize(
    ("plugin", "options"),
    [
        ("decoderbufs", {}),
        ("wal2json", {"format-version": "1", "numeric-data-types-as-string": "1"}),
        ("wal2json", {"format-version": "2", "numeric-data-types-as-string": "1"}),  # messages are asked for
    ],
)
def test_a_plugin_that_loses_something_feeds_no_lake(plugin: str, options: dict[str, str]) -> None:
    consumer = ChangeLogConsumer(None, None)  # type: ignore[arg-type]
    with (
        pytest.raises(ChangeLogError, match="would differ from its source"),
        Delivery(consumer, Startup(plugin, options)),
    ):
        pass


def test_what_is_encoded_reads_back() -> None:
    """Every event of the workload, through the encoder and pgoutput's own reader."""
    collecting = Collecting()
    read_file(HERE / "pg15" / "pgoutput.slraw", collecting)
    reader = PgoutputReader()
    described: dict[Any, Any] = {}
    found: list[Any] = []
    for callback, transaction, body in collecting.seen:
        payloads = list(_encoded(callback, transaction, body, described))
        lsn = body.lsn if body is not None else 1
        found += [event for payload in payloads for event in reader.read(payload, lsn)]
    bodies = [body for callback, _, body in collecting.seen if body is not None]
    assert [event.body for event in found if event.body is not None] == bodies
    ends = [transaction for callback, transaction, _ in collecting.seen if callback == "commit"]
    assert [event.transaction for event in found if event.callback == "commit"] == ends


def _encoded(
    callback: str, transaction: Transaction | None, body: Any, described: dict[int, Any]
) -> Iterator[bytes]:
    if callback == "begin":
        assert transaction is not None
        assert transaction.commit_lsn
        assert transaction.commit_time
        yield encode.begin(transaction, transaction.commit_lsn, transaction.commit_time)
        if transaction.origin:
            yield encode.origin(transaction.origin)
    elif callback == "commit":
        assert transaction is not None
        assert transaction.commit_lsn
        assert transaction.end_lsn
        assert transaction.commit_time
        yield encode.commit(transaction.commit_lsn, transaction.end_lsn, transaction.commit_time)
    elif isinstance(body, Message):
        yield encode.message(body)
    else:
        relations = (body.relation,) if isinstance(body, Change) else body.relations
        for relation in relations:
            if described.get(relation.relation_id) != relation:
                described[relation.relation_id] = relation
                yield from encode.description(relation)
        yield encode.change(body) if isinstance(body, Change) else encode.truncate(body)


def test_a_two_phase_slot_of_test_decoding_is_refused(server: EmbeddedPostgres, tmp_path: Path) -> None:
    """What came at PREPARE would be gone when its outcome comes in a later batch."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        row = connection.execute(
            "SELECT lsn FROM pg_create_logical_replication_slot('two', 'test_decoding', false, true)"
        ).fetchone()
        assert row is not None
        source = SourceSettings(server.dsn(), ("p",), "two", plugin="test_decoding")
        with pytest.raises(SlotError, match="at PREPARE"):
            pull_rows(source, "x", tmp_path, start=parse_lsn(row[0]))
        connection.execute("SELECT pg_drop_replication_slot('two')")
