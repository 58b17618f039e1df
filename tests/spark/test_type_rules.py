"""Which form a column gets: the most particular word counts, and a key stays as it is."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from slotlake.decoder.errors import LakeError
from slotlake.decoder.types.catalog import Kind, TypeCatalog, TypeEntry
from slotlake.decoder.types.representations import AS_TEXT, as_list, as_range, as_record
from slotlake.spark.apply.lossy import EVERY, Lossy
from slotlake.spark.tables.type_rules import TypeRules

ROW, ROWS = 20000, 20001


@dataclass(frozen=True)
class Column:
    name: str
    type_oid: int
    typmod: int = -1


CATALOG = TypeCatalog()
CATALOG.add([TypeEntry(ROW, "public.pair", Kind.COMPOSITE), TypeEntry(ROWS, "public._pair", Kind.ARRAY, ROW)])
FIELDS = {ROW: [("a", 23, -1), ("B c", 25, -1)]}
DAY, INTS, BOXES, SPAN, PAIR = (
    Column("day", 1082), Column("ints", 1007), Column("boxes", 1020), Column("span", 3912),
    Column("pair", ROW),
)  # fmt: skip
ALL = TypeRules(arrays="list", ranges="struct", composites="struct")


def form(rules: TypeRules, column: Column, key: tuple[str, ...] = ()) -> str:
    return rules.form(column, key, CATALOG, FIELDS)


def test_the_usual_is_what_the_table_of_types_says() -> None:
    assert {form(TypeRules(), column) for column in (DAY, INTS, SPAN, PAIR)} == {""}
    assert TypeRules().to_json() == ""


def test_general_words() -> None:
    assert form(ALL, INTS) == as_list(23, ",")
    assert form(ALL, BOXES) == as_list(603, ";")
    assert form(ALL, SPAN) == as_range(1082)
    assert form(ALL, PAIR) == as_record([("a", 23, -1), ("B_x20_c", 25, -1)])
    assert form(ALL, Column("pairs", ROWS)) == as_list(ROW, ",")
    assert form(ALL, DAY) == ""


def test_a_key_and_what_is_not_known_stay_as_they_are() -> None:
    assert form(ALL, INTS, ("ints",)) == ""
    assert ALL.form(PAIR, ()) == ""  # nobody said what it is made of
    assert form(ALL, Column("else", 30000)) == ""


def test_a_word_for_a_column_goes_first() -> None:
    rules = TypeRules("list", "struct", "struct", "text", {"ints": "text", "day": "typed", "span": "struct"})
    assert form(rules, INTS) == ""
    assert form(rules, DAY) == ""
    assert form(rules, SPAN, ("span",)) == as_range(1082)
    assert form(rules, Column("other", 1082)) == AS_TEXT
    assert form(rules, BOXES) == ""  # text for all that may not fit, and an array may not
    assert TypeRules.from_json(rules.to_json()) == rules


def test_damaged_rules_are_said() -> None:
    for text in ("{", '{"arrows": "list"}'):
        with pytest.raises(LakeError, match="rules"):
            TypeRules.from_json(text)


def test_the_choice_for_a_column() -> None:
    lossy = Lossy(
        "quarantine", {("public", "t"): {"a": "fail"}, ("public", "u"): {EVERY: "fail", "b": "text"}}
    )
    assert [lossy.of("public", "t", name) for name in "ab"] == ["fail", "quarantine"]
    assert [lossy.of("public", "u", name) for name in "ab"] == ["fail", "text"]
    assert [lossy.may_fail("public", name) for name in "tuv"] == [True, True, False]
    assert Lossy("fail").may_fail("public", "v")
