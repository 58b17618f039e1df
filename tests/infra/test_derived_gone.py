"""The list of derived tables that somebody dropped: what is warned of, when, and until when."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slotlake.infra.config.pipeline_file import load_pipeline
from slotlake.infra.selection import derived_gone
from slotlake.spark.names import LakeName

HISTORY, CHANGES = LakeName("shop", "orders__history"), LakeName("shop", "orders__changes")
FILE = """
name: shop
source: {dsn: "postgresql:///none", publications: [shop], slot: s}
lake: {uri: "sqlite:///lake.db", warehouse: warehouse, namespace: shop}
tables:
  orders: {mode: history}
"""


@pytest.fixture
def pipeline(tmp_path: Path) -> Any:
    """What the list asks of a pipeline."""
    path = tmp_path / "shop.yaml"
    path.write_text(FILE)
    lake = SimpleNamespace(namespace="shop")
    return SimpleNamespace(file=load_pipeline(path), lake=lake, position=lambda: 0x1000)


def test_one_that_begins_again_is_named_until_it_was_said(pipeline: Any) -> None:
    derived_gone.note_dropped(pipeline.file, pipeline.lake.namespace, [HISTORY, CHANGES])
    assert list(derived_gone.gone_tables(pipeline.file, pipeline.lake.namespace)) == [
        str(HISTORY)
    ]  # the file does not ask for the other
    for _ in range(2):
        (warning,) = derived_gone.gone_warnings(pipeline.file, pipeline.lake.namespace)
        assert "public.orders goes on: the next sync begins it again" in warning
        (alarm,) = derived_gone.gone_alarms(pipeline.file, pipeline.lake.namespace)
        assert alarm.kind == "derived table gone"
    derived_gone.note_begun(pipeline, [str(HISTORY)])
    assert derived_gone.gone_alarms(pipeline.file, pipeline.lake.namespace) == []
    derived_gone.note_dropped(
        pipeline.file, pipeline.lake.namespace, [HISTORY]
    )  # again, before anybody was told of the first time
    assert len(derived_gone.gone_alarms(pipeline.file, pipeline.lake.namespace)) == 1
    derived_gone.note_begun(pipeline, [str(HISTORY)])
    (warning,) = derived_gone.gone_warnings(pipeline.file, pipeline.lake.namespace)
    assert warning.endswith("it began again at 0/1000")
    assert derived_gone.gone_warnings(pipeline.file, pipeline.lake.namespace) == []


def test_files_in_the_way_are_named_while_they_are_there(pipeline: Any) -> None:
    derived_gone.note_in_the_way(
        pipeline.file, pipeline.lake.namespace, {HISTORY: "file:///w/shop/orders__history"}
    )
    (warning,) = derived_gone.gone_warnings(pipeline.file, pipeline.lake.namespace)
    assert "could not be begun" in warning
    assert "file:///w/shop/orders__history holds files" in warning
    derived_gone.note_in_the_way(pipeline.file, pipeline.lake.namespace, {})
    assert (
        "the next sync begins it again"
        in derived_gone.gone_warnings(pipeline.file, pipeline.lake.namespace)[0]
    )
    derived_gone.note_begun(pipeline, [str(HISTORY)])
    assert derived_gone.gone_warnings(pipeline.file, pipeline.lake.namespace) == []  # nothing was lost


def test_one_that_is_there_again_is_named_once(pipeline: Any) -> None:
    derived_gone.note_dropped(pipeline.file, pipeline.lake.namespace, [HISTORY])
    derived_gone.note_present(pipeline.file, pipeline.lake.namespace, [LakeName("shop", "orders")])
    assert len(derived_gone.gone_alarms(pipeline.file, pipeline.lake.namespace)) == 1
    derived_gone.note_present(pipeline.file, pipeline.lake.namespace, [HISTORY])
    assert derived_gone.gone_alarms(pipeline.file, pipeline.lake.namespace) == []
    (warning,) = derived_gone.gone_warnings(pipeline.file, pipeline.lake.namespace)
    assert warning.endswith("had been dropped from the catalog by someone else, and is there again")
    assert derived_gone.gone_warnings(pipeline.file, pipeline.lake.namespace) == []
