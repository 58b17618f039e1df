"""A file of a lake table that is missing or damaged: named, and one table's trouble alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import DamagedError
from slotlake.spark.direct.choice import NEVER, SWITCH
from tests.conftest import LONG, Database
from tests.e2e.aside_causes import five_rows
from tests.e2e.oracle import assert_equal, pipeline_file
from tests.storage import IN_S3, local_file

pytestmark = pytest.mark.timeout(600)


def test_one_tables_trouble(
    database: Database, session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, NEVER)
    tables = five_rows(database, "good", "gone", "shortened")
    with Pipeline.open(pipeline_file(tmp_path, database, tables)) as pipeline:
        pipeline.init()
        listed = "SELECT file_path FROM lake.shop.{}.files"
        files = {
            name: local_file(pipeline.session.sql(listed.format(name)).collect()[0][0])
            for name in ("gone", "shortened")
        }
        files["gone"].unlink()
        files["shortened"].write_bytes(files["shortened"].read_bytes()[:-20])
        told = " ".join(alarm.what for alarm in pipeline.status().alarms)
        assert IN_S3 or all(file.name in told for file in files.values()), told
        database.execute("; ".join(f"UPDATE {name} SET v = 'new' WHERE id < 4" for name in tables))
        assert set(pipeline.sync().set_aside) == {"public.gone", "public.shortened"}
        for entry in pipeline.status().set_aside:
            assert files[entry["table"]].name in entry["what"]
            assert "slotlake recover" in entry["way_out"]
        assert_equal(database, pipeline, ["good"])
        assert set(pipeline.sync().resumed) == {"public.gone", "public.shortened"}
        assert_equal(database, pipeline, tables)


def _half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _noise(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for at in range(len(content) // 2, len(content), 7):
        content[at] ^= 0x5A
    path.write_bytes(content)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _junk(path: Path) -> None:
    path.write_bytes(b"\xff" * path.stat().st_size)


Damage = Callable[[Path], None]
MANIFESTS: Mapping[str, Damage] = {
    "gone": Path.unlink, "empty": _empty, "half": _half, "noise": _noise, "junk": _junk
}  # fmt: skip
LISTS: Mapping[str, Damage] = {"list_gone": Path.unlink, "list_half": _half}


@pytest.mark.parametrize("repair", ["sync", "recover"] if LONG else ["recover"])
def test_damaged_manifests(database: Database, session: Any, tmp_path: Path, repair: str) -> None:
    """DuckDB 1.5.5 ends the whole process at one, and Spark cannot even delete all rows: neither is asked."""
    damages = {**MANIFESTS, **LISTS}
    tables = five_rows(database, "good", *damages)
    with Pipeline.open(pipeline_file(tmp_path, database, tables)) as pipeline:
        pipeline.init()
        for name, damage in damages.items():
            wanted = "manifest_list FROM {}.snapshots" if name in LISTS else "path FROM {}.manifests"
            row = pipeline.session.sql(f"SELECT {wanted.format(f'lake.shop.{name}')}").collect()[0]
            file = local_file(row[0])
            damage(file)
            with pytest.raises(DamagedError, match=file.name) as caught:
                pipeline.query(f"SELECT count(*) FROM {name}")
            assert "slotlake recover" in caught.value.way_out
        assert pipeline.query("SELECT count(*) FROM good").rows == [("5",)]
        database.execute("; ".join(f"UPDATE {name} SET v = 'new' WHERE id < 4" for name in tables))
        assert set(pipeline.sync().set_aside) == {f"public.{name}" for name in damages}
        assert_equal(database, pipeline, ["good"])
        if repair == "recover":
            pipeline.recover(carry_out=True)
        else:
            assert set(pipeline.sync().resumed) == {f"public.{name}" for name in damages}
        assert_equal(database, pipeline, tables)
        database.execute("; ".join(f"UPDATE {name} SET v = 'newer' WHERE id < 3" for name in tables))
        assert not pipeline.sync().set_aside
        warned = {each.partition(" is removed")[0] for each in pipeline.maintain().warnings}
        assert warned == {f"no file of shop.{name}" for name in damages}
        assert pipeline.verify().equal
        assert_equal(database, pipeline, tables)
