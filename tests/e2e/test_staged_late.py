"""A killed run's last statement goes on in a Spark server, and ends after the next run staged its batch."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import LakeError
from slotlake.infra.sync.batch_steps import BatchSteps
from slotlake.spark.catalog.base import load_one
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.names import LakeName
from slotlake.spark.publish.commits import RUN, STEPS
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import STAGE
from tests.conftest import Database
from tests.e2e.oracle import assert_equal, pipeline_file

pytestmark = pytest.mark.timeout(300)
_PROPERTY = "spark.sql.iceberg.snapshot-property."


def _written_late(pipeline: Pipeline) -> None:
    """Write what another run of the same batch would, and say so as that run would."""
    name = LakeName(pipeline.lake.namespace, "items")
    with open_catalog(pipeline.lake) as catalog:
        table = load_one(catalog, name)
    staged = catalog_metadata.summary(catalog_metadata.head(table.metadata, STAGE))
    said = {key: value for key, value in staged.items() if key.startswith("slotlake.")}
    said |= {RUN: "the killed one's", STEPS: str(int(said.get(STEPS, 1)) + 1)}
    session = pipeline.session
    for key, value in said.items():
        session.conf.set(_PROPERTY + key, value)
    session.sql(f"INSERT INTO lake.{name.namespace}.{name.table}.branch_stage VALUES (77, 'late')").collect()
    for key in said:
        session.conf.unset(_PROPERTY + key)


def test_the_batch_is_staged_again(
    database: Database,
    connect: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    database.execute(
        "CREATE TABLE items (id int PRIMARY KEY, v text); CREATE TABLE others (id int PRIMARY KEY);"
        "INSERT INTO items SELECT g, 'v' FROM generate_series(1, 9) g"
    )
    file = pipeline_file(tmp_path, database, ["items", "others"])
    with Pipeline.open(file, remote=connect) as pipeline:
        pipeline.init()
        database.execute("UPDATE items SET v = 'w' WHERE id < 5; INSERT INTO others VALUES (1)")
        batch = pipeline.pull().batch
        assert batch is not None
        pipeline.apply(batch)
        _written_late(pipeline)
        with caplog.at_level(logging.WARNING):
            assert not pipeline.publish(batch).already_published
        told = [record.getMessage() for record in caplog.records]
        assert "another run wrote to what is staged; staging it again" in told
        pipeline.confirm(batch)
        assert_equal(database, pipeline, ["items", "others"])

        database.execute("DELETE FROM items WHERE id = 3")
        staged = BatchSteps.apply_named

        def always_late(*arguments: object, **named: object) -> object:
            report = staged(*arguments, **named)  # type: ignore[arg-type]
            _written_late(pipeline)
            return report

        with monkeypatch.context() as patch:
            patch.setattr(BatchSteps, "apply_named", always_late)
            with pytest.raises(LakeError, match="another run wrote to what is staged"):
                pipeline.sync()
        pipeline.sync()
        assert_equal(database, pipeline, ["items", "others"])
        assert pipeline.verify().equal
