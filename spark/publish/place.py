"""Where a table's copied files go, and how what a crash left there is told from what is another's.

A directory that is being filled holds a marker with the pipeline's name.  Only directories with our
own marker are ever removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import pyarrow.parquet as pq

from slotlake.decoder.errors import LakeError
from slotlake.decoder.types.representations import Representation
from slotlake.spark import exchange, lake_files
from slotlake.spark.catalog.base import load, load_all, require_own
from slotlake.spark.catalog.open import Catalog, open_catalog
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import LakeName, belongs, copying, is_copying, visible
from slotlake.spark.storage.base import StoredFile
from slotlake.spark.storage.folder import local_path
from slotlake.spark.storage.location import Location
from slotlake.spark.storage.stores import canonical
from slotlake.spark.tables.layout import is_laid_out
from slotlake.spark.tables.metadata import Metadata
from slotlake.spark.tables.schema import PIPELINE_PROPERTY, TableSchema

_MARKER = ".slotlake-copying"
_DATA = "data"
_AGAIN, _RANGES = "data-again", "ranges"
RetainedFiles = Mapping[LakeName, Collection[str]]
Names = Collection[str] | None


class DirectoryInUseError(LakeError):
    """Files of another owner are where a new table is to be."""


@dataclass(frozen=True)
class CopyTarget:
    """Where the copied files of one table go, and the field ids that must stand in them.

    Attributes:
        lake_table: "namespace.table" that it will be.
        directory: a folder of this machine that exists and is empty; every ``*.parquet`` in it becomes the
            table's.
        final: where these files are to be, if that is not the directory itself: in an object store. `deliver`
            brings them there.
        names: source column → column name in the files.
        field_ids: source column → Iceberg field id.
        exact_names, exact_field_ids: likewise of the column that takes the exact text, for columns
            whose type is inexact; such a column is written only if it holds a value.
        representations: of source columns that are not kept as the table of types says.
        inner_ids: of those that are lists or structs, the field ids inside, in order.
    """

    lake_table: str
    directory: Path
    names: Mapping[str, str]
    field_ids: Mapping[str, int]
    exact_names: Mapping[str, str]
    exact_field_ids: Mapping[str, int]
    representations: Mapping[str, Representation] = field(default_factory=dict)
    inner_ids: Mapping[str, Sequence[int]] = field(default_factory=dict)
    final: Location | None = None

    @property
    def again(self) -> CopyTarget:
        """Next to this target, for rows that are read once more (`InitialCopy.register`)."""
        final = None if self.final is None else self.final.parent / _AGAIN
        return replace(self, directory=self.directory.with_name(_AGAIN), final=final)

    def deliver(self, files: Sequence[Path]) -> None:
        """Bring files of the directory to their final place; the local ones go.

        Raises:
            LakeError: they cannot be written there.
        """
        if self.final is not None:
            lake_files.put(files, self.final, [file.name for file in files])
            for file in files:
                file.unlink()

    def delivered(self) -> dict[str, int]:
        """The files that are in their final place, by name, with their sizes in bytes.

        Raises:
            LakeError: the storage does not answer.
        """
        return {file.location.name: file.size for file in self._stored()}

    def discard(self, files: Sequence[Path]) -> None:
        """Remove files of the directory, which may have been brought to their final place.

        Raises:
            LakeError: the storage does not answer, or refuses.
        """
        for file in files:
            file.unlink(missing_ok=True)
        if self.final is not None:
            lake_files.remove([self.final / file.name for file in files])

    def locations(self, names: Names = None) -> list[Location]:
        """The Parquet files that are in their final place.

        Args:
            names: only these; None: all.

        Raises:
            LakeError: the storage does not answer.
        """
        stored = [file.location for file in self._stored() if file.location.name.endswith(".parquet")]
        return sorted(each for each in stored if names is None or each.name in names)

    def retain(self, names: Collection[str]) -> None:
        """Remove all files but these, of the directory and of the final place.

        Raises:
            LakeError: the storage does not answer, or refuses.
        """
        for path in self.directory.glob("*"):
            if path.name not in names:
                path.unlink()
        if self.final is not None:
            lake_files.remove([file.location for file in self._stored() if file.location.name not in names])

    def _stored(self) -> Iterator[StoredFile]:
        return lake_files.files(f"file://{self.directory}" if self.final is None else self.final)


def copy_target(lake: LakeSettings, name: LakeName, metadata: Metadata, schema: TableSchema) -> CopyTarget:
    """Return the target for a hidden table's files.

    Those of a table that is partitioned or sorted are read once more (`spark.copy.spread`). Until the table
    is published they stay on this machine, or next to the table's data if several machines work on the lake.
    """
    ids = field_ids(metadata)
    inexact = [column for column in schema.columns if column.exact_name in ids]
    final = Location(metadata["location"]) / _DATA
    on_the_way = is_laid_out(metadata)
    path = _ranges(lake, name) / _DATA if final.is_in_bucket or on_the_way else local_path(final)
    return CopyTarget(
        lake_table=str(name),
        directory=exchange.make_directory(path),
        names={column.name: column.lake_name for column in schema.columns},
        field_ids={column.name: ids[column.lake_name] for column in schema.columns},
        exact_names={column.name: column.exact_name for column in inexact},
        exact_field_ids={column.name: ids[column.exact_name] for column in inexact},
        representations={column.name: column.representation for column in schema.columns if column.form},
        inner_ids={c.name: inner_ids(metadata, c.lake_name) for c in schema.columns if c.form},
        final=_final(lake, final, on_the_way=on_the_way),
    )


def _final(lake: LakeSettings, data: Location, *, on_the_way: bool) -> Location | None:
    if not data.is_in_bucket or (on_the_way and not lake.shared):
        return None
    return data.parent / _RANGES if on_the_way else data


def _ranges(lake: LakeSettings, name: LakeName) -> Path:
    """Where files of a copy are on this machine that are not, or not yet, where the table's lie."""
    return exchange.exchange_path(lake, "copying", name.namespace, name.table)


def remove_ranges(lake: LakeSettings, name: LakeName, metadata: Metadata | None = None) -> None:
    """Remove what a copy of a table left on this machine, or next to the table's data."""
    if metadata is not None and lake.shared and lake.is_in_bucket and is_laid_out(metadata):
        for folder in (_RANGES, _AGAIN):
            lake_files.remove_tree(table_directory(lake, name) / folder)
    if not lake.is_in_bucket or lake.exchange is not None:
        exchange.remove_directory(_ranges(lake, name))


def inner_ids(metadata: Metadata, lake_column: str) -> list[int]:
    """The field ids within a list's or a struct's type."""
    current = next(s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"])
    kind = next(part["type"] for part in current["fields"] if part["name"] == lake_column)
    if isinstance(kind, str):
        return []
    return [kind["element-id"]] if kind["type"] == "list" else [part["id"] for part in kind["fields"]]


def field_ids(metadata: Metadata) -> dict[str, int]:
    """Lake column → field id, of the table's current schema."""
    current = next(s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"])
    return {field["name"]: field["id"] for field in current["fields"]}


def claim_directory(location: Location, pipeline: str, *, reuse: bool = False) -> None:
    """Mark a directory as this pipeline's, for a copy.

    Args:
        reuse: files of an earlier attempt may be in it, if it is marked already.

    Raises:
        DirectoryInUseError: it holds something of another owner.
    """
    if reuse and _claimed_by(location) == pipeline:
        return
    if next(lake_files.files(location), None) is not None:
        raise DirectoryInUseError(
            "the directory of a new table is in use",
            where=location,
            way_out="remove it if nothing needs it (a table dropped from the catalog leaves its files, one "
            "that was renamed still needs them), or give the pipeline another lake.namespace",
        )
    lake_files.write_new(location / _MARKER, pipeline.encode())


def has_files_of_others(location: Location, pipeline: str) -> bool:
    """Return whether a new table cannot be made in a directory, because there are files in it.

    Args:
        pipeline: this pipeline's name: what an attempt of it left is in nobody's way.
    """
    return next(lake_files.files(location), None) is not None and _claimed_by(location) != pipeline


def remove_marker(location: Location) -> None:
    """The table is whole: nothing may remove its directory any more."""
    lake_files.remove([location / _MARKER])


def table_directory(lake: LakeSettings, name: LakeName) -> Location:
    """The directory of a table."""
    return lake.root / name.namespace / name.table


def hidden_tables(catalog: Catalog) -> list[LakeName]:
    """Tables of this lake that are, or were, being filled, by the name they would have."""
    bases = [
        LakeName(visible(name.namespace), name.table)
        for name in catalog.names()
        if is_copying(name.namespace)
    ]
    return [name for name in bases if belongs(name.namespace, catalog.lake.namespace)]


def clear_leftovers(
    catalog: Catalog,
    pipeline: str,
    names: Collection[LakeName],
    retained: RetainedFiles = MappingProxyType({}),
) -> None:
    """Drop what an earlier attempt of this pipeline left of these tables, and its files.

    Args:
        retained: table → names of files that stay.

    Raises:
        LakeError: another pipeline is filling a table of that name.
    """
    pointers = catalog.pointers_of([each for name in names for each in (name, copying(name))])
    for name in names:
        catalog.discard(name, pipeline)
        hidden = copying(name)
        if hidden in pointers:
            require_own(hidden, load(pointers, hidden).metadata.get("properties", {}), pipeline)
            catalog.drop([hidden])
        location = table_directory(catalog.lake, name)
        if name not in pointers and _claimed_by(location) == pipeline:
            _clear(location, retained.get(name, ()))
        if not retained.get(name):
            remove_ranges(catalog.lake, name)


def _clear(location: Location, retained: Collection[str]) -> None:
    if not retained:
        lake_files.remove_tree(location)
        return
    folders = [canonical(location / folder) for folder in (_DATA, _RANGES)]
    stays = {canonical(location / _MARKER), *(folder / name for folder in folders for name in retained)}
    stored = (file.location for file in lake_files.files(location))
    lake_files.remove([each for each in stored if canonical(each) not in stays])


def clear_unfinished(lake: LakeSettings, pipeline: str) -> None:
    """Drop all that an initial copy of this pipeline left out of sight.

    Raises:
        LakeError: the catalog cannot be reached.
    """
    with open_catalog(lake) as catalog:
        hidden = _own_hidden_tables(catalog, pipeline)
        clear_leftovers(catalog, pipeline, hidden)
        for namespace in {copying(name).namespace for name in hidden}:
            catalog.drop_namespace(namespace)


def _own_hidden_tables(catalog: Catalog, pipeline: str) -> list[LakeName]:
    names = hidden_tables(catalog)
    tables = load_all(catalog, [copying(name) for name in names])
    owners = {
        name: tables[copying(name)].metadata.get("properties", {}).get(PIPELINE_PROPERTY) for name in names
    }
    return [name for name in names if owners[name] == pipeline]


def _claimed_by(location: Location) -> str | None:
    if lake_files.size(location / _MARKER) is None:
        return None
    return lake_files.read(location / _MARKER).decode(errors="replace")


def companions_in(files: Sequence[Location], target: CopyTarget) -> list[str]:
    """Source columns whose exact text stands in some file."""
    written = {name for file in files for name in _columns(file)}
    return [source for source, name in target.exact_names.items() if name in written]


def _columns(location: Location) -> list[str]:
    with lake_files.open_to_read(location) as file:
        return list(pq.read_schema(file).names)
