"""Keys by which a pipeline is known are changed in its file: nothing is destroyed, the way out is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import SlotlakeError
from slotlake.infra.status.validation import validate
from tests.conftest import Database
from tests.e2e.joins import ended_at
from tests.e2e.oracle import assert_equal, pipeline_file

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def shop(database: Database, connect: str, tmp_path: Path) -> Path:
    """A pipeline with a change that only its slot has."""
    database.execute("CREATE TABLE a (id int PRIMARY KEY, v text); INSERT INTO a VALUES (1, 'a')")
    file = pipeline_file(tmp_path, database, ["a"])
    with Pipeline.open(file, remote=connect) as pipeline:
        pipeline.init()
    database.execute("INSERT INTO a VALUES (2, 'only in the slot')")
    return file


def _refusals(file: Path, connect: str) -> dict[str, str]:
    """What each command says; none of them may do anything."""
    said = {}
    for step in ("sync", "init", "recover", "pull"):
        with Pipeline.open(file, remote=connect) as pipeline:
            try:
                done = pipeline.recover(carry_out=True) if step == "recover" else getattr(pipeline, step)()
            except SlotlakeError as error:
                said[step] = f"{error.what} | {error.way_out}"
            else:
                said[step] = "" if getattr(done, "already", False) else f"done: {done}"
    with Pipeline.open(file, remote=connect) as pipeline:
        said["status"] = " ".join(pipeline.status().warnings)
    errors = [c for c in validate(file, remote=connect).checks if c.result == "error"]
    said["validate"] = " ".join(f"{c.what} | {c.way_out}" for c in errors)
    return said


def _all_name(said: dict[str, str], *words: str) -> None:
    for who, text in said.items():
        if text:
            assert all(word in text for word in words), (who, text)
            assert "pg_drop" not in text
            assert "run: slotlake init" not in text
    assert said["sync"]
    assert said["status"]
    assert said["validate"]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("namespace: shop", "namespace: other", ("lake.namespace was 'shop', and is 'other'", "put it back")),
        ("catalog: lake", "catalog: other", ("lake.catalog was 'lake', and is 'other'", "put it back")),
    ],
)
def test_the_lake_is_named_otherwise(
    shop: Path, database: Database, connect: str, old: str, new: str, words: tuple[str, ...]
) -> None:
    text = shop.read_text()
    assert old in text
    shop.write_text(text.replace(old, new))
    _all_name(_refusals(shop, connect), *words)
    shop.write_text(text)
    with Pipeline.open(shop, remote=connect) as pipeline:
        pipeline.sync()
        assert_equal(database, pipeline, ["a"])
        pipeline.drop()
    if "namespace" not in old:
        return  # the files of the lake that stays are in the way of a second one in the same folder
    shop.write_text(text.replace(old, new))
    with Pipeline.open(shop, remote=connect) as pipeline:  # the way to begin anew elsewhere
        pipeline.init()
        assert_equal(database, pipeline, ["a"])


def test_the_slot_is_named_otherwise(
    shop: Path, database: Database, connect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, before = shop.read_text(), f"slotlake_{database.name}_shop"
    changed, other = text.replace(before, "other"), f"other_{database.name}"
    shop.write_text(changed)
    _all_name(_refusals(shop, connect), f"source.slot was '{before}', and is 'other'", "put it back")
    database.execute(f"SELECT pg_create_logical_replication_slot('{other}', 'pgoutput')")
    shop.write_text(text.replace(before, other))
    _all_name(_refusals(shop, connect), f"and is '{other}'", "put it back")
    shop.write_text(text)
    with Pipeline.open(shop, remote=connect) as pipeline:
        pipeline.sync()
    database.execute("INSERT INTO a VALUES (3, 'meanwhile')")
    database.execute(f"SELECT pg_drop_replication_slot('{before}')")
    shop.write_text(text.replace(before, other))
    _all_name(_refusals(shop, connect), "did not make", "put it back")
    database.execute(f"SELECT pg_drop_replication_slot('{other}')")
    with Pipeline.open(shop, remote=connect) as pipeline:
        ended_at(monkeypatch, "recover.slot_made", lambda: pipeline.recover(carry_out=True))
    with Pipeline.open(shop, remote=connect) as pipeline:
        pipeline.recover(carry_out=True)
        pipeline.sync()
        assert_equal(database, pipeline, ["a"])
        assert pipeline.verify().equal


def test_the_pipeline_has_another_name(shop: Path, database: Database, connect: str) -> None:
    """By itself, and after the advice of a namespace of its own was followed."""
    text = shop.read_text()
    shop.write_text(text.replace("name: shop\n", "name: renamed\n", 1))
    said = _refusals(shop, connect)
    for who in ("sync", "init", "validate", "status"):
        assert "put `name` back" in said[who], (who, said[who])
        assert "pg_drop" not in said[who]
    shop.write_text(shop.read_text().replace("namespace: shop", "namespace: renamed"))
    with Pipeline.open(shop, remote=connect) as pipeline, pytest.raises(SlotlakeError) as refused:
        pipeline.init()
    assert "that of another pipeline, 'shop'" in refused.value.what
    assert "pg_drop" not in refused.value.way_out
    shop.write_text(text)
    with Pipeline.open(shop, remote=connect) as pipeline:
        pipeline.sync()
        assert_equal(database, pipeline, ["a"])
