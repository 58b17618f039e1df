"""Whatever umask a run has, what it writes is its owner's alone, unless the pipeline file says otherwise."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from slotlake import Pipeline
from slotlake.decoder.slots.slot import drop_slot
from slotlake.infra.config.pipeline_file import load_pipeline
from slotlake.infra.config.private_files import privately, tighten
from tests.conftest import Database
from tests.e2e.oracle import pipeline_file
from tests.storage import IN_S3


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def _open_to_others(folder: Path) -> list[str]:
    """Files and folders that somebody else may read, enter or write."""
    found = [path for path in folder.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o077]
    return [f"{path.relative_to(folder)} {stat.filemode(path.stat().st_mode)}" for path in found]


def test_what_a_pipeline_writes_is_private(database: Database, connect: str, tmp_path: Path) -> None:
    os.umask(0)
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v text); "
        "INSERT INTO a SELECT g, 'a' FROM generate_series(1, 9) g"
    )
    file = pipeline_file(tmp_path, database, ["a"], extra="mode: [mirror, history, append]\n")
    file.chmod(0o600)
    with Pipeline.open(file, remote=connect) as pipeline:
        pipeline.init()
        database.execute("UPDATE a SET v = 'b' WHERE id < 5; DELETE FROM a WHERE id = 9")
        pipeline.sync()
        assert pipeline.verify().equal
        pipeline.query("SELECT count(*) FROM a")
        pipeline.session.sql("UPDATE lake.shop.a SET v = 'wrong' WHERE id = 2").collect()
        assert pipeline.backfill("a", where="id < 4").taken == 1
        pipeline.backfill("a")
        pipeline.replay("again")
        pipeline.maintain()
        database.execute("UPDATE a SET v = 'c' WHERE id = 1; DELETE FROM a WHERE id = 8")
        drop_slot(pipeline.source)
        assert pipeline.recover(carry_out=True).carried_out
        pipeline.status()
    assert len(list(tmp_path.rglob("*.parquet"))) > (3 if IN_S3 else 5)  # of the change log, and of the lake
    assert list(tmp_path.rglob("*.html"))
    # A folder "rest" is that of the catalog's server, which the test has started.
    assert [path for path in _open_to_others(tmp_path) if not path.startswith("rest")] == []
    assert os.umask(0) == 0


@pytest.mark.parametrize(("word", "mode"), [("private", 0o600), ("group", 0o640), ("umask", 0o644)])
def test_the_pipeline_file_says_who_may_read(tmp_path: Path, word: str, mode: int) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(
        f"name: shop\npermissions: {word}\nsource: {{dsn: x, publications: [p], slot: s}}\n"
        "lake: {uri: 'sqlite:///lake.db', warehouse: w, namespace: shop}\n"
    )
    file = load_pipeline(path)
    with privately(file):
        (tmp_path / "made").touch()
        (tmp_path / "folder").mkdir()
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == mode
    assert os.umask(0o022) == 0o022
    (tmp_path / "earlier").mkdir(mode=0o755)
    tighten(tmp_path / "earlier", file)
    assert stat.S_IMODE((tmp_path / "earlier").stat().st_mode) == mode | (mode & 0o444) >> 2
    with privately(file), privately(load_pipeline(path).model_copy(update={"permissions": "private"})):
        assert os.umask(0o077) == 0o077, "the strictest of those at work"
    assert os.umask(0o022) == 0o022
