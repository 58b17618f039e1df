"""The warm Spark: found by others, shut to strangers, gone without a trace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slotlake.decoder.errors import SetupError
from slotlake.infra.local.process import command_line, group_alive
from slotlake.infra.local.runtime import SparkRuntime
from slotlake.infra.local.spark_connect import LocalSparkConnect

pytestmark = pytest.mark.server

CLIENT = """
import sys
from pyspark.sql import SparkSession
session = SparkSession.builder.remote(sys.argv[1]).create()
session.conf.set("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
session.conf.set("spark.sql.catalog.lake.type", "hadoop")
session.conf.set("spark.sql.catalog.lake.warehouse", sys.argv[2])
session.sql("CREATE TABLE lake.a.t (n int) USING iceberg TBLPROPERTIES ('format-version' = '3')")
session.sql("INSERT INTO lake.a.t VALUES (1), (2)")
session.sql("MERGE INTO lake.a.t t USING (SELECT 1 AS n) s ON t.n = s.n WHEN MATCHED THEN DELETE")
print([row.n for row in session.sql("SELECT n FROM lake.a.t").collect()])
"""


def _client(
    server: LocalSparkConnect, warehouse: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CLIENT, server.remote, f"file://{warehouse}"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_server_is_used_found_by_another_and_ended_without_a_trace(
    spark_runtime: SparkRuntime, tmp_path: Path
) -> None:
    server = LocalSparkConnect(tmp_path / "spark", spark_runtime, cores=2, dies_with_parent=True)
    with server:
        pid = server.pid()
        assert pid is not None
        done = _client(server, tmp_path / "warehouse", server.client_environment())
        assert done.stdout == "[2]\n", done.stderr
        refused = _client(server, tmp_path / "other", {"SPARK_CONNECT_AUTHENTICATE_TOKEN": "wrong"})
        assert refused.returncode != 0
        assert "UNAUTHENTICATED" in refused.stderr
        assert not (tmp_path / "other").exists()
        token = server.client_environment()["SPARK_CONNECT_AUTHENTICATE_TOKEN"]
        assert token not in " ".join(command_line(pid))
        assert token not in server.log.read_text()
        other = LocalSparkConnect(tmp_path / "spark", spark_runtime)
        assert other.start().pid() == pid
        other.stop()
    assert server.pid() is None
    assert not group_alive(pid)
    assert not (tmp_path / "spark" / "scratch").exists()


def test_it_ends_with_the_process_that_started_it_even_a_killed_one(
    spark_runtime: SparkRuntime, tmp_path: Path
) -> None:
    code = (
        "import sys, pathlib, time\n"
        "from slotlake.infra.local.runtime import spark_runtime\n"
        "from slotlake.infra.local.spark_connect import LocalSparkConnect\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "LocalSparkConnect(folder, spark_runtime(), cores=1, dies_with_parent=True).start()\n"
        "print('up', flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "spark")], stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"up\n"
        pid = LocalSparkConnect(tmp_path / "spark", spark_runtime).pid()
        assert pid is not None
        parent.send_signal(signal.SIGKILL)
    give_up = time.monotonic() + 20
    while command_line(pid) and time.monotonic() < give_up:
        time.sleep(0.1)
    assert not command_line(pid)


def test_a_server_that_cannot_start_shows_its_log(spark_runtime: SparkRuntime, tmp_path: Path) -> None:
    server = LocalSparkConnect(tmp_path / "spark", spark_runtime, memory="nonsense")
    with pytest.raises(SetupError, match="did not start") as caught:
        server.start()
    assert "nonsense" in caught.value.way_out
    assert server.pid() is None
