"""docs/types.md says what the tables in the code say: every built-in type once, each cell of its row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slotlake.decoder.types import table as types_table
from slotlake.decoder.types.binary.values import WITHHELD, binary_text
from slotlake.decoder.types.catalog import BUILTIN_TYPES, Kind, TypeCatalog
from slotlake.decoder.types.table import column_type
from slotlake.decoder.types.text_error import TextError

pytestmark = pytest.mark.fast

PAGE = Path(__file__).resolve().parents[2] / "docs" / "types.md"
ICEBERG = {"bigint": "long", "timestamp_ntz": "timestamp", "timestamp": "timestamptz"}
ROW = re.compile(r"^\| (`\w+`.*) \| (`.*`) \| (`.*`) \| (.+) \| (.+) \| (.*)\|$")
EVERY_BEGINNING = {"numeric(p,s)": ((20 << 16) | 4) + 4, "numeric": -1}


def rows() -> dict[str, tuple[str, ...]]:
    """Each type's cells: Arrow, Iceberg, canonical text, from binary, beside."""
    first = PAGE.read_text().split("\n## ")[0]
    found: dict[str, tuple[str, ...]] = {}
    for match in filter(None, map(ROW.match, first.splitlines())):
        names = re.findall(r"`([^`]+)`", match[1])
        if match[1].startswith("`numeric`, otherwise"):
            names = ["numeric"]
        for name in names:
            assert name not in found, name
            found[name] = tuple(cell.strip().strip("`") for cell in match.groups()[1:])
    return found


def test_every_built_in_type_has_its_row_and_no_other() -> None:
    alone = {e.name for e in BUILTIN_TYPES.values() if e.kind not in {Kind.ARRAY, Kind.COMPOSITE}}
    assert set(rows()) - {"numeric(p,s)"} == alone


def test_a_type_becomes_what_its_row_says() -> None:
    oids = {entry.name: oid for oid, entry in BUILTIN_TYPES.items()} | {"numeric(p,s)": 1700}
    for name, (arrow, iceberg, _, binary, beside) in rows().items():
        ct = column_type(oids[name], EVERY_BEGINNING.get(name, -1))
        said = str(ct.arrow).replace("20, 4", "p, s")
        assert said == arrow, name
        assert ICEBERG.get(ct.spark, ct.spark).replace("20,4", "p,s") == iceberg, name
        assert bool(beside) == ct.inexact, name
        read = types_table._row(ct.oid, ct.typmod).read is not None
        kind = "typed" if read else "withheld" if name in WITHHELD else "text"
        assert {"typed": "typed", "text": "text", "refused": "withheld", "none": "withheld"}[
            re.split(r"\W", binary)[0]
        ] == kind, name


def test_what_is_withheld_has_no_printer_and_all_else_has_one() -> None:
    catalog = TypeCatalog(lc_monetary="C")
    for oid, entry in BUILTIN_TYPES.items():
        if entry.kind is Kind.BASE:
            with pytest.raises(TextError) as error:
                binary_text(b"\xff" * 5, oid, catalog)
                raise TextError("it was printed")
            reason = error.value.reason
            refused = "it can only be read as text" in reason or "integer with another" in reason
            assert refused or entry.name not in WITHHELD
            assert "does not know" not in error.value.reason
