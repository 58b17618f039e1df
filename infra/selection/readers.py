"""Can the readers that the pipeline file names (`lake.readers`) read the lake that it describes?

Judged is the file as a whole, by the facts of `infra.selection.reader_facts`: the formats of the tables, the
catalog, the storage, chosen types, and, where the source is known, names of columns.  What a reader cannot
read is refused by `init` before anything is made, and an error of `validate`. A lake that exists goes on: its
`sync` and `status` warn.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from slotlake.decoder.errors import PipelineFileError
from slotlake.infra.selection.reader_facts import READERS, Answer, Reader
from slotlake.spark.names import lake_columns

if TYPE_CHECKING:
    from slotlake.decoder.catalog.publications import SourceTable
    from slotlake.infra.config.pipeline_file import PipelineFile

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_GLUE = re.compile(r"(^|\.)glue\.[a-z0-9-]+\.amazonaws\.com(\.cn)?$")
_WORDS: dict[Answer, str] = {
    "preview": "reads {} in a preview only",
    "unknown": "is not known to read {}",
    "file": "reads {} only by the address of each table's metadata file, which is another one after each "
    "publication",
}


@dataclass(frozen=True)
class ReaderFinding:
    """Something of the file that a reader cannot read, or may not be able to read."""

    result: Literal["error", "warning"]
    what: str
    way_out: str

    def __str__(self) -> str:
        return f"{self.what}: {self.way_out}"


def reader_findings(file: PipelineFile, tables: Iterable[SourceTable] = ()) -> list[ReaderFinding]:
    """Judge the file by what each reader can read that it names.

    Args:
        tables: the published tables, if they are known.
    """
    published = list(tables)
    findings = []
    for name in file.lake.readers:
        reader = READERS[name]
        findings += list(_of_reader(file, name, reader))
        findings += list(_names(name, reader, published)) if reader.plain_names else []
    return findings


def require_readers(file: PipelineFile) -> None:
    """Check that no reader is named that cannot read the lake.

    Raises:
        PipelineFileError: one cannot.
    """
    for finding in reader_findings(file):
        if finding.result == "error":
            raise PipelineFileError(finding.what, where="lake.readers", way_out=finding.way_out)


def reader_warnings(file: PipelineFile) -> list[str]:
    """What `sync` and `status` warn of: what a reader cannot read."""
    return [str(finding) for finding in reader_findings(file) if finding.result == "error"]


def _of_reader(file: PipelineFile, name: str, reader: Reader) -> Iterator[ReaderFinding]:
    leave_out = f"take {name} out of lake.readers"
    formats = {file.lake.format: "lake.format"}
    for table, section in file.tables.items():
        formats.setdefault(section.format or file.lake.format, f"tables.{table}.format")
    for number, key in sorted(formats.items()):
        other = 5 - number
        way_out = f"set {key}: {other} (and run slotlake format for a lake that exists), or {leave_out}"
        if reader.answer(f"format {other}") != "yes":
            way_out = leave_out
        yield from _finding(reader, f"format {number}", f"tables of Iceberg's format {number}", way_out)
    catalog = _catalog(file)
    what = {"sqlite": "a catalog in SQLite", "postgresql": "a catalog in PostgreSQL"}
    what |= {"glue": "a catalog in AWS Glue", "hive": "a catalog in a Hive Metastore"}
    way_out = f"use a catalog that {reader.title} reads (docs/reading.md), or {leave_out}"
    yield from _finding(reader, catalog, what.get(catalog, "a REST catalog"), way_out)
    storage = _storage(file)
    where = "a folder of this machine" if storage == "file" else f"a warehouse in {storage}://"
    way_out = f"use a warehouse that {reader.title} reads (docs/reading.md), or {leave_out}"
    yield from _finding(reader, storage, where, way_out)


def _finding(reader: Reader, aspect: str, what: str, way_out: str) -> Iterator[ReaderFinding]:
    answer = reader.answer(aspect)
    if answer == "no":
        yield ReaderFinding("error", f"{reader.title} {reader.version} does not read {what}", way_out)
    elif answer != "yes":
        words = _WORDS[answer].format(what)
        yield ReaderFinding("warning", f"{reader.title} {reader.version} {words}", f"test it, or {way_out}")


def _names(name: str, reader: Reader, tables: Iterable[SourceTable]) -> Iterator[ReaderFinding]:
    for table in tables:
        columns = lake_columns([column.name for column in table.columns])
        odd = [column for column in columns if not _PLAIN.fullmatch(column)]
        if odd:
            what = f"{reader.title} needs its flexible column names for column {odd[0]!r} of {table.quoted}"
            yield ReaderFinding("warning", what, f"rename the column, or take {name} out of lake.readers")


def _catalog(file: PipelineFile) -> str:
    uri = file.lake_uri()
    if uri.startswith("sqlite"):
        return "sqlite"
    if uri.startswith("postgres"):
        return "postgresql"
    if uri.startswith(("glue:", "thrift:")):
        return "glue" if uri.startswith("glue:") else "hive"
    return "glue" if _GLUE.search(urlsplit(uri).hostname or "") else "rest"


def _storage(file: PipelineFile) -> str:
    scheme = urlsplit(file.warehouse()).scheme
    return {"s3a": "s3", "abfs": "abfss"}.get(scheme, scheme)
