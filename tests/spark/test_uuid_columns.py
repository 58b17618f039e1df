"""Why no column is of Iceberg's type uuid: Spark compares its bounds in another order than the files have.

Once this fails, Spark's Iceberg was mended: then docs/types.md and ADR 59 can be thought over.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import EqualTo
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, UUIDType

from slotlake.spark.lake import LakeSettings
from slotlake.spark.session import use_lake

pytestmark = pytest.mark.skipif(
    not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it"
)
IDS = [f"{first}0000000-0000-0000-0000-000000000000" for first in "0127af"]
_NO_BOUNDS = {"write.metadata.metrics.column.u": "none"}
_NO_STATISTICS = {**_NO_BOUNDS, "write.parquet.stats-enabled.column.u": "false"}
_MERGE = """
MERGE INTO {table} t USING (SELECT '{key}' u) s ON t.u = s.u AND t.u >= '{key}' AND t.u <= '{key}'
WHEN MATCHED THEN UPDATE SET n = -1 WHEN NOT MATCHED THEN INSERT (n, u) VALUES (-2, s.u)
"""


@pytest.mark.parametrize(
    ("properties", "right"),
    [({}, False), (_NO_BOUNDS, False), (_NO_STATISTICS, True)],
    ids=["usual", "no bounds in manifests", "no statistics at all"],
)
def test_spark_passes_over_files_that_have_a_uuid(
    session: Any, properties: dict[str, str], right: bool, tmp_path: Path
) -> None:
    name = f"uuids{len(properties)}"  # Spark keeps a catalog for as long as it runs
    catalog = SqlCatalog(name, uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w")
    catalog.create_namespace("shop")
    schema = Schema(NestedField(1, "n", LongType()), NestedField(2, "u", UUIDType()))
    catalog.create_table("shop.t", schema, properties={"format-version": "2", **properties})
    use_lake(session, LakeSettings(name, f"sqlite:///{tmp_path}/c.db", f"{tmp_path}/w", "shop"))
    table = f"{name}.shop.t"
    values = ", ".join(f"({n}, '{each}')" for n, each in enumerate(IDS))
    one_file = f"SELECT /*+ COALESCE(1) */ * FROM VALUES {values}"
    session.sql(f"INSERT INTO {table} {one_file}").collect()
    found = [session.sql(f"SELECT n FROM {table} WHERE u = '{each}'").collect() for each in IDS]
    assert [len(rows) == 1 for rows in found] == [right] * len(IDS)
    equal: Any = EqualTo  # its types say nothing of values
    scan = [catalog.load_table("shop.t").scan(row_filter=equal("u", each)) for each in IDS]
    assert [each.to_arrow().num_rows for each in scan] == [1] * len(IDS)
    session.sql(_MERGE.format(table=table, key=IDS[2])).collect()
    rows = session.sql(f"SELECT count(*) FROM {table}").collect()[0][0]
    assert rows == (len(IDS) if right else len(IDS) + 1)  # it has the row twice
