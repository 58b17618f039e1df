"""What the pipeline file says of the lake, and what `--at` may say, checked before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import PipelineFileError
from slotlake.infra.cli.main import main

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


@pytest.mark.parametrize("at", ["yesterday", "0/XYZ", "12", ""])
def test_what_at_cannot_say_is_told_at_once(
    tmp_path: Path, at: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["query", str(_file(tmp_path)), "SELECT 1", "--at", at]) == 2
    told = capsys.readouterr().err
    assert "give an LSN as status prints it, a time, or latest" in told
