"""The table `<namespace>.commits`: one row per consistency point, and the lake's position."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Point:
    """A consistency point about to be published, or published.

    Attributes:
        position: the lake's position from then on (an LSN as integer).
        batch: the batch's name, ``copy-<lsn>`` or ``backfill-<lsn>-<table>``.
        kind: copy | batch | backfill.
        commit_time: when the last transaction in it was committed in the source, if there was one.
    """

    pipeline: str
    position: int
    batch: str
    digest: str
    kind: str
    commit_time: datetime | None = None
    transactions: int = 0
    changes: int = 0
