"""The table of servers in docs/catalogs.md says what each server that runs here did when it was asked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slotlake.decoder.errors import LakeError
from slotlake.infra.local.jars import locked_jars
from slotlake.infra.local.object_store import LocalObjectStore
from slotlake.spark.catalog.abilities import abilities_of, require_abilities
from slotlake.spark.catalog.rest.session import server_of
from slotlake.spark.lake import LakeSettings
from slotlake.spark.storage.settings import StorageSettings
from tests.conftest import ROOT
from tests.spark.nessie_catalog import LocalNessie
from tests.spark.rest_catalog import LocalRestCatalog

LONG = pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it")


def _line(server: str) -> dict[str, str]:
    """The line of a server, by the table's headings."""
    lines = [
        line for line in (ROOT / "docs" / "catalogs.md").read_text().splitlines() if line.startswith("|")
    ]
    (heading,) = [line for line in lines if line.startswith("| server |")]
    (found,) = [line for line in lines if line.startswith(f"| {server} |")]
    headings, cells = ([cell.strip() for cell in line.strip("|").split("|")] for line in (heading, found))
    return dict(zip(headings, cells, strict=True))


def _asked(lake: LakeSettings, *, lends: bool) -> dict[str, str]:
    """What the line should say, by what the server does."""
    abilities = abilities_of(lake)
    answers = {
        "several tables at once": abilities.together,
        "format 3": abilities.format >= 3,
        "branches": abilities.branches,
        "pinned views": abilities.pins,
        **({"lends keys": abilities.lends_keys} if lends else {}),
    }
    return {"how it is known": "tried"} | {name: "yes" if each else "no" for name, each in answers.items()}


def _version(lock: str) -> str:
    return locked_jars(ROOT / "tests" / "spark" / lock)[0].revision


def test_the_fixture_is_as_the_page_says(rest: str, tmp_path: Path) -> None:
    lake = LakeSettings("lake", rest, f"file://{tmp_path}/warehouse", "shop")
    line = _line("Iceberg's REST fixture")
    assert line | _asked(lake, lends=False) | {"version": _version("rest.lock")} == line
    left = [space[0] for space in server_of(lake).list_namespaces()]
    assert not [space for space in left if space.startswith("slotlake_probe")]
    assert not list((tmp_path / "warehouse").rglob("*.json"))


def test_what_a_server_cannot_is_named_with_the_key_that_helps(
    rest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = LakeSettings("lake", rest, f"file://{tmp_path}/warehouse", "shop", views=True)
    whole = require_abilities(lake)
    for changed, what, key in (
        ({"format": 2}, "format 2 when it is asked for format 3", "lake.format: 2"),
        ({"branches": False}, "makes no branches", "lake.staging: local"),
        ({"together": False}, "does not change several tables at once", "lake.publish: per_table"),
        ({"pins": False}, "cannot have pinned views", "lake.views to false"),
    ):
        lesser = type(whole)(**{**vars(whole), **changed})
        monkeypatch.setattr("slotlake.spark.catalog.abilities.abilities_of", lambda lake, is_=lesser: is_)
        with pytest.raises(LakeError, match=what) as caught:
            require_abilities(lake)
        assert key in (caught.value.way_out or "")


@LONG
def test_the_fixture_on_a_store_is_as_the_page_says(object_store: LocalObjectStore, tmp_path: Path) -> None:
    with LocalRestCatalog(tmp_path, store=object_store) as server:
        storage = StorageSettings(**object_store.storage)
        lake = LakeSettings("lake", server.uri, f"{object_store.warehouse}/page", "shop", storage=storage)
        line = _line("Iceberg's REST fixture")
        assert line | _asked(lake, lends=True) == line


@LONG
def test_nessie_is_as_the_page_says(nessie: LocalNessie, object_store: LocalObjectStore) -> None:
    storage = StorageSettings(**object_store.storage)
    lake = LakeSettings(
        "lake", nessie.branch("page"), f"{object_store.warehouse}/nessie_page", "shop", storage=storage
    )
    line = _line("Nessie")
    assert line | _asked(lake, lends=True) | {"version": _version("nessie.lock")} == line
