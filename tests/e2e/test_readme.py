"""The README's own pipeline file and commands, run as they stand; and its readers' ways, tried."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from slotlake import Pipeline
from tests.conftest import Database

pytestmark = pytest.mark.timeout(300)
ROOT = Path(__file__).parents[2]


def blocks(language: str, file: str = "README.md") -> list[str]:
    """The fenced blocks of a language in a document."""
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / file).read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def shop(database: Database, tmp_path: Path) -> Path:
    """The tables that the README speaks of, and its pipeline file."""
    database.execute(
        "CREATE TABLE customers (id int PRIMARY KEY, name text);"
        "CREATE TABLE orders (id int PRIMARY KEY, customer int, total numeric(10,2));"
        "INSERT INTO customers VALUES (1, 'Ada'), (2, 'Bob');"
        "INSERT INTO orders SELECT g, g % 2 + 1, g * 1.5 FROM generate_series(1, 20) g"
    )
    (text,) = (block for block in blocks("yaml") if block.startswith("name: shop"))
    (tmp_path / "shop.yaml").write_text(text)
    return tmp_path / "shop.yaml"


def test_commands(shop: Path, database: Database, connect: str) -> None:
    (commands,) = (block for block in blocks("sh") if "slotlake init" in block)
    environment = {
        **os.environ,
        "SHOP_DSN": database.dsn,
        "SLOTLAKE_SPARK_REMOTE": connect,
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
    }
    said: dict[str, str] = {}
    for line in commands.splitlines():
        program, command, *arguments = shlex.split(line, comments=True)
        assert program == "./slotlake"
        done = subprocess.run(
            [sys.executable, "-m", "slotlake", command, *arguments],
            check=False,
            cwd=shop.parent,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, (line, done.stderr)
        said[command] = done.stdout
    assert "nothing new" in said["sync"]
    assert "equal" in said["verify"]
    assert "ready" in said["status"]
    assert "20" in said["query"]


def test_other_readers_see_the_same(
    shop: Path, database: Database, connect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import duckdb
    from pyiceberg.catalog.sql import SqlCatalog

    monkeypatch.setenv("SHOP_DSN", database.dsn)
    with Pipeline.open(shop, remote=connect) as pipeline:
        pipeline.init()
        database.execute(
            "UPDATE orders SET total = 0 WHERE id <= 5; DELETE FROM orders WHERE id = 20;"
            "INSERT INTO orders VALUES (100, 1, 7)"
        )
        pipeline.sync()
        expected = sorted((int(i or 0), str(total)) for i, total in pipeline.rows("orders", ["id", "total"]))
        catalog = SqlCatalog("lake", uri=pipeline.file.lake_uri(), warehouse=pipeline.file.warehouse())
        table = catalog.load_table(("shop", "orders"))
        read = table.scan().to_arrow().select(["id", "total"]).to_pylist()
        assert sorted((row["id"], str(row["total"])) for row in read) == expected
        commits = catalog.load_table(("shop", "commits")).scan().to_arrow().to_pylist()
        assert [row["kind"] for row in sorted(commits, key=lambda row: row["position"])] == ["copy", "batch"]
    with duckdb.connect() as connection:
        _load_iceberg(connection)
        rows = connection.execute(
            "SELECT id, total::VARCHAR FROM iceberg_scan(?)", [table.metadata_location]
        ).fetchall()
    assert sorted(rows) == expected
    held = database.execute("SELECT id, total::text FROM orders ORDER BY id")
    assert held == expected


def _load_iceberg(connection: object) -> None:
    """The extension comes as a wheel; nothing is fetched."""
    import importlib.util

    for name in ("avro", "iceberg"):
        package = importlib.util.find_spec(f"duckdb_extension_{name}")
        assert package is not None
        assert package.origin is not None
        (file,) = Path(package.origin).parent.rglob(f"{name}.duckdb_extension")
        connection.execute(f"LOAD '{file}'")  # type: ignore[attr-defined]
    connection.execute("SET enable_external_file_cache = false")  # type: ignore[attr-defined]
