"""Run by test_crash.py in a process of its own, which a failpoint ends: `init`, a batch, or a compaction."""

from __future__ import annotations

import json
import sys
from typing import Any

from slotlake.decoder.changelog.batches import BatchRelation
from slotlake.decoder.failpoints import reach
from slotlake.spark.copy.initial import InitialCopy
from slotlake.spark.lake import LakeSettings
from slotlake.spark.maintenance.small_files import pack_table
from slotlake.spark.names import LakeName
from slotlake.spark.session import open_session
from slotlake.spark.tables.schema import TableSchema
from tests.spark.lake_lab import (
    PIPELINE,
    HandBatch,
    Lab,
    delete,
    insert,
    relation,
    update,
    write_rows,
)

ITEMS = relation("items", ["id"], id="int4", v="text")
LOG = relation("log", [], "f", v="int4")


def contents() -> dict[BatchRelation, list[dict[str, Any]]]:
    return {ITEMS: [{"id": str(i), "v": "a"} for i in range(2000)], LOG: [{"v": "0"}] * 3}


def copy(lab: Lab) -> None:
    schemas = {table: TableSchema.of(table) for table in contents()}
    with InitialCopy.begin(lab.session, lab.lake, PIPELINE, list(schemas.values())) as made:
        for table, rows in contents().items():
            write_rows(made.target(schemas[table]), table, rows)
            reach("init.mid_copy")
            made.register(schemas[table])
        made.publish(lab.point("copy"))


def batch(lab: Lab) -> HandBatch:
    return lab.batch(
        *(insert(LOG, v=str(i)) for i in range(1, 5)),
        *[delete(LOG, v="0")] * 2,
        *(update(ITEMS, id=str(i), v="b") for i in range(0, 1000, 2)),
        *(delete(ITEMS, id=str(i)) for i in range(1, 1000, 2)),
        *(insert(ITEMS, id=str(i), v="c") for i in range(3000, 3100)),
    )


def expected() -> tuple[list[tuple[str, str]], list[tuple[str]]]:
    items = [(str(i), "b" if i < 1000 else "a") for i in range(2000) if i >= 1000 or i % 2 == 0]
    return items + [(str(i), "c") for i in range(3000, 3100)], [(str(i),) for i in range(5)]


if __name__ == "__main__":
    task, remote, settings = sys.argv[1:]
    lake = LakeSettings(**json.loads(settings))
    lab = Lab(open_session(lake, remote=remote), lake)
    if task == "copy":
        copy(lab)
    elif task == "pack":
        pack_table(lambda: lab.session, lake, LakeName("shop", "items"), PIPELINE, 128 << 20)
    else:
        made = batch(lab)
        lab.apply(made)
        lab.publish(made)
