"""What a pipeline file says is done, or refused: nothing is accepted and then ignored."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import BaseModel

from slotlake.decoder.errors import PipelineFileError
from slotlake.infra.airflow import scheduling
from slotlake.infra.config.pipeline_file import PipelineFile, load_pipeline
from slotlake.infra.config.sections import TableSection
from slotlake.infra.opened.open_pipeline import lake_settings
from slotlake.infra.opened.own_state import require_own_state
from tests.sources import modules, tree

FILE = """name: shop
source: {dsn: "postgresql://u@h/d", publications: [shop], slot: s}
lake: {catalog: lake, uri: "env:LAKE", warehouse: "warehouse", namespace: shop}
"""


def _file(folder: Path, more: str) -> Path:
    path = folder / "shop.yaml"
    path.write_text(FILE + more)
    return path


@pytest.mark.parametrize(
    ("more", "key", "word"),
    [
        ("changelog: {path: s3://bucket//log}", "changelog.path", "an empty part"),
        ("changelog: {path: hdfs:/log}", "changelog.path", "a folder"),
        ("changelog: {path: file://other/log}", "changelog.path", "a folder"),
        ("state: {path: s3://bucket//state}", "state.path", "an empty part"),
        ("state: {path: hdfs:/state}", "state.path", "a folder"),
        ("state: {path: s3://bucket/state}", "", "both be in an object store"),
        ("spark: {master: 'spark://host'}", "spark.master", "spark://host:7077"),
        ("spark: {master: 'mesos://host:5050'}", "spark.master", "yarn"),
        ("spark: {master: 'local[0]'}", "spark.master", "spark.remote"),
        ("spark: {master: yarn, remote: 'sc://host:1'}", "spark", "not both"),
        ("spark: {packages: [a:b], master: yarn}", "spark.packages", "group:artifact:version"),
        ("spark: {packages: cluster}", "spark", "needs a cluster's master"),
        ("spark: {packages: [a:b:1], remote: 'sc://host:1'}", "spark", "its own jars"),
        ("spark: {conf: {executor.memory: 2g}}", "spark.conf", "begin with spark."),
        ("spark: {conf: {spark.master: yarn}}", "spark.conf", "use spark.master"),
        ("spark: {conf: {spark.sql.session.timeZone: CET}}", "spark.conf", "right results"),
        ("spark: {conf: {spark.x: [1]}}", "spark.conf.spark.x", "text"),
        ("spark: {remote: 'http://host:1'}", "spark.remote", "sc://host:port"),
        ("spark: {driver_memory: much}", "spark.driver_memory", "for example 2g"),
        ("airflow: {verify: hourly}", "airflow.verify", "daily, every_batch, manual"),
        ("airflow: {verify: 0}", "airflow.verify", "daily, every_batch, manual"),
        ("verify: {connections: 0}", "verify.connections", "greater than or equal to 1"),
        ("airflow: {schedule: on_changes}", "airflow.schedule", "on_change, a cron expression"),
        ("airflow: {schedule: 0}", "airflow.schedule", "1 or more"),
        ("airflow: {maintenance: on_change}", "airflow.maintenance", "a cron expression"),
        ("airflow: {run: continuous, schedule: on_change}", "airflow", "waits for changes itself"),
        ("airflow: {run: continuous, tasks: four}", "airflow", "a continuous run is one task"),
        (
            "airflow: {run: continuous, run_for: 10 minutes}",
            "airflow.run_for",
            "write seconds, or 90s, 10m, 2h",
        ),
        ("airflow: {deadline: 0}", "airflow.deadline", "greater than 0"),
        ("airflow: {deadline: soon}", "airflow.deadline", "90s, 10m, 2h"),
        ("airflow: {run_for: 7h}", "airflow", "shorter than run_hours_max"),
        ("airflow: {copy_tasks: 65}", "airflow.copy_tasks", "64"),
        ("airflow: {copy_tasks: 2}", "", "share the state of the pipeline"),
        ("permissions: 755", "permissions", "private"),
        ("tables: [[a]]", "tables", "names only"),
        ("tables: orders", "tables", "should be a mapping"),
        ("state: folder", "state", "should be a mapping"),
        ("mode: {a: b}", "mode", "should be a list"),
    ],
)
def test_what_does_nothing_is_refused(tmp_path: Path, more: str, key: str, word: str) -> None:
    with pytest.raises(PipelineFileError) as told:
        load_pipeline(_file(tmp_path, more))
    assert f"{key}: " in str(told.value)
    assert word in str(told.value)


@pytest.mark.parametrize(
    ("more", "line", "word"),
    [
        ("state: {path: 2026-13-45}", ", line 4", "kind timestamp is none"),
        ("state: {path: 0x_}", ", line 4", "write text in quotes"),
        ("tables: {? [a] : {}}", ", line 4", "a key is a list or a mapping"),
        ("state: " + "[" * 5000, "", "nested too deeply"),
    ],
)
def test_yaml_that_is_none(tmp_path: Path, more: str, line: str, word: str) -> None:
    with pytest.raises(PipelineFileError, match=f"the file is not valid YAML: .*{word}") as told:
        load_pipeline(_file(tmp_path, more))
    assert f"shop.yaml{line}\n" in str(told.value)


@pytest.mark.parametrize(
    ("warehouse", "word"),
    [
        ("s3://lake/x//y", "an empty part"),
        ("s3://lake//y", "an empty part"),
        ("s3://lake/../y", "a part . or .."),
        ("s3://lake/a?b", "the characters ? and #"),
        ("s3://lake/a#b", "the characters ? and #"),
        ("S3://lake/x", "in lower case: s3://lake/x"),
        ("s3:///x", "name a bucket"),
    ],
)
def test_a_prefix_that_no_object_store_keeps(tmp_path: Path, warehouse: str, word: str) -> None:
    file = _file(tmp_path, "")
    file.write_text(file.read_text().replace('warehouse: "warehouse"', f'warehouse: "{warehouse}"'))
    with pytest.raises(PipelineFileError) as told:
        load_pipeline(file)
    assert "lake.warehouse: " in str(told.value)
    assert word in str(told.value)


@pytest.mark.parametrize(
    "warehouse", ["s3://lake", "s3://lake/", "s3a://lake/with space/ü/", "abfss://c@a.x/p"]
)
def test_a_prefix_that_it_keeps(tmp_path: Path, warehouse: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE", "sqlite:////catalog.db")
    file = _file(tmp_path, "")
    file.write_text(file.read_text().replace('warehouse: "warehouse"', f'warehouse: "{warehouse}"'))
    assert load_pipeline(file).warehouse() == warehouse.rstrip("/")


@pytest.mark.parametrize(("master", "cores"), [("local", "1"), ("local[3]", "3"), ("local[*]", "*")])
def test_a_local_master_says_how_many_cores(tmp_path: Path, master: str, cores: str) -> None:
    assert load_pipeline(_file(tmp_path, f"spark: {{master: '{master}'}}")).spark.cores == cores


@pytest.mark.parametrize(
    "master", ["spark://a:7077", "spark://a:7077,b:7077", "yarn", "k8s://https://host:6443"]
)
def test_a_cluster_with_properties_and_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str
) -> None:
    conf = "{spark.executor.cores: 4, spark.dynamicAllocation.enabled: true, spark.x.secret: env:SECRET}"
    file = load_pipeline(_file(tmp_path, f"spark: {{master: '{master}', conf: {conf}, packages: cluster}}"))
    assert file.spark.is_on_cluster
    assert "hidden" not in repr(file)
    with pytest.raises(PipelineFileError, match="SECRET is not set"):
        file.spark_conf()
    monkeypatch.setenv("SECRET", "hidden")
    assert file.spark_conf() == {
        "spark.executor.cores": "4",
        "spark.dynamicAllocation.enabled": "true",
        "spark.x.secret": "hidden",
    }


@pytest.mark.parametrize("path", ["{d}/log", "file://{d}/log", "file:{d}/log", "log"])
def test_a_folder_of_the_change_log(tmp_path: Path, path: str) -> None:
    file = load_pipeline(_file(tmp_path, f"changelog: {{path: '{path.format(d=tmp_path)}'}}"))
    assert file.changelog_dir == tmp_path / "log"


@pytest.mark.parametrize("more", ["rest: {token: t}", "publish: per_table"])
def test_what_is_of_rest_catalogs_needs_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str
) -> None:
    monkeypatch.setenv("LAKE", "sqlite:////catalog.db")
    path = _file(tmp_path, "")
    path.write_text(path.read_text().replace("namespace: shop", f"namespace: shop, {more}"))
    with pytest.raises(PipelineFileError, match="for a REST catalog"):
        lake_settings(load_pipeline(path))
    monkeypatch.setenv("LAKE", "https://catalog.example/api")
    assert lake_settings(load_pipeline(path)).is_rest


def test_how_many_connections_a_verification_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = load_pipeline(_file(tmp_path, "")).verify
    for cores, count in ((1, 2), (3, 3), (32, 4)):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        assert (usual.connections_for(None), usual.connections_for(0.1)) == (count, 1)
    chosen = load_pipeline(_file(tmp_path, "verify: {connections: 6}")).verify
    assert (chosen.connections_for(None), chosen.connections_for(0.1)) == (6, 6)


@pytest.mark.parametrize(
    ("verify", "when"),
    [
        ("", "@daily"),
        ("daily", "@daily"),
        ("every_batch", ["asset"]),
        ("manual", None),
        ("null", None),
        ("7200", timedelta(hours=2)),
        ("'0 3 * * 0'", "0 3 * * 0"),
        ("'@weekly'", "@weekly"),
    ],
)
def test_when_a_verification_runs(tmp_path: Path, verify: str, when: object) -> None:
    file = load_pipeline(_file(tmp_path, f"airflow: {{verify: {verify}}}" if verify else ""))
    assert scheduling.verification(file, "asset") == when


def _keys(section: type[BaseModel], place: str = "") -> Iterator[tuple[str, str]]:
    for name, field in section.model_fields.items():
        yield name, place + name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _keys(field.annotation, f"{place}{name}.")


def test_each_key_is_read_somewhere() -> None:
    read = {
        node.attr
        for path in modules("decoder", "spark", "expectations", "infra", "dags")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute)
    }
    keys = [*_keys(PipelineFile), *_keys(TableSection, "tables.")]
    one_word_only = {"types.jsonb", "types.uuid", "types.time"}
    assert [place for name, place in keys if name not in read and place not in one_word_only] == []


def test_a_state_folder_that_is_elsewhere_is_not_begun_anew(tmp_path: Path) -> None:
    """One that is named, and is where it always was, goes on; the state of another pipeline is refused."""
    (tmp_path / ".slotlake" / "shop" / "changelog").mkdir(parents=True)
    same = load_pipeline(_file(tmp_path, "state: {path: .slotlake}"))
    assert same.state_dir == same.local_state_dir
    require_own_state(same, None)
    require_own_state(same, None)
    elsewhere = load_pipeline(_file(tmp_path, "state: {path: shared}"))
    with pytest.raises(PipelineFileError, match="next to the pipeline file still") as refused:
        require_own_state(elsewhere, None)
    assert str(elsewhere.state_dir) in refused.value.way_out
    same.local_state_dir.rename(tmp_path / "moved")
    require_own_state(elsewhere, None)
    section = elsewhere.source.model_copy(update={"slot": "other"})
    with pytest.raises(PipelineFileError, match="slot s there, other here"):
        require_own_state(elsewhere.model_copy(update={"source": section}), None)
