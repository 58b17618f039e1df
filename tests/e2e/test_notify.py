"""A real pipeline tells a real webhook: of its slot, its tables, its verifications, and nobody's secrets."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import SlotlakeError
from slotlake.infra.cli.main import main
from slotlake.infra.local.object_store import LocalObjectStore
from slotlake.infra.sync.loop import RunLimits
from tests.conftest import Database, fresh_database
from tests.e2e.aside_causes import BAD, encoded_database, five_rows
from tests.e2e.oracle import assert_equal, pipeline_file
from tests.e2e.test_workers import shared_file
from tests.webhook import SECRET, Webhook, webhook

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Webhook]:
    with webhook() as made:
        monkeypatch.setenv("A_RECEIVER", made.url)
        yield made


@pytest.fixture
def ascii_database(database: Database) -> Iterator[Database]:
    """A database that takes any bytes for text."""
    with encoded_database(database.server, f"{database.name}_ascii", "SQL_ASCII") as made:
        yield made


def _written(folder: Path) -> str:
    return "".join(path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file())


def _drop_slot(database: Database, slot: str) -> None:
    database.execute(f"SELECT pg_drop_replication_slot('{slot}')")


def test_a_slot_a_table_and_a_difference(  # noqa: PLR0915 - one story
    ascii_database: Database,
    session: object,
    hook: Webhook,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    database = ascii_database
    tables = five_rows(database, "good", "bad")
    notify = "notify: {to: [env:A_RECEIVER], page: 'https://lake.example/shop'}\n"
    file = pipeline_file(tmp_path, database, tables, extra=notify, source="origin: none")
    assert main(["validate", str(file)]) == 0
    assert "messages can be sent to 1 receiver" in capsys.readouterr().out
    assert main(["init", str(file)]) == 0
    assert main(["sync", str(file)]) == 0
    assert hook.take() == []

    # A table is set aside, and comes back.
    database.execute(f"INSERT INTO good VALUES (6, 'x'); INSERT INTO bad VALUES (6, {BAD})")
    assert main(["sync", str(file)]) == 0
    notified = hook.one()
    assert notified["title"].startswith("slotlake shop: table public.bad is set aside: ")
    assert "what to do: correct" in notified["message"]
    assert notified["message"].splitlines()[-1] == "page: https://lake.example/shop"
    assert main(["sync", str(file)]) == 0
    assert hook.take() == []
    database.execute("UPDATE bad SET v = 'corrected' WHERE id = 6")
    assert main(["resume", str(file), "public.bad"]) == 0
    notified = hook.one()
    assert (notified["type"], notified["message"].splitlines()[0]) == (
        "success",
        "over: table public.bad is not set aside any more",
    )

    # The slot is gone: the sync that fails tells it, with what to do; the repair tells that it is over.
    with Pipeline.open(file) as pipeline:
        _drop_slot(database, pipeline.source.slot)
        with pytest.raises(SlotlakeError):
            pipeline.sync()
    notified = hook.one()
    assert notified["type"] == "failure"
    assert "does not exist\n  what to do: slotlake recover" in notified["message"]
    assert main(["notify", str(file)]) == 0
    assert hook.take() == []
    assert "nothing new to tell" in capsys.readouterr().out
    assert main(["recover", str(file), "--yes"]) == 0
    notified = hook.one()
    assert notified["title"].startswith("slotlake shop: recovered: ")
    assert "over: the replication slot" in notified["message"]
    assert "nothing else is wrong" in notified["message"]

    # A change that the slot does not send.
    with database.connect() as away:
        away.execute("SELECT pg_replication_origin_create('elsewhere')")
        away.execute("SELECT pg_replication_origin_session_setup('elsewhere')")
        away.execute("UPDATE good SET v = 'not sent' WHERE id = 1")
    assert main(["verify", str(file)]) == 1
    notified = hook.one()
    assert notified["title"] == "slotlake shop: table public.good differs from the source"
    assert "not sent" not in notified["message"]
    database.execute("UPDATE good SET v = 'sent' WHERE id = 1")
    assert main(["verify", str(file)]) == 0
    assert "over: table public.good is equal to the source again" in hook.one()["message"]
    database.execute("SELECT pg_replication_origin_drop('elsewhere')")

    # The command for the test; and who is no receiver any more.
    assert main(["notify", str(file), "--test"]) == 0
    assert hook.one()["title"] == "slotlake shop: a test"
    capsys.readouterr()
    hook.code = 500
    assert main(["notify", str(file), "--test", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["receivers"] == {"notify.to[0]": "it answers with code 500"}
    assert main(["status", str(file), "--all"]) == 0
    shown = capsys.readouterr()
    assert SECRET not in shown.out + shown.err + caplog.text + _written(tmp_path)
    assert main(["drop", str(file), "--yes"]) == 0
    assert not list(tmp_path.rglob("notified"))


def test_a_dead_webhook_neither_fails_nor_slows(
    database: Database, session: object, hook: Webhook, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    five_rows(database, "t")
    file = pipeline_file(tmp_path, database, ["t"], extra="notify: {to: [env:A_RECEIVER]}\n")
    hook.delay_seconds = 60.0
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        pipeline.sync()
        began = time.monotonic()
        pipeline.repaired(["all"])
        database.execute("INSERT INTO t VALUES (6, 'x')")
        pipeline.sync()
        seconds = time.monotonic() - began
        assert_equal(database, pipeline, ["t"])
    assert time.monotonic() - began < seconds + 14
    assert hook.tries == 1
    database.execute("INSERT INTO t VALUES (7, 'x')")
    began = time.monotonic()
    with Pipeline.open(file) as pipeline:
        pipeline.sync()
        assert_equal(database, pipeline, ["t"])
    assert hook.tries == 1  # it is not asked again at once


def test_a_run_that_cannot_go_on(database: Database, session: object, hook: Webhook, tmp_path: Path) -> None:
    five_rows(database, "t")
    file = pipeline_file(tmp_path, database, ["t"], extra="notify: {to: [env:A_RECEIVER]}\n")
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        database.execute("INSERT INTO t VALUES (6, 'x')")
        pipeline.run(RunLimits(seconds=3.0))
        assert hook.take() == []
        _drop_slot(database, pipeline.source.slot)
        with pytest.raises(SlotlakeError):
            pipeline.run(RunLimits(seconds=30.0))
    message = hook.one()["message"]
    assert "does not exist\n  what to do: slotlake recover" in message
    assert "sync fails: " in message


def test_two_machines_and_a_store(
    database: Database,
    session: object,
    object_store: LocalObjectStore,
    hook: Webhook,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slotlake.infra.config.pipeline_file._cache_folder", lambda: tmp_path / "cache")
    database.execute("CREATE TABLE accounts (id int PRIMARY KEY); CREATE TABLE history (id int)")
    with fresh_database(database.server) as catalog:
        file = shared_file(tmp_path / "files", database, catalog, object_store, tmp_path.name)
        file.write_text(f"{file.read_text()}\nnotify: {{to: [env:A_RECEIVER]}}\n")
        with Pipeline.open(file) as here, Pipeline.open(file) as there:
            here.init()
            _drop_slot(database, here.source.slot)
            for _ in range(2):
                for machine in (here, there):
                    machine.look()
                    machine.notifier.close()
            assert "does not exist" in hook.one()["message"]
            there.recover(carry_out=True)
            there.notifier.close()
            assert "over: the replication slot" in hook.one()["message"]
            here.look()
            here.notifier.close()
        assert hook.take() == []
    assert not list((tmp_path / "cache").rglob("notified"))
