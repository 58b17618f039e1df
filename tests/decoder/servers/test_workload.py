"""Every server, every way of asking it: the same transactions, the same rows, the same messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slotlake.decoder.errors import SlotError, SourceError
from slotlake.decoder.server.source import SourceSettings, connect
from slotlake.decoder.slots.slot import create_slot
from slotlake.decoder.stream.options import newest_protocol
from slotlake.infra.local.postgres import Version
from tests.conftest import SERVER_VERSIONS, Database
from tests.decoder.servers import workload
from tests.decoder.sources import through_sql

pytestmark = pytest.mark.filterwarnings("error")

# Settings beyond the plain ones, and the oldest server that has them.
WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "1": (14, {"proto_version": 1}),
    "2 whole": (14, {"proto_version": 2, "streaming": "off"}),
    "2 streaming": (14, {"proto_version": 2, "streaming": "on"}),
    "the most": (14, {"streaming": None}),
    "binary": (14, {"streaming": None, "binary": True}),
    "binary whole": (14, {"proto_version": 1, "binary": True}),
    "3 two-phase": (15, {"proto_version": 3, "streaming": "off", "two_phase": True}),
    "3 two-phase streaming": (15, {"proto_version": 3, "streaming": "on", "two_phase": True}),
    "4 parallel": (16, {"proto_version": 4, "streaming": "parallel"}),
    "4 parallel two-phase": (16, {"streaming": "parallel", "two_phase": True}),
    "through SQL": (14, {"streaming": None, "bulk": True}),
    "through SQL, binary whole": (14, {"streaming": "off", "binary": True, "bulk": True}),
}


@dataclass(frozen=True)
class Played:
    """The workload, run on a server, with a slot of either kind from before it."""

    database: Database
    plain: SourceSettings
    two_phase: SourceSettings | None
    starts: dict[str, int]

    def source(self, settings: dict[str, Any]) -> SourceSettings:
        of = self.two_phase if settings.get("two_phase") else self.plain
        assert of is not None
        return SourceSettings(of.dsn, of.publications, of.slot, messages=True, **{"bulk": False, **settings})


def played(database: Database) -> Played:
    workload.set_up(database)
    plain = SourceSettings(database.dsn, ("p",), f"plain_{database.name}")
    with create_slot(plain) as made:
        starts = {plain.slot: made.lsn}
    two_phase = None
    if database.server.version >= 15:
        two_phase = SourceSettings(database.dsn, ("p",), f"two_{database.name}", two_phase=True)
        with create_slot(two_phase) as made:
            starts[two_phase.slot] = made.lsn
    workload.run(database)
    return Played(database, plain, two_phase, starts)


@pytest.mark.parametrize("version", SERVER_VERSIONS)
def test_every_way_of_asking_gives_what_the_server_holds(
    database_on: Callable[[Version], Database],
    version: Version,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slotlake.decoder.stream.pull.BulkError", KeyError)  # no other way is taken instead
    through_sql(monkeypatch, 128 << 10)
    play = played(database_on(version))
    truth = workload.truth(play.database)
    found = {}
    for way, (floor, settings) in WAYS.items():
        if version < floor:
            continue
        source = play.source(settings)
        batch = workload.pulled(source, tmp_path / way, play.starts[source.slot])
        assert workload.contents(batch) == truth, way
        found[way] = (workload.transactions(batch), workload.messages(batch))
    if play.two_phase is not None:  # the slot alone decides: the server sends prepared transactions anyway
        unasked = SourceSettings(play.two_phase.dsn, ("p",), play.two_phase.slot, messages=True, bulk=False)
        batch = workload.pulled(unasked, tmp_path / "unasked", play.starts[unasked.slot])
        assert workload.contents(batch) == truth
        found["unasked"] = (workload.transactions(batch), workload.messages(batch))
    plain = found["1"]
    assert {way: each for way, each in found.items() if each != plain} == {}
    origins = [origin for *_, origin in plain[0] if origin is not None]
    assert origins == [f"origin_{play.database.name}"]
    assert plain[1] == [
        (False, "before"), (False, "while both are open"), (True, "inside b"),
        (False, "after"), (True, "alone"),
    ]  # fmt: skip
    assert len(plain[0]) == workload.COMMITTED
    check_refusals(play, version, tmp_path)


def check_refusals(play: Played, version: Version, directory: Path) -> None:
    """What this server lacks is refused before anything is read, and by whom it would be had is said."""
    newest = newest_protocol(version * 10000)
    start = play.starts[play.plain.slot]
    lacking: list[dict[str, Any]] = [{"proto_version": newest + 1}]
    lacking += [settings for floor, settings in WAYS.values() if version < floor]
    lacking += [{"origin": "none"}] if version < 16 else []
    for settings in lacking:
        source = SourceSettings(play.plain.dsn, ("p",), play.plain.slot, **settings)
        with pytest.raises(SourceError) as caught:
            workload.pulled(source, directory / "refused", start)
        assert f"PostgreSQL {play.database.server.version}" in caught.value.where
    two_phase = SourceSettings(play.plain.dsn, ("p",), play.plain.slot, two_phase=True)
    with pytest.raises(SlotError if version >= 15 else SourceError, match="two_phase"):
        workload.pulled(two_phase, directory / "refused", start)
    if version < 15:
        fresh = SourceSettings(play.plain.dsn, ("p",), f"no_{play.database.name}", two_phase=True)
        with pytest.raises(SourceError, match="PostgreSQL 14 cannot create a slot with two_phase"):
            create_slot(fresh)


@pytest.mark.parametrize("version", [16, 18])
def test_what_came_from_elsewhere_is_left_out_on_request(
    database_on: Callable[[Version], Database], version: Version, tmp_path: Path
) -> None:
    play = played(database_on(version))
    start = play.starts[play.plain.slot]
    every = workload.transactions(workload.pulled(play.source({}), tmp_path / "any", start))
    own = workload.pulled(play.source({"origin": "none"}), tmp_path / "none", start)
    assert workload.transactions(own) == [each for each in every if each[-1] is None]
    assert len(every) == len(workload.transactions(own)) + 1
    assert "100077" not in workload.contents(own)["whole"]


@pytest.mark.parametrize("version", [17, 18])
def test_a_slot_that_standbys_keep(database_on: Callable[[Version], Database], version: Version) -> None:
    database = database_on(version)
    source = SourceSettings(database.dsn, ("p",), f"slot_{database.name}")
    with create_slot(source, failover=True), connect(source.dsn) as connection:
        row = connection.execute("SELECT failover FROM pg_replication_slots").fetchone()
        assert row == (True,)


def test_an_older_server_makes_no_slot_that_standbys_keep(
    database_on: Callable[[Version], Database],
) -> None:
    database = database_on(16)
    with pytest.raises(SourceError, match="PostgreSQL 16 cannot create a slot with failover") as caught:
        create_slot(SourceSettings(database.dsn, ("p",), "s"), failover=True)
    assert "PostgreSQL 17 or later" in caught.value.way_out
