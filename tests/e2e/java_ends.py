"""Run by test_java_ends.py: two pipelines in a process whose Java ends while it stages a table.

Arguments: the two pipeline files; how Java ends (``killed``, ``memory``); how often.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from pyspark import SparkContext

from slotlake import Pipeline
from slotlake.spark.merge import run as merge_run


def main(own: str, other: str, way: str, times: int) -> None:
    """Sync the first pipeline while Java ends, then both."""
    original, left = merge_run.run, [times]

    def run(session: Any, table: Any, sql: str, *more: Any) -> None:
        """Java ends in the statements of the table ``large``, and of no other."""
        if table.name.table == "large" and left[0]:
            left[0] -= 1
            if way == "killed":
                os.kill(_java(), signal.SIGKILL)
            else:
                gigabytes = ", ".join(f"repeat(CAST(id + {i} AS STRING), 1000000000)" for i in range(4))
                sql = f"SELECT sum(length(array_max(array({gigabytes})))) FROM range(0, 4, 1, 1)"
        original(session, table, sql, *more)

    module: Any = merge_run
    module.run = run
    with Pipeline.open(own) as pipeline, Pipeline.open(other) as second:
        second.query("SELECT 1", engine="spark")
        report = pipeline.sync()
        rows = second.query("SELECT count(*) FROM small", engine="spark").rows
        print(json.dumps({"aside": report.set_aside, "rows": list(rows), "left": left[0]}))


def _java() -> int:
    gateway: Any = SparkContext._gateway
    return int(gateway.proc.pid)


if __name__ == "__main__":
    first, second, how, often = sys.argv[1:]
    main(first, second, how, int(often))
