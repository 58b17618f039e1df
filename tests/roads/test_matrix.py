"""Every history down every road: the lake is what the source is, whatever the road."""

from __future__ import annotations

import json
import os
import random
import re
import time
import traceback
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from slotlake.infra.local.postgres import EmbeddedPostgres
from tests.cluster import why_not
from tests.conftest import ROOT, Database, fresh_database, seed_of_the_run
from tests.roads.journey import begun
from tests.roads.kinds import HUGE, USUAL
from tests.roads.road import CHOICES, LONG_CHOICES, OF_TABLES, covering, drawn, tables_of
from tests.roads.travel import Services

pytestmark = pytest.mark.timeout(3600)

STEPS = 2
ROADS_PER_ROUND, STEPS_PER_ROUND, TABLES_PER_ROAD = 6, 8, 6
RECORD = "SLOTLAKE_TEST_RECORD"
# Numbers of roads: to look at some of them alone.
ONLY = os.environ.get("SLOTLAKE_TEST_ROADS", "")


def test_every_pair_of_roads(source: Database, services: Services) -> None:
    seed = seed_of_the_run()
    print(f"SLOTLAKE_SEED={seed}")
    roads = covering(CHOICES, seed)
    tables = tables_of(roads, seed)
    if ONLY:
        tables = [names if str(i) in ONLY.split(",") else [] for i, names in enumerate(tables)]
    made = begun(roads, tables, source, services, seed)
    for _ in range(STEPS):
        made.step()
    wrong = made.end()
    assert not wrong, "\n".join(wrong)
    direct = [each for each in made.travellers if each.road.engine == "direct"]
    assert all(each.staged_directly for each in direct), [str(each.road) for each in direct]
    derived = [each for each in direct if each.road.mode != "mirror"]
    assert all(each.derived_directly for each in derived), [str(each.road) for each in derived]


@pytest.mark.timeout(12 * 3600)
@pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_new_histories_down_new_roads(server: EmbeddedPostgres, services: Services) -> None:
    """Each round has a source of its own, roads at random, and new histories.

    With a file in SLOTLAKE_TEST_RECORD, each round is a line of it, and those that it has are not run again.
    """
    wanted, file = int(os.environ.get("SLOTLAKE_TEST_HISTORIES", "10000")), os.environ.get(RECORD)
    lines = Path(file).read_text().splitlines() if file and Path(file).exists() else []
    rounds = [json.loads(line) for line in lines]
    all_wrong = [what for each in rounds for what in each["wrong"]]
    while sum(each["histories"] for each in rounds) < wanted:
        chance = random.Random(f"{seed_of_the_run()} {len(rounds)}")
        rounds.append(_round(chance, server, services))
        all_wrong += rounds[-1]["wrong"]
        if file:
            with Path(file).open("a") as record:
                record.write(json.dumps(rounds[-1]) + "\n")
    assert not all_wrong, "\n".join(all_wrong)


def _round(chance: random.Random, server: EmbeddedPostgres, services: Services) -> dict[str, Any]:
    roads = list(islice(drawn(CHOICES if why_not() else LONG_CHOICES, chance), ROADS_PER_ROUND))
    print(*roads, sep="\n", flush=True)
    takes = [[name for name, kind in USUAL.items() if road.takes(kind)] for road in roads]
    # Without Spark a table costs a tenth of what it costs with it: there, all of them go.
    tables = [
        names if road.engine == "direct" else chance.sample(names, TABLES_PER_ROAD)
        for road, names in zip(roads, takes, strict=True)
    ]
    seed, begun_at = chance.getrandbits(32), time.monotonic()
    with fresh_database(server) as source:
        try:
            made = begun(roads, tables, source, services, seed)
            for step in range(STEPS_PER_ROUND):
                made.step()
                print(f"sync {step + 1}: {time.monotonic() - begun_at:.0f} s", flush=True)
            wrong = made.end()
        except Exception:  # noqa: BLE001  (the next rounds may find more)
            wrong = [traceback.format_exc()]
    histories, seconds = STEPS_PER_ROUND * sum(map(len, tables)), time.monotonic() - begun_at
    print(f"{histories} histories, {seconds:.0f} s, seed {seed}: {len(wrong)} wrong", flush=True)
    if wrong:
        print("\n".join(wrong[:10]), flush=True)
        wrong = [f"seed {seed}", *map(str, zip(roads, tables, strict=True)), *wrong]
    return {"histories": histories, "seconds": round(seconds), "roads": [*map(str, roads)], "wrong": wrong}


@pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_rows_up_to_50_megabytes(server: EmbeddedPostgres, services: Services) -> None:
    """Down roads without Spark, which is where such rows go (docs/adr/0088)."""
    chance = random.Random(seed := seed_of_the_run())
    print(f"SLOTLAKE_SEED={seed}")
    choices = {**CHOICES, "engine": ["direct"], "rows": ["small"], "spark": ["embedded"]}
    roads = list(islice(drawn(choices, chance), ROADS_PER_ROUND))
    with fresh_database(server) as source:
        made = begun(roads, [[HUGE.name]] * len(roads), source, services, seed, [HUGE.name])
        for _ in range(STEPS_PER_ROUND):
            made.step()
        wrong = made.end()
    assert not wrong, "\n".join(wrong)


@pytest.mark.fast
def test_roads_cover_all_pairs_and_tables() -> None:
    for seed in (1, 2):
        roads = covering(CHOICES, seed)
        tables = tables_of(roads, seed)
        assert len(roads) < 32
        assert {name for names in tables for name in names} == set(USUAL)
        for question in OF_TABLES:
            for answer in CHOICES[question]:
                met = {
                    name
                    for road, names in zip(roads, tables, strict=True)
                    if getattr(road, question) == answer
                    for name in names
                }
                missing = {
                    name
                    for name in USUAL.keys() - met
                    if any(road.takes(USUAL[name]) for road in roads if getattr(road, question) == answer)
                }
                assert not missing, (question, answer)


@pytest.mark.fast
def test_the_catalogue_has_every_road() -> None:
    page = (ROOT / "docs" / "roads.md").read_text()
    table = page.partition("| Question |")[2].partition("\n\n")[0]
    listed: dict[str, list[str]] = {}
    question = ""
    for line in table.splitlines()[2:]:
        first, words = (cell.strip() for cell in line.split("|")[1:3])
        question = first.strip("`") or question
        listed.setdefault(question, []).extend(re.findall(r"`(\w+)`", words))
    assert {q: set(a) for q, a in listed.items()} == {q: set(a) for q, a in LONG_CHOICES.items()}
