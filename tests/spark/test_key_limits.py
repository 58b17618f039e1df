"""Rows whose keys are at the limits of their types: the direct road, the MERGE and other readers find each.

The key of each table has a column of every type of a group, so a row is found only if the bounds of each of
them say that it may be in its file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.direct import choice
from slotlake.spark.lake import LakeSettings
from tests.spark.lake_lab import Change, Lab, Row, delete, insert, relation, update
from tests.spark.test_direct import staged_by
from tests.spark.test_read_others import _duckdb
from tests.storage import lake_in

_E28 = 10**28  # Python's decimals have 28 digits unless a context says otherwise
_DATES = [
    "infinity", "-infinity", "0001-01-01", "0001-01-02", "9999-12-31", "9999-12-30", "10000-01-01",
    "5874897-12-31", "1970-01-01", "1969-12-31", "1582-10-10", "0001-12-31 BC", "4713-01-01 BC",
]  # fmt: skip
_MOMENTS = [
    "infinity", "-infinity", "0001-01-01 00:00:00", "0001-01-01 00:00:00.000001", "1970-01-01 00:00:00",
    "9999-12-31 23:59:59.999998", "9999-12-31 23:59:59.999999", "10000-01-01 00:00:00",
    "294276-12-31 23:59:59.999999", "1969-12-31 23:59:59.999999", "1582-10-10 00:00:00",
    "0001-12-31 23:59:59.999999 BC", "4713-01-01 00:00:00 BC",
]  # fmt: skip


def _signed(*texts: str) -> list[str]:
    return [sign + text for text in texts for sign in ("", "-")]


def _integers(bits: int) -> list[str]:
    most = 2 ** (bits - 1)
    return [str(number) for number in (-most, 1 - most, most - 2, most - 1, -1, 0, 1)]


def _in_utc(moment: str) -> str:
    return moment if "inf" in moment else f"{moment.removesuffix(' BC')}+00{' BC' * moment.endswith('BC')}"


def _cut(start: str, unit: str) -> list[str]:
    """What a bound has of a value, sixteen units, and what it cuts off or leaves out."""
    return [start + unit * length for length in (1, 16, 17, 5000)]


_GROUPS: dict[str, dict[str, list[str]]] = {
    "integers": {
        "int2": _integers(16),
        "int4": _integers(32),
        "int8": [*_integers(64), *_signed(str(2**53), str(2**53 + 1))],
        "oid": [str(number) for number in (0, 2**31 - 1, 2**31, 2**32 - 1)],
    },
    "decimals": {
        "numeric(38,0)": _signed(*map(str, (10**38 - 1, 10**38 - 2, _E28 - 1, _E28, _E28 + 1, 1))),
        "numeric(38,10)": _signed(f"{_E28 - 1}.9999999999", f"{_E28 - 1}.9999999998", "0.0000000001"),
        "numeric(38,38)": _signed("0." + "9" * 38, "0." + "9" * 37 + "8", f"0.{1:038}"),
        "numeric(19,2)": _signed("9" * 17 + ".99", "92233720368547758.07", "0.01"),
        "numeric(18,2)": ["NaN", *_signed("9" * 16 + ".99", "9" * 16 + ".98", "1.28", "327.68", "0.01")],
        "numeric(9,2)": _signed("9999999.99", "9999999.98", "1.28", "0.01"),
        "numeric(2,4)": _signed("0.0099", "0.0001"),
        "numeric(5,-2)": _signed("9999900", "100"),
    },
    "numbers": {
        "numeric": ["NaN", "0", "0.0", *_signed("Infinity", str(_E28), "9" * 40)],
        "float4": ["NaN", "-0", *_signed("Infinity", "3.4028235e+38", "1e-45")],
        "float8": ["0", "NaN", *_signed("Infinity", "1.7976931348623157e+308", "5e-324")],
        "bool": ["t", "f"],
    },
    "times": {
        "date": _DATES,
        "timestamp": _MOMENTS,
        "timestamptz": [_in_utc(moment) for moment in _MOMENTS],
        "time": ["24:00:00", "00:00:00", "23:59:59.999999"],
        "interval": ["00:00:00", "178000000 years", "-178000000 years", "infinity"],
    },
    "texts": {
        "text": [
            "", "a", "a ", "\x01", "\x7f" * 17, "\u07ff" * 17, "\U00010000", "\U0001f600" * 17,
            *_cut("a" * 15, "\ud7ff"), *_cut("", "\uffff"), *_cut("\U0010ffff", "\U0010ffff"),
        ],
        "bytea": ["\\x", "\\x7f", "\\x80", *_cut("\\x", "ff"), *_cut("\\x" + "ff" * 15, "fe")],
        "uuid": [f"{digit}0000000-0000-0000-0000-000000000000" for digit in "078f"],
    },
}  # fmt: skip


def _tables() -> dict[Any, list[Row]]:
    """Each group as a table: its i-th row has the i-th value of each column, from the beginning again."""
    tables: dict[Any, list[Row]] = {}
    for name, kinds in _GROUPS.items():
        columns = {f"k{i}": kind for i, kind in enumerate(kinds)}
        values = list(zip(columns, kinds.values(), strict=True))
        rows: list[Row] = [
            {key: some[at % len(some)] for key, some in values} for at in range(max(map(len, kinds.values())))
        ]
        assert len({tuple(row.values()) for row in rows}) == len(rows)
        tables[relation(name, list(columns), **columns, v="text")] = rows
    return tables


def _lab(session: Any, folder: Path, name: str) -> Lab:
    place = folder / name
    place.mkdir()
    uri, warehouse = f"sqlite:///{place}/catalog.db", f"file://{place}/warehouse"
    return Lab.on(session, lake_in(place, LakeSettings("lake", uri, warehouse, "shop")))


def _sync(lab: Lab, mode: str, *changes: Change) -> None:
    """Apply and publish a batch; the lake has all that it counts on, and nothing that it adds."""
    batch = lab.batch(*changes)
    with staged_by(mode):
        applied = lab.apply(batch)
    met = {name: each.conflicts.counts for name, each in applied.tables.items()}
    assert {name: counts for name, counts in met.items() if counts} == {}
    lab.publish(batch)


def _require_found_by_duckdb(lab: Lab, table: Any, rows: int) -> None:
    """DuckDB finds the rows of each value that it has seen in the column."""
    with open_catalog(lab.lake) as catalog, _duckdb() as connection:
        loaded = catalog.iceberg.load_table(("shop", table.table))
        assert loaded.scan().to_arrow().num_rows == rows
        connection.execute("SET TimeZone = 'UTC'")
        scan = f"iceberg_scan('{loaded.metadata_location}')"
        for name in table.key:
            query = f"SELECT {name}::VARCHAR, typeof({name}), count(*) FROM {scan} WHERE {name} IS NOT NULL"
            for text, kind, count in connection.execute(f"{query} GROUP BY ALL").fetchall():
                if text == "nan":
                    continue  # bounds say nothing of NaN (table specification), and DuckDB looks at them
                equal = f"SELECT count(*) FROM {scan} WHERE {name} = CAST($1 AS {kind})"
                assert connection.execute(equal, [text]).fetchall() == [(count,)], (
                    table.table,
                    name,
                    text[:40],
                )


def test_rows_at_the_limits_are_found(session: Any, tmp_path: Path) -> None:
    tables = _tables()
    direct, merged = (_lab(session, tmp_path, name) for name in ("direct", "merged"))
    for lab in (direct, merged):
        lab.init({table: [{**rows[0], "v": "copied"}] for table, rows in tables.items()})

    def of(*ats: int) -> list[tuple[Any, Row]]:
        return [(table, rows[at]) for table, rows in tables.items() for at in ats if at < len(rows)]

    most = max(map(len, tables.values()))
    # Both write files: the copy, the MERGE, and the direct road, which writes one for each of these rows.
    _sync(direct, choice.NEVER, *(insert(table, **row, v="new") for table, row in of(*range(1, most, 3))))
    for at in [at for at in range(1, most) if at % 3 != 1]:
        _sync(direct, choice.ALWAYS, *(insert(table, **row, v="new") for table, row in of(at)))
    _sync(merged, choice.NEVER, *(insert(table, **row, v="new") for table, row in of(*range(1, most))))
    for table, rows in tables.items():
        _require_found_by_duckdb(direct, table, len(rows))
    for lab, mode in ((direct, choice.ALWAYS), (merged, choice.NEVER)):
        _sync(lab, mode, *(update(table, **row, v="again") for table, row in of(*range(most))))
        _sync(lab, mode, *(delete(table, **row) for table, row in of(*range(0, most, 2))))
    for table, rows in tables.items():
        expected = sorted(((*row.values(), "again") for row in rows[1::2]), key=repr)
        assert direct.rows(table.table) == merged.rows(table.table) == expected
        _require_found_by_duckdb(direct, table, len(expected))
