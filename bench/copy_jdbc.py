"""Spark's JDBC reader as the peer of the copy: a process of its own, warm, that reads when it is told to.

It has PostgreSQL's driver, which nothing else here needs: fetched_jars for this benchmark only, pinned by
``jdbc.lock`` in this folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from psycopg.conninfo import conninfo_to_dict

from slotlake.decoder.errors import SlotlakeError
from slotlake.decoder.server.closing import Closes
from slotlake.infra.local.jars import fetched_jars, locked_jars
from slotlake.infra.local.java import find_java
from slotlake.infra.local.runtime import spark_runtime

PARTITIONS = 4
_LOCK_FILE = Path(__file__).with_name("jdbc.lock")


class Reader(Closes):
    """Reads a table to Parquet, as often as asked.

    Args:
        url: of the database.
        rows: the keys are 1 to so many.
    """

    def __init__(self, url: str, table: str, rows: int, folder: Path) -> None:
        parts: dict[str, Any] = dict(conninfo_to_dict(url))
        asked = {
            "jar": str(fetched_jars(locked_jars(_LOCK_FILE), find_java)[0]),
            "folder": str(folder / "jdbc"),
            "rows": rows,
            "options": {
                "url": f"jdbc:postgresql://{parts['host']}:{parts['port']}/{parts['dbname']}",
                "user": parts["user"],
                "password": parts.get("password", ""),
                "driver": "org.postgresql.Driver",
                "dbtable": table,
                "partitionColumn": "id",
                "lowerBound": "1",
                "upperBound": str(rows),
                "numPartitions": str(PARTITIONS),
                "fetchsize": "10000",
            },
        }
        self._log = (folder / "jdbc.log").open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "slotlake.bench.copy_jdbc"],
            env={**os.environ, **spark_runtime().environment()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._ask(json.dumps(asked))

    def run(self) -> float:
        """Read all of it; the seconds that took."""
        return float(self._ask("read"))

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._log.close()

    def _ask(self, line: str) -> str:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f"{line}\n")
        stdin.flush()
        answer = stdout.readline()
        if not answer:
            raise SlotlakeError("Spark's JDBC reader failed", where=str(self._log.name))
        return answer


def serve() -> None:
    """Answer a line with a line, until there are no more."""
    from pyspark.sql import SparkSession

    asked = json.loads(sys.stdin.readline())
    builder = SparkSession.builder.master("local[*]").config("spark.jars", asked["jar"])
    session = builder.config("spark.driver.memory", "2g").config("spark.ui.enabled", "false").getOrCreate()
    _answer("ready")
    for _ in sys.stdin:
        started = time.monotonic()
        frame = session.read.format("jdbc").options(**asked["options"]).load()
        frame.write.mode("overwrite").option("compression", "zstd").parquet(asked["folder"])
        _answer(str(time.monotonic() - started))
    session.stop()


def _answer(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    serve()
