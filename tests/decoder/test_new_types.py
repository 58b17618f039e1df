"""Types that are made while a stream runs, or dropped before it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slotlake.decoder.changelog.batches import Batch
from slotlake.decoder.changelog.writer import BatchIdentity
from slotlake.decoder.errors import ProtocolError
from slotlake.decoder.plugins.jsonlines import JsonLines, lines_of
from slotlake.decoder.plugins.live import slot_steps
from slotlake.decoder.server.source import SourceSettings, identify
from slotlake.decoder.slots.slot import create_slot, drop_slot
from slotlake.decoder.stream.options import negotiate
from slotlake.decoder.stream.puller import Puller
from slotlake.decoder.types.catalog import TypeCatalog
from slotlake.infra.local.postgres import Version
from tests.conftest import Database
from tests.decoder.sources import insert_position, replayed

LATER = {
    "mood": "CREATE TYPE mood AS ENUM ('sad', 'ok \"then\"')",
    "pair": "CREATE TYPE pair AS (a int, m mood, t text)",
    "span": "CREATE TYPE span AS RANGE (subtype = float8)",
    "small": "CREATE DOMAIN small AS int CHECK (VALUE < 100)",
    "hstore": "CREATE EXTENSION hstore",
    "labels": "CREATE DOMAIN labels AS hstore",
}
VALUES = {
    "mood": "'sad'",
    "mood[]": '\'{sad,NULL,"ok \\"then\\""}\'',
    "pair": "ROW(1, 'sad', 'a b')",
    "pair[]": "ARRAY[ROW(1, NULL, 'x,y')::pair]",
    "span": "'[1.5,2)'",
    "small": "7",
    "small[]": "'{7,8}'",
    "hstore": "'a=>1, b=>NULL'",
    "labels": "'c=>\"d e\"'",
}


@pytest.fixture
def database(database_on: Callable[[Version], Database]) -> Iterator[Database]:
    made = database_on(15)
    made.execute("CREATE PUBLICATION p FOR ALL TABLES; CREATE TABLE before (id int PRIMARY KEY)")
    yield made
    for binary in (False, True):
        drop_slot(settings(made, binary=binary))


def settings(database: Database, *, binary: bool, **more: Any) -> SourceSettings:
    return SourceSettings(database.dsn, ("p",), f"{database.name}_{binary}".lower(), binary=binary, **more)


def puller(database: Database, folder: Path, *, binary: bool) -> Puller:
    source = settings(database, binary=binary)
    with create_slot(source) as made:
        start = made.lsn
    server = identify(source.dsn)
    identity = BatchIdentity(
        "test", server.system_identifier, server.timeline, database.name, source.slot, "15"
    )
    return Puller(source, negotiate(source, 150000), folder / str(binary), identity, start)


def make_all(database: Database, *, transactions: bool) -> None:
    """All types, then a table with them and a row, in one transaction or in many."""
    columns = ", ".join(f"c{i} {kind}" for i, kind in enumerate(VALUES))
    texts = ", ".join(f"{value}::{kind}" for kind, value in VALUES.items())
    statements = [*LATER.values(), f"CREATE TABLE t (id int PRIMARY KEY, {columns})"]
    statements += [f"INSERT INTO t VALUES ({row}, {texts})" for row in range(3)]
    with database.connect() as connection:
        if not transactions:
            connection.execute("BEGIN")
        for statement in statements:
            connection.execute(statement.encode())
        if not transactions:
            connection.execute("COMMIT")


def next_batches(database: Database, pullers: list[Puller]) -> list[Batch]:
    until = insert_position(database)
    return [each.next_batch(until) for each in pullers]


@pytest.mark.parametrize("transactions", [False, True], ids=["in one transaction", "in many"])
def test_a_type_that_is_made_while_the_stream_runs(
    database: Database, tmp_path: Path, transactions: bool
) -> None:
    with (
        puller(database, tmp_path, binary=False) as text,
        puller(database, tmp_path, binary=True) as binary,
    ):
        database.execute("INSERT INTO before VALUES (1)")
        assert [batch.changes for batch in next_batches(database, [text, binary])] == [1, 1]
        make_all(database, transactions=transactions)
        one, other = next_batches(database, [text, binary])
    assert replayed([other], table="t") == replayed([one], table="t")
    assert len(replayed([one], table="t")) == 3
    (relation,) = (each for each in other.relations if each.table == "t")
    assert {column.type_name for column in relation.columns} >= {
        "public.mood",
        "public.hstore",
        "public.span",
    }


def test_only_unknown_types_are_asked_for(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    with puller(database, tmp_path, binary=True) as binary:
        import slotlake.decoder.catalog.source_types as module
        from slotlake.decoder.types.catalog import load_types

        def asking(*arguments: Any) -> Any:
            asked.append(arguments)
            return load_types(*arguments)

        monkeypatch.setattr(module, "load_types", asking)
        database.execute("INSERT INTO before VALUES (1)")
        next_batches(database, [binary])
        assert asked == []
        make_all(database, transactions=True)
        next_batches(database, [binary])
        assert len(asked) == 1, "all that is new is learnt at once"


def test_a_type_that_was_dropped_before_its_values_are_read(database: Database, tmp_path: Path) -> None:
    with (
        puller(database, tmp_path, binary=False) as text,
        puller(database, tmp_path, binary=True) as binary,
    ):
        database.execute("CREATE TYPE mood AS ENUM ('sad'); CREATE TABLE t (id int PRIMARY KEY, m mood)")
        database.execute("INSERT INTO t VALUES (1, 'sad')")
        database.execute("DROP TABLE t; DROP TYPE mood")
        until = insert_position(database)
        assert replayed([text.next_batch(until)], table="t") == {"1": ("1", "sad")}
        with pytest.raises(ProtocolError, match=r"type public\.mood, which is not in the source's") as caught:
            binary.next_batch(until)
        assert "column 'm' of public.t" in caught.value.what
        assert "source.binary: false" in caught.value.way_out


def test_a_type_that_is_made_between_the_look_at_the_slot_and_its_values(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same for `slotlake decode`, whose reader asks likewise."""
    source = settings(database, binary=True)
    create_slot(source).close()
    make_all(database, transactions=True)
    monkeypatch.setattr("slotlake.decoder.plugins.live.load_types", lambda connection: TypeCatalog())
    consumer = JsonLines()
    lines = list(lines_of(slot_steps(source, consumer), consumer))
    rows = [line for line in lines if line.get("table") == "t"]
    assert len(rows) == 3
    assert rows[0]["new"]["c0"] == "sad"
