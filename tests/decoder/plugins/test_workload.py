"""One workload through all plugins: the same changes, but for what docs/plugins.md says they cannot show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slotlake.decoder.plugins.live import read_file
from tests.decoder.plugins import servers
from tests.decoder.plugins.collecting import Collecting, Seen, as_shown_by, published, told
from tests.vectors.plugins.capture import WAYS, record_all

VECTORS = Path(__file__).parents[2] / "vectors" / "plugins" / "pg15"
OTHERS = [way for way in WAYS if way != "pgoutput"]
PUBLISHED = {
    ("public", "plain"), ('Odd "schema"', "select"), ("public", "whole"), ("public", "indexed"),
    ("public", "toasted"), ("public", "everything"), ("public", "no columns"),
}  # fmt: skip


def from_file(path: Path) -> list[Seen]:
    collecting = Collecting()
    assert read_file(path, collecting) > 10
    assert collecting.startup_told is not None
    assert collecting.ended
    return collecting.seen


def agree(way: str, seen: list[Seen], reference: list[Seen]) -> None:
    expected = as_shown_by(way, told(reference))
    found = published(told(seen), PUBLISHED)
    if way == "wal2json-1":  # a transaction is one message, and has one position
        found = [{**entry, "lsn": None} if "lsn" in entry and entry["xid"] else entry for entry in found]
    assert len(expected) > 100
    for want, have in zip(expected, found, strict=False):
        assert have == want
    assert len(found) == len(expected)


@pytest.mark.parametrize("way", OTHERS)
def test_recorded(way: str) -> None:
    agree(way, from_file(VECTORS / f"{way}.slraw"), from_file(VECTORS / "pgoutput.slraw"))


def test_the_reference_is_complete() -> None:
    """The workload has every kind of event and value, so that agreement means something."""
    entries = told(from_file(VECTORS / "pgoutput.slraw"))
    kinds = {(e["callback"], e.get("kind"), e.get("old_kind")) for e in entries}
    assert kinds >= {
        *(("change", "update", old_kind) for old_kind in ("", "K", "O")),
        *(("change", "delete", old_kind) for old_kind in ("K", "O")),
        ("change", "insert", ""),
        ("truncate", None, None),
        ("message", None, None),
    }
    assert {e["origin"] for e in entries if e["callback"] == "begin"} == {None, "elsewhere"}
    assert {e["transactional"] for e in entries if e["callback"] == "message"} == {True, False}
    tables = {(e["schema"], e["table"]) for e in entries if "table" in e}
    assert tables == PUBLISHED


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, list[Seen]]]]:
    if lacking := servers.missing():
        pytest.skip(f"no server with all plugins here: {', '.join(lacking)} missing")
    folder = tmp_path_factory.mktemp("recordings")
    with servers.plugin_server() as server:
        yield folder, record_all(server, folder)


@pytest.mark.server
@pytest.mark.parametrize("way", OTHERS)
def test_live(way: str, live: tuple[Path, dict[str, list[Seen]]]) -> None:
    agree(way, live[1][way], live[1]["pgoutput"])


@pytest.mark.server
@pytest.mark.parametrize("way", WAYS)
def test_a_recording_shows_what_was_shown_when_it_was_made(
    way: str, live: tuple[Path, dict[str, list[Seen]]]
) -> None:
    assert from_file(live[0] / f"{way}.slraw") == live[1][way]
