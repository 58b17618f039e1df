"""Tables that must be copied again, cut into many small ranges, while a sync has time for one."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.infra.sync.recopying import RecopiedTables
from slotlake.spark.exchange import exchange_path
from slotlake.spark.read.point import ReadPoint
from tests.conftest import Database
from tests.e2e.joins import BIG, PART_BYTES, begun, ready
from tests.e2e.over_syncs_kinds import KINDS, Joining


def small_and_slow(patch: pytest.MonkeyPatch) -> None:
    """Every table of two ranges is large, however long a sync may take."""
    patch.setattr("slotlake.decoder.copy.parts.PART_BYTES", PART_BYTES)
    patch.setattr("slotlake.infra.sync.schema.large_tables.BYTES_PER_SECOND", 1)


def ranges(pipeline: Pipeline, table: str = BIG) -> int:
    """How many of its ranges are there."""
    return int(RecopiedTables(pipeline).progress_by_table().get(table, "0").split(" ")[0])


class Recopying(Joining):
    """A pipeline with a table that the lake has, and that is copied again."""

    record = "recopying"
    old: Counter[Any]

    def begin(self) -> None:
        """The lake has the table, and follows it."""
        self.publish()
        self.seconds(60.0)
        self.pipeline.sync()
        assert BIG in ready(self.pipeline)
        self.seconds(0.001)
        self.change()
        self.pipeline.sync()
        self.equal()

    def seconds(self, seconds: float) -> None:
        """So long may a sync copy."""
        object.__setattr__(self.pipeline.file.source, "copy_seconds_per_sync", seconds)

    def half(self) -> None:
        """It is rewritten; until some ranges are copied again, and some are not."""
        self.old = Counter(ReadPoint.latest(self.pipeline.lake).rows("big"))
        self.change()
        self.run(self.kind.rewritten)
        for wanted in (0, 1, 2):
            self.change()
            report = self.pipeline.sync()
            assert "copied again over several syncs" in report.set_aside[BIG], report
            assert ranges(self.pipeline) == wanted
            self.others_go_on()

    def others_go_on(self) -> None:
        """They are the source, and this table what it was."""
        self.equal("small")
        assert Counter(ReadPoint.latest(self.pipeline.lake).rows("big")) == self.old

    def verified(self) -> None:
        """What a comparison says while it is half copied: it is not equal."""
        assert not self.pipeline.verify().equal
        self.others_go_on()

    @property
    def progress(self) -> dict[str, str]:
        return RecopiedTables(self.pipeline).progress_by_table()

    def sound(self) -> None:
        super().sound()
        assert self.pipeline.status().set_aside == []
        self.left_nothing()

    def left_nothing(self) -> None:
        """Neither a record nor files."""
        assert not (self.pipeline.file.state_dir / "recopying").exists()
        ranges = exchange_path(self.pipeline.lake, "recopying")
        files = [path for path in ranges.rglob("*") if path.is_file()]
        assert files == []


def recopying_of(
    stack: ExitStack, database: Database, folder: Path, connect: str, kind: str = "plain", **how: Any
) -> Recopying:
    """A pipeline, closed with the stack, which follows a table of this kind."""
    made = Recopying(database, begun(database, folder, connect, **how), KINDS[kind])
    stack.callback(made.close)
    made.begin()
    return made


def reopened(made: Joining, before: str, after: str) -> None:
    """The pipeline file says something else from now on."""
    path, remote = made.pipeline.file.path, made.pipeline._remote
    path.write_text(path.read_text().replace(before, after, 1))
    made.pipeline.close()
    made.pipeline = Pipeline.open(path, remote=remote)
