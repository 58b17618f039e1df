"""Publishes: moves ``main`` of all tables that a batch touched, and of `commits`, in one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark.commits import Point
from spark.lake import LakeSettings


@dataclass(frozen=True)
class Published:
    """A consistency point.

    Attributes:
        position: the lake's position after it.
        already: it had been published before; nothing was done.
        snapshots: lake table ("namespace.table") → snapshot id that is now main.
    """

    point: Point
    position: int
    already: bool
    snapshots: Mapping[str, int] = field(default_factory=dict)


def publish_batch(lake: LakeSettings, batch: object, pipeline: str) -> Published:
    """Publish what :func:`spark.apply.apply_batch` staged for this batch. Needs no Spark.

    Raises:
        LakeError: something of the batch is not staged, or the lake was moved by someone else
            meanwhile; nothing has been moved.
    """
    raise NotImplementedError
