"""Capture the recordings anew: ``python -m tests.vectors.plugins.capture``.

One workload on a server with all four plugins, read through each into a recording.  Positions, xids,
OIDs and times change with every capture, nothing else should.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import psycopg

from slotlake.decoder.plugins.live import read_slot
from slotlake.decoder.server.source import SourceSettings
from slotlake.infra.local.postgres import EmbeddedPostgres
from tests.decoder.plugins.collecting import Collecting, Seen
from tests.decoder.plugins.servers import FOLDER, plugin_server

HERE = Path(__file__).parent
WORKLOAD = HERE / "workload.sql"
# wal2json before 2.6 has no numeric-data-types-as-string.
OLD_WAL2JSON = {"numeric-data-types-as-string": ""}
WAYS: dict[str, tuple[str, dict[str, str]]] = {
    "pgoutput": ("pgoutput", {}),
    "test_decoding": ("test_decoding", {}),
    "wal2json-1": ("wal2json", {"format-version": "1", "write-in-chunks": "", **OLD_WAL2JSON}),
    "wal2json-1-chunks": ("wal2json", {"format-version": "1", **OLD_WAL2JSON}),
    "wal2json-2": ("wal2json", OLD_WAL2JSON),
    "decoderbufs": ("decoderbufs", {}),
}


def record_all(server: EmbeddedPostgres, folder: Path) -> dict[str, list[Seen]]:
    """Run the workload in a new database and read it each way, into ``folder/<way>.slraw``."""
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute("CREATE DATABASE workload")
    setup, _, captured = WORKLOAD.read_text().partition("-- capture\n")
    _psql(server, setup)
    with psycopg.connect(server.dsn("workload"), autocommit=True) as connection:
        for plugin in {plugin for plugin, _ in WAYS.values()}:
            slot = f"workload_{plugin}"
            connection.execute("SELECT pg_create_logical_replication_slot(%s, %s)", [slot, plugin])
    _psql(server, captured)
    folder.mkdir(exist_ok=True)
    seen = {}
    for way, (plugin, options) in WAYS.items():
        source = SourceSettings(
            server.dsn("workload"), ("p",), f"workload_{plugin}", plugin=plugin, messages=True
        )
        collecting = Collecting()
        read_slot(source, collecting, options=options, record=folder / f"{way}.slraw")
        seen[way] = collecting.seen
    return seen


def _psql(server: EmbeddedPostgres, statements: str) -> None:
    subprocess.run(
        [str(FOLDER / "bin" / "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", "-"],
        input=statements,
        env=server.client_environment("workload"),
        stdout=subprocess.DEVNULL,
        text=True,
        check=True,
    )


if __name__ == "__main__":
    with plugin_server() as running:
        record_all(running, HERE / "pg15")
