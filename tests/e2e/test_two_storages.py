"""With Spark inside it, a program opens a pipeline with its lake in a folder, and then one in S3."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slotlake.infra.local.object_store import LocalObjectStore
from tests.conftest import Database
from tests.e2e.oracle import pipeline_file
from tests.storage import IN_S3, moved_to

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it"),
    pytest.mark.skipif(IN_S3, reason="one of its lakes is in a folder"),
]
_PROGRAM = """
import sys
from slotlake import Pipeline
from slotlake.decoder.errors import SetupError

folder, bucket = sys.argv[1:]
with Pipeline.open(folder) as pipeline:
    pipeline.init()
    pipeline.session.sql("SELECT 1").collect()
    try:
        with Pipeline.open(bucket) as other:
            other.session
    except SetupError as error:
        print(error.what)
with Pipeline.open(bucket) as pipeline:
    pipeline.init()
    print(pipeline.session.sql("SELECT sum(id) FROM lake.in_bucket.t").collect()[0][0])
with Pipeline.open(folder) as pipeline:
    pipeline.sync()
    print(pipeline.session.sql("SELECT sum(id) FROM lake.shop.t").collect()[0][0])
"""


def test_one_after_another_in_one_program(
    database: Database, object_store: LocalObjectStore, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2), (4)")
    folder = pipeline_file(tmp_path / "a", database, ["t"])
    bucket = pipeline_file(tmp_path / "b", database, ["t"], name="in_bucket")
    moved_to(object_store, bucket)
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(folder), str(bucket)],
        check=False,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    refused, of_bucket, of_folder = done.stdout.splitlines()
    assert refused == (
        "the Spark that is open in this process cannot reach such a storage: it began without the jars"
    )
    assert (of_bucket, of_folder) == ("7", "7")
