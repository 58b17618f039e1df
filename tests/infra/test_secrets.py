"""Secrets of a pipeline: not printed, masked in Airflow, redacted in Spark, not in the list of processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import PipelineFileError
from slotlake.infra.config.pipeline_file import load_pipeline
from slotlake.infra.config.secrets import secrets_of
from slotlake.spark.lake import LakeSettings
from slotlake.spark.properties import SENSITIVE_PROPERTIES
from slotlake.spark.session import sibling, use_lake
from tests.conftest import ROOT

FILE = """name: shop
source: {dsn: "postgresql://u:pass%20one@h/d", publications: [shop], slot: s}
lake:
  catalog: lake
  uri: "https://lakeuser:pass2@catalog.example/api"
  warehouse: warehouse
  namespace: shop
  rest: {token: pass3-token, credential: "id:pass4", warehouse: main, scope: PRINCIPAL_ROLE}
spark: {remote: "sc://spark.example:15002/;token=pass5;user_id=me"}
"""
SECRETS = ("pass one", "pass%20one", "pass2", "pass3-token", "pass4", "pass5")


def _file(folder: Path, text: str = FILE) -> Path:
    path = folder / "shop.yaml"
    path.write_text(text)
    return path


def test_nothing_that_is_printed_holds_one(tmp_path: Path) -> None:
    file = load_pipeline(_file(tmp_path))
    with Pipeline.open(file.path) as pipeline:
        printed = [file, file.source, file.lake, file.spark, vars(file), pipeline.source, pipeline.lake]
        shown = f"{printed} {file} {file.model_dump_json()} {pipeline.lake.place} {pipeline}"
    assert not [secret for secret in SECRETS if secret in shown]
    assert file.dsn() == "postgresql://u:pass%20one@h/d"
    assert file.remote() == "sc://spark.example:15002/;token=pass5;user_id=me"


def test_a_file_that_is_wrong_does_not_show_them(tmp_path: Path) -> None:
    wrong = (
        FILE.replace('spark: {remote: "sc://', 'spark: {remote: "http://')
        .replace("dsn: ", "dsn: [")
        .replace('h/d"', 'h/d"]')
    )
    with pytest.raises(PipelineFileError) as told:
        load_pipeline(_file(tmp_path, wrong))
    assert "spark.remote" in str(told.value)
    assert not [secret for secret in SECRETS if secret in str(told.value)]


def test_what_is_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONNECT_AUTHENTICATE_TOKEN", "pass6")
    monkeypatch.delenv("NOT_SET", raising=False)
    masked = secrets_of(load_pipeline(_file(tmp_path)))
    assert {*SECRETS, "pass6"} <= masked
    assert not {"main", "PRINCIPAL_ROLE", "catalog.example", "me", "shop"} & masked
    monkeypatch.setenv("REMOTE", "sc://h:1/;token=pass7")
    text = FILE.replace('"sc://spark.example:15002/;token=pass5;user_id=me"', "env:REMOTE")
    text = text.replace('"postgresql://u:pass%20one@h/d"', "\"host=h user=u password='pass 8' dbname=d\"")
    masked = secrets_of(load_pipeline(_file(tmp_path, text.replace("pass3-token", "env:NOT_SET"))))
    assert {"pass7", "pass 8", "pass2"} <= masked


def test_spark_redacts_what_a_rest_server_asks_for(session: Any) -> None:
    own = sibling(session)
    use_lake(own, LakeSettings("lake", "https://h/api", "/w", "shop", rest={"credential": "id:pass9"}))
    shown = {row[0]: row[1] for row in own.sql("SET").collect()}
    assert "spark.sql.catalog.lake.credential" in shown
    assert "pass9" not in str(shown)
    assert session.sparkContext.getConf().get("spark.redaction.regex") == SENSITIVE_PROPERTIES


@pytest.mark.seconds
@pytest.mark.parametrize("form", ["--dsn {}", "--dsn={}"])
def test_a_password_on_the_command_line_does_not_stay_there(form: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        dsn = f"postgresql://u:pass10@127.0.0.1:{mute.getsockname()[1]}/d"
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "slotlake", "decode", *form.format(dsn).split(), "--slot", "s"],
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            mute.settimeout(60)
            connection, _ = mute.accept()  # so it has got as far as the server
            words = Path(f"/proc/{process.pid}/cmdline").read_text()
            connection.close()
        finally:
            process.kill()
            _, said = process.communicate()
    assert "pass10" not in words
    assert "env:SLOTLAKE_DECODE_DSN" in words
    assert "pass10" not in said
    assert "env:NAME" in said
