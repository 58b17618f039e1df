"""A server with all four plugins: Debian's PostgreSQL 15 with its packages of wal2json and decoderbufs.

.ci/run installs the packages where it may.  Elsewhere the golden vectors stand in for it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from slotlake.infra.local.postgres import EmbeddedPostgres
from slotlake.infra.local.postgres_binaries import Binaries

FOLDER = Path(os.environ.get("SLOTLAKE_PLUGIN_SERVER", "/usr/lib/postgresql/15"))
WANTED = ("test_decoding", "wal2json", "decoderbufs")
CONF = {
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "16MB",
    "max_prepared_transactions": "10",
    "max_replication_slots": "40",
    "max_wal_senders": "10",
    "logical_decoding_work_mem": "64kB",
    "lc_monetary": "C",
}


def missing() -> list[str]:
    """What of the server is not installed."""
    files = ["bin/postgres", "bin/initdb", *(f"lib/{name}.so" for name in WANTED)]
    return [str(FOLDER / name) for name in files if not (FOLDER / name).is_file()]


@contextmanager
def plugin_server() -> Iterator[EmbeddedPostgres]:
    """The running server, deleted afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="slotlake-test-pg-"))
    server = EmbeddedPostgres(folder, version=16, conf=CONF, dies_with_parent=True)
    server._binaries = Binaries(FOLDER / "bin", server.version)
    try:
        server.start()
        _trust_plugins(server)
        yield server
    finally:
        server.remove()


def _trust_plugins(server: EmbeddedPostgres) -> None:
    """Some minor versions load only those output plugins that a setting names."""
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        known = "SELECT 1 FROM pg_settings WHERE name = 'output_plugin_libraries'"
        if admin.execute(known).fetchone():
            names = ", ".join(("pgoutput", *WANTED))
            admin.execute(f"ALTER SYSTEM SET output_plugin_libraries = {names}")
            admin.execute("SELECT pg_reload_conf()")
