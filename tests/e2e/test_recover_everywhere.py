"""`recover` on each kind of catalog and each version of the server: the same days, the same outcome.

SLOTLAKE_TEST_LONG=1 takes all days on every kind of catalog, and on every version of the server.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import SlotlakeError
from slotlake.infra.local.postgres import temporary_postgres
from slotlake.spark.catalog.rest.catalog import RestPointers
from tests.catalogs import postgres_uri
from tests.conftest import Database, fresh_database
from tests.e2e.oracle import pipeline_file
from tests.e2e.test_beside import mirrors, past
from tests.e2e.worst_days import DAYS, LOSING, SETUP, TABLES, Shop

pytestmark = pytest.mark.timeout(3600)

LONG = bool(os.environ.get("SLOTLAKE_TEST_LONG"))
# Catalog, version of the server, days.
ALL = os.environ.get("SLOTLAKE_TEST_DAYS", ",".join(DAYS)).split(",")
FEW = [("postgresql", 16, ["slot dropped"]), ("rest", 18, ["rolled back"])]
EVERY = [
    *(("sqlite", version, ALL) for version in (14, 15, 16, 17, 18)),
    *((catalog, 18, ALL) for catalog in ("postgresql", "rest", "per_table", "hive")),
]


@pytest.fixture(params=EVERY if LONG else FEW, ids=lambda p: f"{p[0]}-{p[1]}")
def shop(
    request: pytest.FixtureRequest, servers: Any, session: Any, tmp_path: Path
) -> Iterator[tuple[Shop, list[str]]]:
    catalog, version, days = request.param
    with ExitStack() as stack:
        database = stack.enter_context(fresh_database(servers(version)))
        uri: Callable[[], str] = {
            "sqlite": lambda: f"sqlite:///{tmp_path}/lake.db",
            "postgresql": lambda: postgres_uri(stack.enter_context(fresh_database(servers(version)))),
        }.get(catalog, lambda: str(request.getfixturevalue("hive" if catalog == "hive" else "rest")))
        database.execute(SETUP)
        file = pipeline_file(tmp_path, database, TABLES, uri=uri(), name=f"r{database.name}")
        text = file.read_text().replace("'accounts': {}", "'accounts': {mode: [mirror, history, append]}")
        if catalog == "hive":
            text = text.replace("lake:\n", "lake:\n  publish: per_table\n", 1)
        if catalog == "per_table":
            patched = stack.enter_context(pytest.MonkeyPatch.context())
            patched.setattr(RestPointers, "together", False)
            text = text.replace("lake:\n", "lake:\n  publish: per_table\n", 1)
        file.write_text(text)

        def other() -> Database:
            for _ in range(4):  # the lake is to have reached more than a new server counts
                database.execute("SELECT pg_switch_wal(); SELECT txid_current()")
            pipeline.sync()
            made = Database(stack.enter_context(temporary_postgres(version=version)), "postgres")
            made.execute(SETUP)
            return made

        pipeline = stack.enter_context(Pipeline.open(file))
        pipeline.init()
        yield Shop(database, pipeline, other), days


def test_what_is_wrong_is_told_and_mended(shop: tuple[Shop, list[str]]) -> None:
    made, days = shop
    wrong: dict[str, Any] = {}
    for day in days:
        try:
            wrong |= {f"{day}: {what}": how for what, how in _lived_through(made, day).items()}
        except (SlotlakeError, AssertionError) as error:
            if not LONG:
                raise
            wrong[day] = f"{type(error).__name__}: {error}"
            pytest.fail(f"{wrong}")  # what follows would be of a pipeline that is broken already
    assert wrong == {}


def _lived_through(shop: Shop, day: str) -> dict[str, Any]:
    happens, said = DAYS[day]
    shop.change()
    shop.pipeline.sync()
    shop.change()
    happens(shop)
    if day == "another cluster":
        shop.pipeline.close()
        shop.pipeline = Pipeline.open(shop.pipeline.file.path)
    shop.change()
    if said:
        with pytest.raises(SlotlakeError, match=said) as refused:
            shop.pipeline.sync()
        assert "slotlake recover" in refused.value.way_out, day
    plan = shop.pipeline.recover()
    assert bool(plan.plan) == (bool(said) or day == "file missing"), plan
    _says_what_is_lost(plan, day)
    shop.change()
    done = shop.pipeline.recover(carry_out=True)
    _says_what_is_lost(done, day)
    assert bool(done.plan) == bool(plan.plan)
    return {f"{when} {what}": how for when in ("then", "later") for what, how in _after(shop, when).items()}


def _says_what_is_lost(report: Any, day: str) -> None:
    wanted = LOSING.get(day, [])
    assert [part for part, line in zip(wanted, report.lost, strict=True) if part not in line] == [], report


def _after(shop: Shop, when: str) -> dict[str, Any]:
    if when == "later":
        shop.change()
    lsn, held = shop.pipeline.sync().lsn, shop.held()
    found: dict[str, Any] = mirrors(shop.pipeline, held)
    if shop.database.name != "postgres":  # what another cluster counts does not compare with what was before
        found |= past(shop.pipeline, {lsn: held}, ["accounts"])
    if plan := shop.pipeline.recover().plan:
        found["recover would"] = plan
    query = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    slots = shop.database.execute(query)
    if slots != [(shop.pipeline.source.slot,)]:
        found["slots"] = slots
    return found
