"""Metadata files are read once while they are few, and a damaged one is one clear error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from decoder.errors import LakeError
from spark import catalog_metadata


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


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", "\x1f\x8b"])
def test_a_damaged_file_is_told(tmp_path: Path, content: str) -> None:
    path = tmp_path / "00000-x.metadata.json"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(LakeError, match="damaged"):
        catalog_metadata.load(path.as_uri())
    with pytest.raises(LakeError, match="cannot be read"):
        catalog_metadata.load((tmp_path / "none").as_uri())
