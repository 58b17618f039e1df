"""Files of the lake are named by locations: only the storage makes a path of this machine of one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from slotlake.spark.storage.location import Location
from tests.sources import ROOT, modules, tree

pytestmark = pytest.mark.fast

_STORAGE = ROOT / "spark" / "storage"
_LAKES = re.compile(r"location|file_path|manifest|metadata|pointer|statistics_path|warehouse_uri|\broot\b")
# Where a copy is written, and where DuckDB, which takes paths, reads.
_LOCAL = {"local_path": ["spark/publish/place.py", "spark/read/duck/database.py"]}


def _calls(path: Path) -> Iterator[tuple[str, str]]:
    """The function and the arguments of each call, as they are written."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), ", ".join(map(ast.unparse, node.args))


def _is_of_files(function: str) -> bool:
    return function in ("Path", "open") or function.startswith(("os.", "shutil."))


def test_no_path_is_made_of_a_location() -> None:
    places = [
        f"{path.relative_to(ROOT)}: {function}({arguments})"
        for path in modules("spark", "expectations")
        if not path.is_relative_to(_STORAGE)
        for function, arguments in _calls(path)
        if _is_of_files(function) and _LAKES.search(arguments)
    ]
    assert places == []


@pytest.mark.parametrize("name", _LOCAL)
def test_only_the_storage_finds_paths(name: str) -> None:
    users = [
        str(path.relative_to(ROOT))
        for path in modules("spark", "expectations", "infra")
        if not path.is_relative_to(_STORAGE)
        if any(function.rpartition(".")[2] == name for function, _ in _calls(path))
    ]
    assert users == _LOCAL[name]


def test_the_look_sees_what_it_is_for() -> None:
    assert _is_of_files("os.stat")
    assert _LAKES.search("metadata['location']")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("s3://bucket/a/b.avro", ("s3://bucket", "a/b.avro", "b.avro", "s3://bucket/a")),
        ("s3a://bucket/a/b", ("s3://bucket", "a/b", "b", "s3a://bucket/a")),
        ("abfss://c@account/a/b", ("abfss://c@account", "a/b", "b", "abfss://c@account/a")),
    ],
)
def test_a_location_is_taken_apart(text: str, parts: tuple[str, ...]) -> None:
    location = Location(text)
    assert (location.bucket, location.key, location.name, location.parent) == parts
    assert location.parent / location.name == location
    assert location.is_in_bucket


@pytest.mark.parametrize("text", ["/w/a", "file:/w/a", "file:///w/a"])
def test_a_location_of_this_machine(text: str) -> None:
    assert Location(text).path == "/w/a"
    assert not Location(text).is_in_bucket
