"""The checker of Iceberg's rules sees what is wrong: a true table, each time with one word changed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import Database
from tests.roads.journey import Journey, begun
from tests.roads.lake_files import DATA, DELETED, Json, LakeFiles
from tests.roads.road import CHOICES, Road
from tests.roads.rules import faults
from tests.roads.travel import Services

pytestmark = pytest.mark.timeout(900)
PLAIN = {name: answers[0] for name, answers in CHOICES.items()}


class Table:
    """A table's metadata and the records of its Avro files, to be changed."""

    def __init__(self, files: LakeFiles, metadata: Json) -> None:
        self.files = LakeFiles(files.path, None)
        faults(files, metadata)  # reads all of it
        self.files._read, self.files._tables = copy.deepcopy(files._read), files._tables
        self.metadata = copy.deepcopy(metadata)

    @property
    def main(self) -> Json:
        head: Json = next(
            s for s in self.metadata["snapshots"] if s["snapshot-id"] == self.metadata["current-snapshot-id"]
        )
        return head

    def manifests(self, content: int = DATA) -> Iterator[Json]:
        """The manifests of main that list a live file."""
        for each in self.files._read[self.main["manifest-list"]]:
            if each["content"] == content and each["added_files_count"] + each["existing_files_count"]:
                yield each

    def manifest(self, content: int = DATA) -> Json:
        """The first of them."""
        return next(self.manifests(content))

    def entries(self, content: int = DATA) -> Iterator[Json]:
        """The live files of main."""
        for manifest in self.manifests(content):
            yield from (
                each for each in self.files._read[manifest["manifest_path"]] if each["status"] != DELETED
            )

    def entry(self, content: int = DATA) -> Json:
        """The first of them."""
        return next(self.entries(content))

    def pair(self, metric: str, column: str) -> Json:
        """A column's metric of the first live file that has it: a file of NULLs only has no bounds."""
        number = next(f["id"] for s in self.metadata["schemas"] for f in s["fields"] if f["name"] == column)
        for entry in self.entries():
            pairs = entry["data_file"][metric]
            pairs[:] = [
                dict(zip(("key", "value"), each, strict=True)) if isinstance(each, tuple) else each
                for each in pairs
            ]
            found: dict[str, Any]
            for found in pairs:
                if found["key"] == number:
                    return found
        raise AssertionError(f"no file has {metric} of {column}")


def _twice(table: Table) -> None:
    table.files._read[table.manifest()["manifest_path"]].append(copy.deepcopy(table.entry()))


def _elsewhere(table: Table) -> None:
    partition = _file(table)["partition"]
    partition |= dict.fromkeys(partition, 99)


def _numbered_from_zero(table: Table) -> None:
    for manifest in table.files._read[table.main["manifest-list"]]:
        if manifest["content"] == DATA:
            for entry in table.files._read[manifest["manifest_path"]]:
                entry["data_file"]["first_row_id"] = 0


def _without_field(table: Table) -> None:
    for schema in table.metadata["schemas"]:
        schema["fields"] = [f for f in schema["fields"] if f["name"] != "v"]


def _added(of: Callable[[Table], Json], key: str, more: int) -> Callable[[Table], None]:
    def change(table: Table) -> None:
        place = of(table)
        place[key] = type(place[key])(int(place[key]) + more)

    return change


def _set(of: Callable[[Table], Json], key: str, value: Any) -> Callable[[Table], None]:
    def change(table: Table) -> None:
        of(table)[key] = value

    return change


def _file(table: Table) -> Json:
    made: Json = table.entry()["data_file"]
    return made


def _vector(table: Table) -> Json:
    made: Json = table.entry(content=1)["data_file"]
    return made


CHANGES: dict[str, tuple[str, Callable[[Table], None]]] = {
    "a reference": ("names a snapshot", lambda t: t.metadata["refs"]["main"].update({"snapshot-id": 1})),
    "a schema": ("does not name a schema", lambda t: t.main.pop("schema-id")),
    "last sequence number": ("than the last", _set(lambda t: t.metadata, "last-sequence-number", 0)),
    "next row": ("below the table's next", _set(lambda t: t.metadata, "next-row-id", 1)),
    "total records": ("total-records", _added(lambda t: t.main["summary"], "total-records", 1)),
    "total size": ("total-files-size", _added(lambda t: t.main["summary"], "total-files-size", 1)),
    "rows of a manifest": ("existing files and rows", _added(Table.manifest, "existing_rows_count", 1)),
    "smallest number": ("smallest sequence number", _added(Table.manifest, "min_sequence_number", 9)),
    "length of a manifest": ("another length", _added(Table.manifest, "manifest_length", 1)),
    "rows of a file": ("the manifest says", _added(_file, "record_count", 1)),
    "size of a file": ("another size", _added(_file, "file_size_in_bytes", 1)),
    "a lower bound": ("outside the bounds", lambda t: t.pair("lower_bounds", "v").update(value=b"\xff")),
    "an upper bound": ("outside the bounds", lambda t: t.pair("upper_bounds", "v").update(value=b"")),
    "a bound of decimals": ("outside", lambda t: t.pair("lower_bounds", "k").update(value=b"\x7f" * 16)),
    "NULLs": ("null_value_counts", _added(lambda t: t.pair("null_value_counts", "v"), "value", 1)),
    "listed twice": ("listed 2 times", _twice),
    "a partition": ("to the partitions", _elsewhere),
    "a field": ("which no schema has", _without_field),
    "positions": ("positions, and says", _added(_vector, "record_count", 1)),
    "whose positions": ("does not live", _set(_vector, "referenced_data_file", "file:///elsewhere.parquet")),
    "row numbers": ("rows have the number", _numbered_from_zero),
}  # fmt: skip


@pytest.fixture(scope="module")
def table(source: Database, services: Services) -> Iterator[Callable[[], Table]]:
    """A table of format 3 with a partition spec, staged directly, with vectors."""
    road = Road(**{**PLAIN, "storage": "folder"})
    made: Journey = begun([road], [["laid_by_bucket"]], source, services, seed=1)
    (traveller,) = made.travellers
    for _ in range(12):
        made.step()
        metadata = traveller.metadata("laid_by_bucket")
        if next(Table(traveller.files, metadata).manifests(content=1), None) is not None:
            break
    yield lambda: Table(traveller.files, metadata)
    assert not made.end()


@pytest.mark.parametrize("name", CHANGES)
def test_each_rule(table: Callable[[], Table], name: str) -> None:
    words, change = CHANGES[name]
    changed = table()
    assert faults(changed.files, changed.metadata) == []
    change(changed)
    found = faults(changed.files, changed.metadata)
    assert any(words in each for each in found), found
