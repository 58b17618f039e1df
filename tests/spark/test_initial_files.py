"""Files become a table's content as Spark itself would take them in: same rows, same figures, row numbers."""

from __future__ import annotations

from slotlake.spark.catalog.base import load
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.copy.files import with_files
from slotlake.spark.names import LakeName
from slotlake.spark.storage.location import Location
from slotlake.spark.tables.schema import TableSchema, create_table
from tests.spark.lake_lab import PIPELINE, Lab, delete, insert, relation, update

KINDS = relation(
    "kinds", ["id"], id="int8", i="int4", f="float8", n="numeric(10,2)", d="date", s="timestamp",
    z="timestamptz", t="text", y="bytea", b="bool",
)  # fmt: skip
ROWS = [
    {"id": "-9", "i": "-1", "f": "-0", "n": "-0.01", "d": "0001-01-01", "s": "1969-12-31 23:59:59.999999",
     "z": "9999-12-31 23:59:59.999999+00", "t": "a text that is longer than sixteen", "y": "\\x", "b": "f"},
    {"id": "7", "i": "2147483647", "f": "NaN", "n": "99999999.99", "d": "2026-01-01",
     "s": "2026-01-01 00:00:00", "z": "2026-01-01 00:00:00+00", "t": "ünï\U0010ffff",
     "y": "\\x" + "ff" * 20, "b": "t"},
    {"id": "8", "n": "NaN"},
]  # fmt: skip
FLOAT = 3  # its field
FIGURES = (
    "SELECT record_count, file_size_in_bytes, column_sizes, value_counts, null_value_counts, lower_bounds, "
    "upper_bounds, readable_metrics FROM {} ORDER BY file_path"
)


def test_as_spark_takes_files_in(lab: Lab) -> None:
    lab.init({KINDS: ROWS})
    data = lab.lake.warehouse_path / "shop" / "kinds" / "data"
    place = f"file://{lab.lake.warehouse_path}/shop/theirs"
    lab.session.sql(create_table(LakeName("shop", "theirs"), "lake", TableSchema.of(KINDS), PIPELINE, place))
    present = lab.session.table("lake.shop.kinds").columns
    gone = [c for c in lab.session.table("lake.shop.theirs").columns if c not in present]
    assert gone == ["d__exact", "s__exact", "z__exact"]
    lab.session.sql(f"ALTER TABLE lake.shop.theirs DROP COLUMNS ({', '.join(gone)})")
    lab.session.sql(
        "CALL lake.system.add_files(table => 'lake.shop.theirs', "
        f"source_table => '`parquet`.`{data}`', check_duplicate_files => false)"
    )
    ours, theirs = (
        lab.session.sql(FIGURES.format(f"lake.shop.{name}.files")).first().asDict(recursive=True)
        for name in ("kinds", "theirs")
    )
    for figures in (ours, theirs):  # of a float we tell the size alone, and Spark nothing (docs/adr/0092)
        figures["column_sizes"].pop(FLOAT, None)
        del figures["readable_metrics"]["f"]
    different = {figure: (ours[figure], theirs[figure]) for figure in ours if ours[figure] != theirs[figure]}
    assert different == {}
    assert lab.session.table("lake.shop.kinds").exceptAll(lab.session.table("lake.shop.theirs")).count() == 0


def test_rows_keep_their_numbers_through_changes(lab: Lab) -> None:
    """What the manifests say of rows' numbers is what Spark goes on with."""
    lab.init({KINDS: ROWS})
    numbered = "SELECT id, _row_id, _last_updated_sequence_number FROM lake.shop.kinds ORDER BY id"
    before = [tuple(row) for row in lab.session.sql(numbered).collect()]
    assert sorted(row[1] for row in before) == [0, 1, 2]
    assert {row[2] for row in before} == {1}
    lab.sync(update(KINDS, id="7", t="changed"), delete(KINDS, id="8"), insert(KINDS, id="9"))
    after = {row[0]: row[1] for row in lab.session.sql(numbered).collect()}
    assert after.keys() == {-9, 7, 9}
    assert after[-9] == dict(row[:2] for row in before)[-9]
    assert len(set(after.values())) == 3


def test_more_files_beside_those_there(lab: Lab) -> None:
    """A second snapshot keeps the manifests of the first, also those that Spark wrote."""
    lab.init({KINDS: ROWS})
    lab.sync(delete(KINDS, id="8"), insert(KINDS, id="9"))
    name = LakeName("shop", "kinds")
    (first, *_) = sorted((lab.lake.warehouse_path / "shop" / "kinds" / "data").glob("part*.parquet"))
    again = first.with_name("again.parquet")
    again.write_bytes(first.read_bytes())
    with open_catalog(lab.lake) as catalog:
        table = load(catalog.pointers(), name)
        catalog.move([catalog.prepared(table, with_files(table.metadata, [Location(f"file://{again}")]))])
    ids = lab.session.sql("SELECT id, _row_id FROM lake.shop.kinds").collect()
    assert sorted(row[0] for row in ids) == [-9, -9, 7, 7, 8, 9]
    assert len({row[1] for row in ids}) == 6
