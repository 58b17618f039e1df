"""The note that says which tables a pipeline has, for those who may not ask the lake: a form in Airflow's UI.

Written by `init`, and by a pull when a table has joined or when there is none; never read by a step.  Airflow
reads it each time it parses a DAG file, so of very many tables it has no more names than show that.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from slotlake.infra.config.pipeline_file import PipelineFile
from slotlake.infra.state.notes import TABLES

if TYPE_CHECKING:
    from slotlake.spark.lake import LakeSettings

OFFERED_MAX = 500  # names that a form offers


def write_note(state_dir: Path, lake: LakeSettings, joined_tables: Collection[str] = ()) -> None:
    """Write the note if it is not there, or if tables have joined."""
    from slotlake.spark.read.point import ReadPoint

    note_file = TABLES.of(state_dir)
    if note_file.exists() and not joined_tables:
        return
    names = sorted(table.source_name for table in ReadPoint.latest(lake).tables())
    note_file.write(names[: OFFERED_MAX + 1])


def read_note(file: PipelineFile) -> list[str]:
    """The tables in the note; none if there is no note here; more than :data:`OFFERED_MAX`: not all."""
    return [str(name) for name in TABLES.of(file.state_dir).read() or []]
