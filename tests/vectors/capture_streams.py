"""Capture vectors of streamed and prepared transactions anew: ``python -m tests.vectors.capture_streams``.

For each server version and each history in `histories`: slots with several choices of protocol, streaming,
two-phase and binary read along, live, while the sessions work.  ``streams/<history>-<choice>.hex`` is what
each was sent, the ``.json`` beside it how that reads.  Review the differences before you keep them:
positions, xids, OIDs and times change with every capture, nothing else should.
"""

from __future__ import annotations

import json
from pathlib import Path

import psycopg

from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.protocol.reader import StreamReader
from slotlake.infra.local.postgres import temporary_postgres
from tests.conftest import Database
from tests.decoder.live import VARIANTS, History, LiveSlot, live_slots, meaning_of
from tests.vectors.capture import FOLDER, VERSIONS, as_json
from tests.vectors.histories import HISTORIES, SETUP

KEPT = ("1", "2-streaming", "3-two-phase", "4-parallel-two-phase", "4-binary")


def main() -> None:
    """Capture everything."""
    for version in VERSIONS:
        with temporary_postgres(version=version, conf={"max_prepared_transactions": "9"}) as server:
            for number, (name, (_, statements)) in enumerate(HISTORIES.items()):
                with psycopg.connect(server.dsn(), autocommit=True) as admin:
                    admin.execute(f"CREATE DATABASE h{number}")
                database = Database(server, f"h{number}")
                database.execute(SETUP)
                with live_slots(database, {choice: VARIANTS[choice] for choice in KEPT}) as slots:
                    history = History(database, slots)
                    history.run_all(statements)
                    history.close()
                    for choice, slot in slots.items():
                        path = FOLDER / f"pg{version}" / "streams" / f"{name.replace(' ', '_')}-{choice}"
                        write(path, slot)
                        print(path.relative_to(FOLDER))


def write(path: Path, slot: LiveSlot) -> None:
    """A stream's two files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    reader = StreamReader(**meaning_of(slot.options))
    messages = [as_json(reader.read(payload, lsn)) for lsn, payload in slot.stream]
    lines = ",\n  ".join(json.dumps(message, ensure_ascii=False) for message in messages)
    path.with_name(path.name + ".hex").write_text(
        "".join(f"{format_lsn(lsn)} {payload.hex()}\n" for lsn, payload in slot.stream)
    )
    path.with_name(path.name + ".json").write_text(f"[\n  {lines}\n]\n")


if __name__ == "__main__":
    main()
