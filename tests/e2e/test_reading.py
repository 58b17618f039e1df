"""docs/reading.md: each example runs as it stands, on a real lake, with the packages and jars it names."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars
import pytest
import yaml
from sqlalchemy.engine import make_url

from slotlake import Pipeline
from slotlake.infra.config.pipeline_file import load_pipeline
from slotlake.spark.catalog import view_spaces
from slotlake.spark.lake import LakeSettings
from tests.catalogs import postgres_uri
from tests.conftest import ROOT, Database, fresh_database
from tests.e2e.oracle import pipeline_file
from tests.e2e.readers import Trino, duckdb_connection, pyiceberg_catalog
from tests.e2e.trino_server import LocalTrino
from tests.storage import IN_S3, ON_REST

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(IN_S3 or ON_REST, reason="the page's examples have a folder and a SQLite file"),
]
LONG = pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it")
PAGE = (ROOT / "docs" / "reading.md").read_text()
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SETUP = """
CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL);
CREATE TABLE orders (id int PRIMARY KEY, customer int, total numeric(10,2), placed_at timestamptz,
                     tags text[], during int4range, doc jsonb);
INSERT INTO customers VALUES (1, 'Ada'), (2, 'Bob');
INSERT INTO orders SELECT g, 1 + g % 2, g * 1.25, timestamptz '1969-12-31 11:00+00' + g * interval '1 min',
       ARRAY['a', NULL, g::text], int4range(g, g + 2), '{"a": 1.50}' FROM generate_series(1, 100) g
"""
TYPES = "types: {arrays: list, ranges: struct}\n"
EARLIER = "UPDATE orders SET total = 0 WHERE id <= 10; DELETE FROM orders WHERE id % 7 = 0"
LATER = "DELETE FROM orders WHERE id > 50; INSERT INTO customers VALUES (3, 'Cem')"
ROWS = 86  # at the point that the examples read: it is not the newest


@dataclass
class Shop:
    """A lake whose newest point but one the page's examples read."""

    folder: Path
    lsn: str
    pins: dict[str, int]
    catalog: Any

    def example(self, text: str) -> str:
        """An example with this lake's values in the place of the page's."""
        upper, lower = self.lsn.split("/")
        text = text.replace("0/1A2B3C4D", self.lsn).replace("lsn_0_1A2B3C4D", f"lsn_{upper}_{lower}")
        text = text.replace("00000000_1a2b3c4d", f"{int(upper, 16):08x}_{int(lower, 16):08x}")
        text = text.replace("1234567890", str(self.pins["shop.orders"])).replace("/path/", f"{self.folder}/")
        return re.sub(r"…/shop/(\w+)/metadata/….metadata.json", self._metadata, text)

    def _metadata(self, found: re.Match[str]) -> str:
        return str(self.catalog.load_table(f"shop.{found[1]}").metadata_location)


def blocks(heading: str) -> list[tuple[str, str]]:
    """Kind and text of each block under a heading, in their order."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return _BLOCK.findall(section)


def examples(shop: Shop, heading: str, kind: str) -> list[str]:
    """The examples of one kind under a heading, to be run on a lake."""
    return [shop.example(text) for each, text in blocks(heading) if each == kind]


def _made(folder: Path, database: Database, lake: str = "") -> Shop:
    """Make the lake; `lake`: other lines for its catalog, the first one in the place of `uri`."""
    database.execute(SETUP)
    file = pipeline_file(folder, database, ["orders", "customers"], extra=TYPES)
    text = file.read_text().replace("lake:\n", "lake:\n  views: true\n", 1)
    file.write_text(re.sub(r'uri: ".*"', lake, text, count=1) if lake else text)
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        database.execute(EARLIER)
        lsn = pipeline.sync().lsn
        database.execute(LATER)
        pipeline.sync()
        catalog = pyiceberg_catalog(pipeline.lake)
    points = catalog.load_table("shop.commits").scan(row_filter=f"lsn = '{lsn}'").to_arrow().to_pylist()
    return Shop(folder, str(lsn), dict(points[-1]["tables"]), catalog)


@pytest.fixture(scope="module")
def shop(pg: Any, session: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with fresh_database(pg) as database, pytest.MonkeyPatch.context() as patch:
        patch.setattr(view_spaces, "SECONDS_APART", 0.0)  # else a namespace that stays is made once a minute
        yield _made(tmp_path_factory.mktemp("reading"), database)


def test_every_example_of_the_page_is_run_here() -> None:
    run = {
        "slotlake": ["sh", "python"], "Pinned views": ["sql"], "Spark": ["python"], "pyiceberg": ["python"],
        "polars": ["python"], "DuckDB": ["python", "sql", "sql", "sql", "sql"],
        "Trino": ["properties", "sql"], "What each reader reads": ["yaml"],
        "Models with dbt": ["yaml", "sh", "sh"],
    }  # fmt: skip
    headings = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    assert {heading: [kind for kind, _ in found] for heading in headings if (found := blocks(heading))} == run


def test_the_versions_of_the_page_are_those_that_run_here() -> None:
    named = re.findall(r"[`\s\"']([a-z0-9-]+)(?:\[[a-z,-]+\])?==([\d.]+)", PAGE)
    locked = (ROOT / "infra" / "requirements.txt").read_text()
    assert {"pyspark", "pyiceberg", "polars", "duckdb", "duckdb-extension-httpfs"} <= dict(named).keys()
    assert [each for each in named if f"\n{each[0]}=={each[1]} " not in locked] == []
    jars = re.findall(r"[a-z.]+:[a-z0-9._-]+:[\d.]+\d", PAGE)
    lines = (ROOT / "infra" / "local" / "jars.lock").read_text().splitlines()
    assert set(jars) == {line.split()[0] for line in lines if not line.startswith("#")}


def test_slotlake(shop: Shop) -> None:
    launcher = shop.folder / "slotlake"
    launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m slotlake "$@"\n')
    launcher.chmod(launcher.stat().st_mode | stat.S_IXUSR)
    (script,) = examples(shop, "slotlake", "sh")
    done = subprocess.run(
        ["bash", "-ec", script],
        input="SELECT count(*) FROM customers;\n",
        cwd=shop.folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"{ROWS}" in done.stdout
    assert (shop.folder / "orders.csv").read_text().count("\n") == 1 + 43


def test_rows_from_python(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shop.folder)
    (script,) = examples(shop, "slotlake", "python")
    seen: list[Any] = []
    exec(script.replace("        ...", "        seen.append((id_, total))"), {"seen": seen})
    assert len(seen) == ROWS
    assert ("1", "0.00") in [(str(id_), total) for id_, total in seen]


def test_spark_and_pinned_views(shop: Shop, spark_runtime: Any) -> None:
    """In a Spark of its own; the jars that the page names are those that are here already."""
    (script,) = examples(shop, "Spark", "python")
    (statements,) = examples(shop, "Pinned views", "sql")
    jars = [
        str(path)
        for _, name, version in re.findall(r'"([a-z.]+):([a-z0-9._-]+):([\d.]+)"', script)
        for path in spark_runtime.jar_paths
        if path.name.endswith(f"{name}-{version}.jar")
    ]
    assert len(jars) == 2
    script = re.sub(r'",".join\(\[.*?\]\)', repr(",".join(jars)), script, flags=re.DOTALL)
    script = script.replace("spark.jars.packages", "spark.jars")
    for statement in re.sub("--.*", "", statements).split(";"):
        if statement.strip():
            script += f"rows = session.sql({statement.strip()!r}).collect()\n"
    script += "print('VIEWS', sorted(row[0] for row in rows))\n"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={
            **{
                name: value for name, value in os.environ.items() if name != "SPARK_CONF_DIR"
            },  # slotlake's own
            "PYSPARK_SUBMIT_ARGS": "--master local[1] pyspark-shell",
        },
        cwd=shop.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "VIEWS ['Ada', 'Bob']" in done.stdout
    assert "| Ada|" in done.stdout


def test_pyiceberg(shop: Shop) -> None:
    (script,) = examples(shop, "pyiceberg", "python")
    scope: dict[str, Any] = {}
    exec(script, scope)
    assert scope["orders"].num_rows == ROWS


def test_polars_gives_what_pyiceberg_gives_also_nested(shop: Shop) -> None:
    (script,) = examples(shop, "polars", "python")
    scope: dict[str, Any] = {}
    exec(script, scope)
    found = scope["orders"].sort("id").collect()
    scan = shop.catalog.load_table("shop.orders").scan(snapshot_id=shop.pins["shop.orders"])
    assert found.height == ROWS
    assert found.to_dicts() == polars.DataFrame(scan.to_arrow().sort_by("id")).to_dicts()
    assert str(found.schema["total"]) == "Decimal(precision=10, scale=2)"


def test_duckdb(shop: Shop) -> None:
    (script,) = examples(shop, "DuckDB", "python")
    scope: dict[str, Any] = {}
    exec(script, scope)
    first, _, cache, moments = examples(shop, "DuckDB", "sql")
    off, pins, count = first.split(";")[:3]
    for statement in (off, cache):
        scope["connection"].execute(statement)
    assert scope["connection"].execute(pins).fetchall()[-1][0] == shop.pins
    assert scope["connection"].execute(count).fetchall() == [(ROWS,)]
    assert len(scope["connection"].execute(moments).fetchall()) == 0


def test_the_pipeline_file_takes_what_the_page_shows(shop: Shop, tmp_path: Path) -> None:
    shown = [
        text
        for heading in ("What each reader reads", "Models with dbt")
        for text in examples(shop, heading, "yaml")
    ]
    for number, text in enumerate(shown):
        settings = yaml.safe_load((shop.folder / "shop.yaml").read_text())
        for section, value in yaml.safe_load(text).items():
            settings[section] = settings.get(section, {}) | value if isinstance(value, dict) else value
        file = tmp_path / f"{number}.yaml"
        file.write_text(yaml.safe_dump(settings))
        load_pipeline(file)
    assert len(shown) == 2


@LONG
def test_duckdb_attached_to_a_rest_catalog(pg: Any, session: Any, rest: str, tmp_path: Path) -> None:
    with fresh_database(pg) as database:
        shop = _made(tmp_path, database, f'uri: "{rest}"')
    connection = duckdb_connection("httpfs", "avro", "iceberg")
    attach, count = examples(shop, "DuckDB", "sql")[1].replace("https://…", rest).split(";")[:2]
    connection.execute(attach)
    assert connection.execute(count.partition("\n")[2]).fetchall() == [(ROWS,)]


@LONG
def test_trino(pg: Any, session: Any, tmp_path: Path) -> None:
    """Its catalog as the page sets it up; the tables have format 2, which it reads."""
    with fresh_database(pg) as database, fresh_database(pg) as catalog:
        uri = make_url(postgres_uri(catalog))
        shop = _made(tmp_path, database, f'uri: "{uri.render_as_string(hide_password=False)}"\n  format: 2')
        (properties,) = examples(shop, "Trino", "properties")
        properties = properties.replace("host:5432/catalog", f"{uri.host}:{uri.port}/{uri.database}")
        properties = properties.replace("user=…", f"user={uri.username}")
        properties = properties.replace("password=…", f"password={uri.password or 'none'}")
        settings = dict(line.split("=", 1) for line in properties.splitlines())
        assert settings.pop("connector.name") == "iceberg"
        with LocalTrino(tmp_path / "trino", "lake", settings) as server:
            trino = Trino(server.uri, LakeSettings(catalog="lake", uri="", warehouse="", namespace="shop"))
            (statements,) = examples(shop, "Trino", "sql")
            pins, *counts = [
                trino.query(each.strip())
                for each in re.sub("--.*", "", statements).split(";")
                if each.strip()
            ]
    assert dict(pins["tables"][0].as_py()) == shop.pins
    assert [each[0][0].as_py() for each in counts] == [ROWS, ROWS]
