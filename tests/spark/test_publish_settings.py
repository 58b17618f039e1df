"""What the pipeline file says of the lake, and what `--at` may say, checked before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import PipelineFileError
from slotlake.infra.cli.main import main
from slotlake.infra.config.unencrypted import unencrypted_connections

FILE = """
name: shop
source: {{dsn: "host=127.0.0.1 port=9", publications: [shop], slot: shop}}
lake:
  uri: "{uri}"
  warehouse: warehouse
  namespace: shop
{more}
"""


def _file(folder: Path, uri: str = "sqlite:///lake.db", more: str = "") -> Path:
    path = folder / "shop.yaml"
    path.write_text(FILE.format(uri=uri, more=more))
    return path


def test_the_lakes_defaults(tmp_path: Path) -> None:
    lake = Pipeline.open(_file(tmp_path)).lake
    assert (lake.keep.count, lake.keep.days, lake.publish, dict(lake.rest)) == (100, 7.0, "atomic", {})


def test_a_rest_catalog_and_its_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_TOKEN", "very secret")
    more = "  keep_points: {count: 5, days: 0.5}\n  publish: per_table\n"
    more += "  rest: {token: 'env:LAKE_TOKEN', scope: x}"
    pipeline = Pipeline.open(_file(tmp_path, "https://lake.example/api?x=1", more))
    assert (pipeline.lake.keep.count, pipeline.lake.keep.days) == (5, 0.5)
    assert pipeline.lake.rest == {"token": "very secret", "scope": "x"}
    assert pipeline.lake.spark_properties()["type"] == "rest"
    assert pipeline.lake.place == "https://lake.example/api"
    assert "very secret" not in repr(pipeline.lake) + repr(pipeline.file)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("  rest: {token: x}", "can be given for a REST catalog"),
        ("  publish: per_table", "can be given for a REST catalog"),
        ("  publish: sometimes", "'atomic' or 'per_table'"),
        ("  keep_points: {count: 0}", "greater than or equal to 1"),
        ("  keep_points: {days: 0}", "greater than 0"),
        ("  keep_points: {cuont: 3}", "did you mean count"),
    ],
)
def test_what_cannot_be_meant(tmp_path: Path, more: str, why: str) -> None:
    with pytest.raises(PipelineFileError, match=why):
        Pipeline.open(_file(tmp_path, more=more))


@pytest.mark.parametrize(
    ("uri", "more", "why"),
    [
        ("glue://eu-central-1", "", "cannot publish several tables at once"),
        ("thrift://host:9083", "", "cannot publish several tables at once"),
        ("glue://EU", "  publish: per_table", "no address of AWS Glue"),
        ("thrift://host", "  publish: per_table", "no address of a Hive Metastore"),
        ("thrift://h:1", "  publish: per_table\n  glue: {endpoint: 'http://x'}", "for AWS Glue"),
        ("glue://", "  publish: per_table\n  glue: {endpoint: x}", "write the server's address"),
        ("glue://", "  publish: per_table\n  rest: {token: x}", "can be given for a REST catalog"),
        ("https://x", "  glue: {endpoint: 'http://x'}", "for AWS Glue"),
    ],
)
def test_catalogs_of_one_table_at_a_time(tmp_path: Path, uri: str, more: str, why: str) -> None:
    with pytest.raises(PipelineFileError, match=why):
        Pipeline.open(_file(tmp_path, uri, more))


def test_glue_and_hive_as_spark_is_told(tmp_path: Path) -> None:
    more = "  publish: per_table\n  glue: {catalog_id: '012345678901', endpoint: 'https://glue.example'}"
    properties = Pipeline.open(_file(tmp_path, "glue://eu-central-1", more)).lake.spark_properties()
    assert (properties["type"], properties["client.region"]) == ("glue", "eu-central-1")
    assert (properties["glue.id"], properties["glue.endpoint"]) == ("012345678901", "https://glue.example")
    two = "thrift://a:9083,thrift://b:9083"
    pipeline = Pipeline.open(_file(tmp_path, two, "  publish: per_table"))
    assert (pipeline.lake.spark_properties()["type"], pipeline.lake.place) == ("hive", two)
    assert len(unencrypted_connections(pipeline.file)) == 1
    file = tmp_path / "shop.yaml"
    file.write_text(file.read_text().replace("namespace: ", "namespace: S"))
    with pytest.raises(PipelineFileError, match="letters a to z"):
        Pipeline.open(file)


@pytest.mark.parametrize("at", ["yesterday", "0/XYZ", "12", ""])
def test_what_at_cannot_say_is_told_at_once(
    tmp_path: Path, at: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["query", str(_file(tmp_path)), "SELECT 1", "--at", at]) == 2
    told = capsys.readouterr().err
    assert "give an LSN as status prints it, a time, or latest" in told
