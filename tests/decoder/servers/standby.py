"""A streaming standby of a test server, made as its manual says: base backup, slot, feedback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg

from slotlake.infra.local.postgres import USER, EmbeddedPostgres
from slotlake.infra.local.postgres_binaries import binaries, server_user
from slotlake.infra.local.process import write_private

SLOT = "for_the_standby"


@contextmanager
def standby_of(
    primary: EmbeddedPostgres, *, feedback: bool = True, keeps_slots: bool = False
) -> Iterator[EmbeddedPostgres]:
    """A running standby; with its end it is deleted, and its slot on the primary dropped.

    ``keeps_slots``: it copies the primary's failover slots (17 on).
    """
    folder = Path(tempfile.mkdtemp(prefix="slotlake-test-standby-"))
    user = server_user()
    user.own(folder)
    with psycopg.connect(primary.dsn(), autocommit=True) as admin:
        admin.execute("SELECT pg_create_physical_replication_slot(%s, true)", [SLOT])
        own = Path(primary.program("postgres")).with_name("pg_basebackup")  # an archive has none
        programs = own.parent if own.exists() else binaries(18, user).bin  # 18's work for older ones too
        subprocess.run(
            [str(programs / "pg_basebackup"), "-h", "127.0.0.1", "-p", str(primary.port), "-U", USER,
             "-D", str(folder / "data"), "-X", "stream", "-c", "fast", "--no-sync", "-w"],
            env={**os.environ, "PGPASSWORD": primary.password}, check=True, cwd="/", **user.popen_options(),
        )  # fmt: skip
        (folder / "data" / "standby.signal").touch()
        user.own(folder / "data" / "standby.signal")
        (folder / "client").mkdir(mode=0o700)
        write_private(folder / "client" / "server.json", json.dumps({"password": primary.password}))
        upstream = f"host=127.0.0.1 port={primary.port} user={USER} password={primary.password}"
        conf = {
            **primary.conf,
            "fsync": "off",
            "primary_conninfo": f"{upstream} dbname=postgres",
            "primary_slot_name": SLOT,
            "hot_standby_feedback": "on" if feedback else "off",
            "wal_receiver_status_interval": "1s",
            **({"sync_replication_slots": "on"} if keeps_slots else {}),
        }
        server = EmbeddedPostgres(folder, conf=conf, dies_with_parent=True, programs=primary.programs)
        try:
            yield server.start()
        finally:
            server.stop("immediate")
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(psycopg.OperationalError):  # the primary may have failed
                _drop(admin)


def _drop(admin: psycopg.Connection[tuple[object, ...]]) -> None:
    """The walsender may need a moment to see that its standby has gone."""
    for _ in range(100):
        try:
            admin.execute("SELECT pg_drop_replication_slot(%s)", [SLOT])
        except psycopg.errors.ObjectInUse:
            time.sleep(0.1)
        else:
            return


def replayed_to(standby: EmbeddedPostgres, lsn: str) -> None:
    """Wait until the standby has replayed the WAL up to there."""
    with psycopg.connect(standby.dsn(), autocommit=True) as connection:
        for _ in range(500):
            row = connection.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", [lsn]).fetchone()
            if row == (True,):
                return
            time.sleep(0.02)
    raise AssertionError(f"the standby has not come to {lsn} in 10 s")
