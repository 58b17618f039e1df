"""Prepared transactions through wal2json, live: whole at COMMIT PREPARED, from any slot."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from slotlake.decoder.changelog.batches import Batch
from slotlake.decoder.lsn import parse_lsn
from slotlake.decoder.plugins.changelog import pull_rows
from slotlake.decoder.plugins.live import read_slot
from slotlake.decoder.server.source import SourceSettings
from slotlake.decoder.slots.confirm import confirm
from slotlake.infra.local.postgres import EmbeddedPostgres
from tests.conftest import Database, fresh_database
from tests.decoder.plugins import servers
from tests.decoder.plugins.collecting import Collecting
from tests.decoder.sources import held_by, replayed

pytestmark = pytest.mark.server
# What changes nothing that is published: the server may send such a transaction empty, or not at all.
NOTHING = {
    "lock": "SELECT * FROM t FOR SHARE",
    "hidden": "INSERT INTO not_published VALUES (1)",
    "undone": "SAVEPOINT s; INSERT INTO t VALUES (-1, 'undone'); ROLLBACK TO s",
    "xid": "SELECT txid_current()",
}
SOME = {
    "row": "INSERT INTO t VALUES ({0}, 'prepared')",
    "large": "INSERT INTO t SELECT {0} + g, repeat('x', 50) FROM generate_series(1, 3000) g",
    "part": "INSERT INTO t VALUES ({0}, 'a'); SAVEPOINT s; INSERT INTO t VALUES (-{0}, 'b'); ROLLBACK TO s; "
    "UPDATE t SET a = 'c' WHERE id = {0}",
}


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    if lacking := servers.missing():
        pytest.skip(f"no server with all plugins here: {', '.join(lacking)} missing")
    with servers.plugin_server() as running:
        yield running


def _prepare(database: Database, gid: str, statements: str) -> None:
    with database.connect() as connection:
        for statement in ("BEGIN", *statements.split("; "), f"PREPARE TRANSACTION '{gid}'"):
            connection.execute(statement.encode())


def _outcome(database: Database, *gids: str) -> None:
    """COMMIT or ROLLBACK, as the name begins."""
    for gid in gids:
        database.execute(f"{gid.partition(' ')[0]} PREPARED '{gid}'")


def _slotted(database: Database, *, two_phase: bool) -> tuple[SourceSettings, int]:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text); CREATE TABLE not_published (a int)")
    database.execute("INSERT INTO t VALUES (0, 'before'); CREATE PUBLICATION p FOR TABLE t")
    name = f"slot_{database.name}"
    made = "SELECT lsn FROM pg_create_logical_replication_slot(%s, 'wal2json', false, %s)"
    ((lsn,),) = database.execute(made, [name, two_phase])
    return SourceSettings(database.dsn, ("p",), name, plugin="wal2json"), parse_lsn(str(lsn))


@pytest.mark.parametrize("two_phase", [False, True])
def test_each_comes_whole_at_its_outcome(
    server: EmbeddedPostgres, tmp_path: Path, *, two_phase: bool
) -> None:
    """In the batch of its outcome, be that the same, a later one, or one after a crash of the server."""
    with fresh_database(server) as database:
        source, start = _slotted(database, two_phase=two_phase)
        batches: list[Batch] = []

        def pulled() -> int:
            at = batches[-1].end_lsn if batches else start
            batches.append(pull_rows(source, "x", tmp_path, start=at))
            return batches[-1].changes

        later: list[str] = []
        for number, (how, kind) in enumerate(product(("COMMIT", "ROLLBACK"), NOTHING | SOME), start=1):
            gid, changes = f"{how} {kind} {database.name}", (NOTHING | SOME)[kind]
            _prepare(database, gid, changes.format(10_000 * number))
            _outcome(database, gid)
            if how == "COMMIT" or kind in ("lock", "row"):  # the server takes ten
                later.append(f"{gid} later")
                _prepare(database, later[-1], changes.format(10_000 * number + 5000))
        assert pulled() == 1 + 3000 + 2
        database.execute("INSERT INTO t VALUES (1, 'meanwhile')")
        assert pulled() == 1
        confirm(source, batches[-1].end_lsn)
        server.restart("immediate")
        assert pulled() == 0
        _outcome(database, *later)
        assert pulled() == 1 + 3000 + 2
        confirm(source, batches[-1].end_lsn)
        assert pulled() == 0
        assert replayed(batches, {"0": ("0", "before")}) == {
            str(key): (str(key), *rest) for key, (_, *rest) in held_by(database, "t", "*").items()
        }


FORMATS = [{}, {"format-version": "1"}, {"format-version": "1", "write-in-chunks": "true"}]


@pytest.mark.parametrize("options", FORMATS, ids=["2", "1", "1 in chunks"])
def test_a_consumer_is_shown_them(server: EmbeddedPostgres, options: dict[str, str]) -> None:
    """Every format: committed ones with their changes, those rolled back not at all, and none is cut."""
    with fresh_database(server) as database:
        source, start = _slotted(database, two_phase=True)
        for number, (kind, statements) in enumerate((NOTHING | SOME).items(), start=1):
            for how in ("COMMIT", "ROLLBACK"):
                gid = f"{how} {kind} {database.name}"
                _prepare(database, gid, statements.format(10_000 * number + 5000 * (how == "ROLLBACK")))
                _outcome(database, gid)
        database.execute("INSERT INTO t VALUES (1, 'plain')")
        shown = Collecting()
        # Version 2.5 does not know the option that shows NaN; the tables have no such number.
        asked = {**options, "numeric-data-types-as-string": ""}
        read_slot(source, shown, options=asked, start=start)
        calls = [callback for callback, _, _ in shown.seen]
        rows = [body for callback, _, body in shown.seen if callback == "change"]
        assert len(rows) == 1 + 1 + 3000 + 2 + 1  # not_published among them: it knows no publications
        assert calls.count("begin") == calls.count("commit") >= 5
