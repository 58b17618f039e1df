"""PostgreSQL's regression SQL, published and taken to a lake: equal, and nothing else is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slotlake.infra.local.postgres import Version, temporary_postgres
from tests.conftest import Database
from tests.debian_postgres import IN_DEBIAN_ONLY, debian_postgres, debian_regress
from tests.e2e.oracle import pipeline_file
from tests.proof.regression_sql import Regression, psql, regression_database

pytestmark = [
    pytest.mark.timeout(2 * 3600),
    pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it"),
]
FILES = os.environ.get("SLOTLAKE_TEST_FILES", "")


@pytest.mark.parametrize("all_the_time", [False, True], ids=["between files", "all the time"])
@pytest.mark.parametrize("version", [15, 18, 19])
def test_the_lake_is_what_is_there_at_the_end(version: Version, all_the_time: bool, tmp_path: Path) -> None:
    source, program = debian_regress(version), psql()
    conf = {
        "max_prepared_transactions": "10", "logical_decoding_work_mem": "64kB", "shared_buffers": "64MB",
        "allow_in_place_tablespaces": "on",
    }  # fmt: skip
    programs = debian_postgres(version) if version in IN_DEBIAN_ONLY else None
    with temporary_postgres(version=version, conf=conf, programs=programs) as server:
        database = regression_database(Database(server, "postgres"))
        file = pipeline_file(tmp_path, database, [])
        file.write_text(file.read_text().removesuffix("tables:\n"))
        run = Regression(source, database, file, tmp_path, program)
        names = run.names()
        run.run(FILES.split(",") if FILES else names, all_the_time=all_the_time)
        run.judge()
    print(dict(run.counts))
    assert not run.wrong, "\n".join(run.wrong)
