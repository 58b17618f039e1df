"""`lake.readers`: the pipeline file is judged by what the readers can read that it names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from slotlake.decoder.catalog.publications import SourceColumn, SourceTable
from slotlake.decoder.errors import PipelineFileError
from slotlake.infra.config.pipeline_file import PipelineFile, load_pipeline
from slotlake.infra.selection.reader_facts import ASPECTS, LOOKED_UP, READERS
from slotlake.infra.selection.readers import reader_findings, reader_warnings, require_readers
from tests.sources import ROOT

pytestmark = pytest.mark.fast

FORMATS_AND_TYPES = ["format 2", "format 3", "uuid", "time", "variant", "nanoseconds"]
POSTGRES, SQLITE = "postgresql+psycopg://u@h/d", "sqlite:///lake.db"
GLUE = "https://glue.eu-west-1.amazonaws.com/iceberg"
PER_TABLE = {"format": 2, "publish": "per_table"}


def _file(folder: Path, lake: dict[str, Any], more: str = "") -> PipelineFile:
    settings = {"uri": POSTGRES, "warehouse": "s3://bucket/lake", "namespace": "shop", **lake}
    lines = "".join(f"  {key}: {value}\n" for key, value in settings.items())
    path = folder / "shop.yaml"
    source = "source: {dsn: postgresql://h/d, publications: [p], slot: s}\n"
    path.write_text(f"name: shop\n{source}lake:\n{lines}{more}")
    return load_pipeline(path)


# What the lake is, who reads it, the words of the errors, those of the warnings.
CASES = [
    ({}, "[spark, pyiceberg]", [], []),
    ({}, "[trino]", ["Trino 476 does not read tables of Iceberg's format 3"], []),
    ({"format": 2}, "[trino, starrocks]", [], []),
    ({"format": 2, "uri": SQLITE}, "[trino]", [], ["not known to read a catalog in SQLite"]),
    ({"format": 2}, "[athena]", ["Athena engine version 3 does not read a catalog in PostgreSQL"], []),
    ({"format": 2, "uri": GLUE}, "[athena]", [], []),
    ({**PER_TABLE, "uri": "glue://eu-west-1"}, "[athena, starrocks]", [], []),
    ({**PER_TABLE, "uri": "thrift://h:9083"}, "[athena]", ["a catalog in a Hive Metastore"], []),
    (
        {**PER_TABLE, "uri": "thrift://h:9083"},
        "[trino, bigquery]",
        [],
        ["not known to read a catalog in a Hive"],
    ),
    ({"format": 2, "uri": "https://catalog.example"}, "[athena]", ["does not read a REST catalog"], []),
    ({}, "[duckdb]", [], ["only by the address of each table's metadata file"]),
    (
        {"uri": "https://catalog.example"},
        "[bigquery]",
        [],
        ["format 3 in a preview only", "REST catalog only"],
    ),
    ({"warehouse": "/lake", "uri": GLUE}, "[snowflake]", ["does not read a folder of this machine"], []),
    ({"warehouse": "gs://b/l", "format": 2, "uri": GLUE}, "[athena]", ["a warehouse in gs://"], []),
]


@pytest.mark.parametrize(("lake", "readers", "errors", "warnings"), CASES)
def test_judged(tmp_path: Path, lake: Any, readers: str, errors: list[str], warnings: list[str]) -> None:
    file = _file(tmp_path, {**lake, "readers": readers})
    findings = reader_findings(file)
    for result, expected in (("error", errors), ("warning", warnings)):
        texts = [str(finding) for finding in findings if finding.result == result]
        assert len(texts) == len(expected), texts
        assert all(words in text for words, text in zip(expected, texts, strict=True)), texts
    if errors:
        with pytest.raises(PipelineFileError, match=errors[0]):
            require_readers(file)
    assert len(reader_warnings(file)) == len(errors)


def test_a_variant_is_refused_with_each_reader_that_cannot_read_it(tmp_path: Path) -> None:
    cannot = [name for name, reader in READERS.items() if reader.answer("variant") == "no"]
    for readers in ([], ["spark", "duckdb"], *([name] for name in cannot), list(READERS)):
        with pytest.raises(PipelineFileError) as refused:
            _file(tmp_path, {"format": 3, "readers": readers}, "types: {jsonb: variant}\n")
        named = set(re.findall(r"[a-z]+", str(refused.value).partition(", so only text")[0]))
        assert named & {*READERS} == {"pyiceberg", *(name for name in readers if name in cannot)}


def test_a_table_of_its_own_format(tmp_path: Path) -> None:
    table = "tables:\n  public.t: {format: 3}\n"
    (finding,) = reader_findings(_file(tmp_path, {"format": 2, "readers": "[trino]"}, table))
    assert "set tables.public.t.format: 2 (and run slotlake format" in finding.way_out
    assert reader_findings(_file(tmp_path, {"format": 2, "readers": "[trino]"})) == []


def test_names_of_columns(tmp_path: Path) -> None:
    file = _file(tmp_path, {"format": 2, "uri": GLUE, "readers": "[bigquery]"})
    columns = tuple(SourceColumn(name, 23, -1, "integer", True, False) for name in ("id", "größe"))
    table = SourceTable(1, "public", "t", "r", "d", columns, ("id",), ("id",), None, True, True)
    (finding,) = reader_findings(file, [table])
    assert 'flexible column names for column \'größe\' of "public"."t"' in finding.what


def test_an_unknown_reader(tmp_path: Path) -> None:
    with pytest.raises(PipelineFileError, match=r"lake\.readers\.0"):
        _file(tmp_path, {"readers": "[presto]"})


def test_the_page_shows_the_facts() -> None:
    """Each reader's row, notes and sources; the day on which they were looked up."""
    page = " ".join((ROOT / "docs" / "reading.md").read_text().split())
    assert LOOKED_UP in page
    tables = (FORMATS_AND_TYPES, [aspect for aspect in ASPECTS if aspect not in FORMATS_AND_TYPES])
    for aspects in tables:
        assert f"| reader | {' | '.join(ASPECTS[aspect] for aspect in aspects)} |" in page
    for name, reader in READERS.items():
        for aspects in tables:
            cells = " | ".join(reader.answer(aspect) for aspect in aspects)
            assert f"| {reader.title} | {cells} |" in page, name
        for text in (f"**{reader.title}** ({reader.version})", reader.notes, *reader.sources):
            assert text in page, text
