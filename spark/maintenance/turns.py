"""When maintenance is alone with a table, and what it does while batches go on.

Invariant: what is done within `Turns.table` meets no batch: neither one at work, nor one that is staged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import SparkSession

from slotlake.spark.catalog.base import Loaded, load_one
from slotlake.spark.catalog.open import Catalog, open_catalog
from slotlake.spark.lake import LakeSettings
from slotlake.spark.maintenance.expiry import Grace
from slotlake.spark.names import LakeName
from slotlake.spark.publish.swap import require_owner
from slotlake.spark.tables import metadata as catalog_metadata

_PAUSE_SECONDS = 0.2


class Rewritten(Protocol):
    """Files of a table that are written anew, and do not belong to it yet."""

    def commit(self, catalog: Catalog, present: Loaded) -> int:
        """Make them the table's; return how many old files are left, because batches changed them."""

    def close(self) -> None:
        """Remove those that the table did not take over."""


Rewrite = Callable[[SparkSession, LakeSettings, Loaded, Mapping[str, str]], "Rewritten | None"]


def _in_place(
    session: SparkSession, lake: LakeSettings, table: Loaded, options: Mapping[str, str]
) -> Rewritten | None:
    return None


def _as_it_is(grace: Grace) -> Grace:
    return grace


@dataclass(frozen=True)
class Turns:
    """How maintenance shares a table with batches.

    Attributes:
        alone: within it no other run is at work.
        seconds: how long to wait until a batch that is staged is published.
        grace: how long what nobody needs stays, in view of who reads just then.
        rewrite: writes files anew while batches go on; gives None if that must be done in place.
    """

    alone: Callable[[], AbstractContextManager[object]] = nullcontext
    seconds: float = 0.0
    grace: Callable[[Grace], Grace] = _as_it_is
    rewrite: Rewrite = _in_place

    @contextmanager
    def table(
        self, lake: LakeSettings, name: LakeName, pipeline: str
    ) -> Iterator[tuple[Catalog, Loaded] | None]:
        """Be alone with a table, of which nothing is staged; None if something is for too long.

        Raises:
            LakeError: it is another pipeline's.
        """
        until = time.monotonic() + self.seconds
        while True:
            with self.alone(), open_catalog(lake) as catalog:
                table = owned(catalog, name, pipeline)
                if not is_staged(table):
                    yield catalog, table
                    return
            if time.monotonic() >= until:
                break
            time.sleep(_PAUSE_SECONDS)
        yield None


def owned(catalog: Catalog, name: LakeName, pipeline: str) -> Loaded:
    """Load a table of this pipeline.

    Args:
        pipeline: the pipeline that it must belong to.

    Raises:
        LakeError: it is another pipeline's.
    """
    table = load_one(catalog, name)
    require_owner(table, pipeline)
    return table


def is_staged(table: Loaded) -> bool:
    """Return whether a batch is being applied to a table."""
    return catalog_metadata.is_staged(table.metadata)
