"""Metadata files are read once while they are few, and a damaged one is one clear error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slotlake.decoder.errors import LakeError
from slotlake.spark.tables import metadata as catalog_metadata


def _file(folder: Path, name: str, size: int = 0) -> str:
    path = folder / f"{name}.metadata.json"
    path.write_text(json.dumps({"format-version": 3, "name": name, "filler": "x" * size}))
    return path.as_uri()


def test_a_file_is_read_once(tmp_path: Path) -> None:
    location = _file(tmp_path, "one")
    first = catalog_metadata.load(location)
    assert catalog_metadata.load(location) is first


def test_what_is_remembered_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_metadata, "_recent", catalog_metadata._Recent(bytes_max=1000))
    one, two, three = (_file(tmp_path, name, 400) for name in ("one", "two", "three"))
    first, second = catalog_metadata.load(one), catalog_metadata.load(two)
    assert catalog_metadata.load(one) is first
    catalog_metadata.load(three)  # the one that was asked for longest ago makes room
    assert catalog_metadata.load(one) is first
    assert catalog_metadata.load(two) is not second
    large = _file(tmp_path, "large", 2000)
    assert catalog_metadata.load(large) is not catalog_metadata.load(large)


def test_the_top_is_remembered_where_the_whole_is_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Snapshots 4 and 5 are compactions on top of the third point's."""
    monkeypatch.setattr(catalog_metadata, "_recent", catalog_metadata._Recent(bytes_max=0))
    points = {1: "0/100", 2: "0/200", 3: "0/300"}
    snapshots = [
        {
            "snapshot-id": id_,
            "parent-snapshot-id": id_ - 1 or None,
            "summary": {"slotlake.lsn": points[id_]} if id_ in points else {"operation": "replace"},
        }
        for id_ in range(1, 6)
    ]
    whole = {
        "format-version": 3,
        "properties": {"slotlake.pipeline": "shop"},
        "snapshots": snapshots,
        "current-snapshot-id": 5,
        "refs": {"main": {"snapshot-id": 5, "type": "branch"}, "stage": {"snapshot-id": 1, "type": "branch"}},
    }
    path = tmp_path / "long.metadata.json"
    path.write_text(json.dumps(whole))
    top = catalog_metadata.load_top(path.as_uri())
    assert [s["snapshot-id"] for s in catalog_metadata.ancestry(top)] == [5, 4, 3]
    assert catalog_metadata.newest_position(top) == catalog_metadata.newest_position(whole) == 0x300
    assert top["properties"] == whole["properties"]
    assert catalog_metadata.ref(top, "stage") is None
    path.unlink()
    assert catalog_metadata.load_top(path.as_uri()) is top
    bare = tmp_path / "bare.metadata.json"
    bare.write_text(json.dumps({"format-version": 3, "snapshots": snapshots[3:], "current-snapshot-id": 5}))
    assert [s["snapshot-id"] for s in catalog_metadata.load_top(bare.as_uri())["snapshots"]] == [5, 4]


def test_what_is_staged_is_what_main_has_not_come_by() -> None:
    snapshots = [{"snapshot-id": id_, "parent-snapshot-id": id_ - 1 or None} for id_ in range(1, 4)]
    metadata = {"snapshots": snapshots, "current-snapshot-id": 2}
    stage = {staged: catalog_metadata.with_ref(metadata, "stage", staged) for staged in (1, 2, 3)}
    assert {staged: catalog_metadata.is_staged(each) for staged, each in stage.items()} == {
        1: False,  # published, and main was compacted since
        2: False,
        3: True,
    }
    assert not catalog_metadata.is_staged(metadata)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", "\x1f\x8b"])
def test_a_damaged_file_is_told(tmp_path: Path, content: str) -> None:
    path = tmp_path / "00000-x.metadata.json"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(LakeError, match="damaged"):
        catalog_metadata.load(path.as_uri())
    with pytest.raises(LakeError, match="cannot be read"):
        catalog_metadata.load((tmp_path / "none").as_uri())
