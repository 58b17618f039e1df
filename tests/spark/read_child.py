"""Run by test_read_live.py in a process of its own: reads one cut after another until its input ends.

Each read takes all pointers anew.  Three things are asked of it: that the row of `commits` names the very
snapshots that the cut pins (or those below a compaction), that TPC-B's four sums are equal in it, and that
they are by pyiceberg too.
"""

from __future__ import annotations

import json
import select
import sys
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow.compute as pc
from pyiceberg.table import StaticTable

from slotlake import Pipeline
from slotlake.spark.catalog.base import Catalog
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.names import belongs
from slotlake.spark.publish.commits import commits_name, newest_pins, position_of
from slotlake.spark.read.pinned import Pinned
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.tables import metadata as catalog_metadata

SUMS = {"accounts": "abalance", "tellers": "tbalance", "branches": "bbalance", "history": "delta"}
_SUM_EVERY = 10


class Reader:
    """Keeps what can be kept between reads: metadata files never change."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.report: dict[str, Any] = {"reads": 0, "sums": 0, "cuts": 0, "torn": []}
        self._pinned: dict[tuple[str, int], Pinned] = {}
        self._rows: dict[str, dict[str, int]] = {}

    def read(self) -> None:
        lake = self.catalog.lake
        pointers = self.catalog.pointers()
        name = commits_name(lake.namespace)
        location = pointers[name]
        new = location not in self._rows
        commits = self._pin(name, location, 0)
        position = position_of(commits.metadata, name)
        if new:
            self._rows[location] = newest_pins(StaticTable.from_metadata(location), position)
        cut = ReadPoint(
            lake,
            position,
            {
                n: self._pin(n, where, position)
                for n, where in pointers.items()
                if belongs(n.namespace, lake.namespace)
            },
        )
        pins = {f"{lake.namespace}.{table}": _below_compactions(cut, table) for table in SUMS}
        self._expect(pins == self._rows[location], "pins", position)
        if new or self.report["reads"] % _SUM_EVERY == 0:
            self._sum(cut, position)
        if new:
            self._sum_by_pyiceberg(cut, position)
        self.report["reads"] += 1
        self.report["cuts"] += new

    def _pin(self, name: Any, location: str, position: int) -> Pinned:
        return self._pinned.setdefault((location, position), Pinned(name, location, position))

    def _sum(self, cut: ReadPoint, position: int) -> None:
        sums = {table: _total(cut, table, column) for table, column in SUMS.items()}
        self._expect(len(set(sums.values())) == 1, sums, position)
        self.report["sums"] += 1

    def _sum_by_pyiceberg(self, cut: ReadPoint, position: int) -> None:
        sums = {"by": "pyiceberg"}
        for table, column in SUMS.items():
            read = StaticTable.from_metadata(cut.pinned[cut.find(table)].location)
            values = read.scan(selected_fields=(column,), snapshot_id=cut.snapshot_id(table)).to_arrow()
            sums[table] = str(pc.sum(values[column]).as_py() or 0)
        self._expect(len(set(sums.values()) - {"pyiceberg"}) == 1, sums, position)

    def _expect(self, holds: bool, what: str | Mapping[str, Any], position: int) -> None:
        if not holds:
            self.report["torn"].append([f"{position:X}", str(what)])


def _below_compactions(cut: ReadPoint, table: str) -> int:
    """The snapshot of the point; one of the same rows may lie on top of it."""
    metadata, wanted = cut.pinned[cut.find(table)].metadata, cut.snapshot_id(table)
    snapshot = catalog_metadata.snapshot(metadata, wanted)
    while snapshot is not None and snapshot["summary"]["operation"] == "replace":
        wanted = snapshot["parent-snapshot-id"]
        snapshot = catalog_metadata.snapshot(metadata, wanted)
    return wanted


def _total(cut: ReadPoint, table: str, column: str) -> int:
    sums = [pc.sum(batch.column(0)).as_py() for batch in cut.arrow_batches(table, [column])]
    return int(sum((s for s in sums if s is not None), Decimal(0)))


def main(file: str) -> None:
    with open_catalog(Pipeline.open(file).lake) as catalog:
        reader = Reader(catalog)
        reader.read()
        print("reading", flush=True)
        while not select.select([sys.stdin], [], [], 0)[0]:
            reader.read()
    print(json.dumps(reader.report))


if __name__ == "__main__":
    main(sys.argv[1])
