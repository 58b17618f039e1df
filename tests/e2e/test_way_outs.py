"""What a message says to run is run: the statements as they are printed, in their order."""

from __future__ import annotations

import re
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder import errors
from slotlake.decoder.server import refusals
from slotlake.decoder.translation import messages
from slotlake.infra.cli.main import main
from slotlake.infra.local.postgres_binaries import binaries, server_user
from tests.conftest import Database
from tests.e2e.aside_causes import BAD, encoded_database, five_rows
from tests.e2e.oracle import assert_equal, pipeline_file

pytestmark = pytest.mark.timeout(600)

NEW_SLOT = ["SELECT pg_drop_replication_slot(…)", "slotlake recover --yes"]
TEXTS = {
    "damaged": errors.DAMAGED,
    "not UTF-8": errors.NOT_UTF8,
    "refused": refusals.meaning_of("22021").way_out,
    "unknown encoding": messages._UNKNOWN,
}


def _steps(text: str) -> list[str]:
    return re.findall(r"SELECT pg_drop_replication_slot\(…\)|slotlake recover(?: --yes)?", text)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_the_ways_to_a_new_slot_are_the_same(text: str) -> None:
    """So that the one that is run below stands for all."""
    assert _steps(text) == NEW_SLOT


def _refused(file: Path, kind: type[errors.SlotlakeError], capsys: pytest.CaptureFixture[str]) -> str:
    """What a sync prints that ends with such an error, whose way out is a new slot."""
    capsys.readouterr()
    assert main(["sync", str(file)]) == kind.exit_code
    said = capsys.readouterr().err
    assert _steps(said) == NEW_SLOT, said
    return said


def test_a_name_in_the_wal_that_is_not_utf_8(
    database: Database, session: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It stops all, and the WAL keeps it although the table has another name now."""
    assert session is not None
    with encoded_database(database.server, f"{database.name}_ascii", "SQL_ASCII") as source:
        five_rows(source, "good")
        source.execute("CREATE PUBLICATION shop FOR ALL TABLES")
        file = pipeline_file(tmp_path, source, [])
        assert main(["init", str(file)]) == 0
        with source.connect(client_encoding="SQL_ASCII") as writer:
            writer.execute(b'CREATE TABLE "caf\xe9" (id int PRIMARY KEY); INSERT INTO "caf\xe9" VALUES (1)')
            writer.execute(b"INSERT INTO good VALUES (6, 'six')")
            assert "has the bytes of the server's message" in _refused(file, errors.SourceError, capsys)
            writer.execute(b'ALTER TABLE "caf\xe9" RENAME TO cafe')
        assert "the text is not UTF-8" in _refused(file, errors.ProtocolError, capsys)
        with Pipeline.open(file) as pipeline:
            slot = pipeline.source.slot
        source.execute(NEW_SLOT[0].replace("…", f"'{slot}'"))
        assert main(["recover", str(file), "--yes"]) == 0
        source.execute("UPDATE good SET v = 'followed'; INSERT INTO cafe VALUES (2)")
        with Pipeline.open(file) as pipeline:
            pipeline.sync()
            assert_equal(source, pipeline, ["good", "cafe"])


def test_a_value_that_cannot_be_read_stops_all(
    database: Database, session: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """While all is copied the same command goes on; the WAL keeps it, and the message says another way."""
    assert session is not None
    with encoded_database(database.server, f"{database.name}_ascii", "SQL_ASCII") as source:
        five_rows(source, "bad")
        file = pipeline_file(tmp_path, source, ["bad"], extra="on_trouble: stop\n")
        ways = {
            "init": "Then run the same command again",
            "sync": "on_trouble: set_aside for this table lets",
        }
        for command, way_out in ways.items():
            source.execute(f"INSERT INTO bad VALUES (6, {BAD})")
            capsys.readouterr()
            assert main([command, str(file)]) == errors.ProtocolError.exit_code
            assert way_out in capsys.readouterr().err
            source.execute("DELETE FROM bad WHERE id = 6")
            if command == "sync":
                file.write_text(file.read_text().replace("on_trouble: stop", "on_trouble: set_aside"))
            assert main([command, str(file)]) == 0
        assert main(["resume", str(file), "public.bad"]) == 0
        with Pipeline.open(file) as pipeline:
            assert_equal(source, pipeline, ["bad"])


def test_a_database_whose_encoding_has_no_utf_8(
    database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server refuses each session that asks for UTF-8; its tables are moved as the message says."""
    programs = binaries(18, server_user()).bin
    encoded = partial(encoded_database, database.server)
    with (
        encoded(f"{database.name}_mule", "MULE_INTERNAL") as source,
        encoded(f"{database.name}_u", "UTF8") as new,
    ):
        with source.connect(client_encoding="SQL_ASCII") as writer:
            writer.execute(b"CREATE TABLE t (id int PRIMARY KEY, v text)")
            writer.execute(rb"INSERT INTO t VALUES (1, E'\x81\xe9')")
        assert main(["init", str(pipeline_file(tmp_path, source, ["t"]))]) == errors.SourceError.exit_code
        said = capsys.readouterr().err
        for words in ("cannot translate the texts of this database", "pg_dump --encoding", "restore"):
            assert words in said, said
        dump = subprocess.run(
            [str(programs / "pg_dump"), "--encoding=LATIN1", source.dsn], capture_output=True, check=True
        )
        restore = [str(programs / "psql"), "-q", "-v", "ON_ERROR_STOP=1", new.dsn]
        subprocess.run(restore, input=dump.stdout, capture_output=True, check=True)
        assert new.execute("SELECT v FROM t") == [("é",)]
