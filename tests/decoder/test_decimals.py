"""A `numeric` without precision as a decimal: what fits is there, what prints otherwise keeps its text."""

from __future__ import annotations

from decimal import Decimal, localcontext

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotlake.decoder.types import oids
from slotlake.decoder.types.representations import DecimalTexts, as_decimal, representation_of

NINES = "9" * 28


@pytest.mark.parametrize(
    ("precision", "scale", "text", "value", "beside"),
    [
        (38, 10, "1.5", "1.5", False),
        (38, 10, "1.50", "1.5", True),
        (38, 10, "-0.00", "0", True),
        (38, 10, "0", "0", False),
        (38, 10, "100", "100", False),
        (38, 10, "0.0000000001", "0.0000000001", False),
        (38, 10, "0.00000000010", "0.0000000001", True),
        (38, 10, "0.00000000001", None, True),
        (38, 10, f"-{NINES}.9999999999", f"-{NINES}.9999999999", False),
        (38, 10, f"1{'0' * 28}", None, True),
        (38, 0, "9" * 38, "9" * 38, False),
        (38, 0, "1" + "0" * 38, None, True),
        (38, 0, "10", "10", False),
        (38, 0, "10.0", "10", True),
        (38, 0, "10.5", None, True),
        (38, 38, "0." + "9" * 38, "0." + "9" * 38, False),
        (38, 38, "1", None, True),
        (1, 1, "0.1", "0.1", False),
        (38, 10, "NaN", None, True),
        (38, 10, "Infinity", None, True),
        (38, 10, "-Infinity", None, True),
        (38, 10, "1" * 147455, None, True),
    ],
)
def test_limits(precision: int, scale: int, text: str, value: str | None, beside: bool) -> None:
    form = representation_of(as_decimal(precision, scale), oids.NUMERIC, -1)
    typed, exact = form.keep(pa.array([text, None]), None)
    assert typed.type == pa.decimal128(precision, scale)
    assert typed.to_pylist() == [None if value is None else Decimal(value), None]
    assert (exact is not None and exact.to_pylist() == [text, None]) == beside
    assert form.text(typed, exact).to_pylist() == [text, None]


@given(st.lists(st.tuples(st.integers(-(10**40), 10**40), st.integers(0, 14)), min_size=1, max_size=40))
def test_nothing_is_rounded(pairs: list[tuple[int, int]]) -> None:
    form = representation_of(as_decimal(38, 10), oids.NUMERIC, -1)
    with localcontext(prec=60):
        values = [Decimal(digits).scaleb(-scale) for digits, scale in pairs]
        texts = [f"{value:f}" for value in values]
        typed, exact = form.keep(pa.array(texts), None)
        assert form.text(typed, exact).to_pylist() == texts
        for value, held in zip(values, typed.to_pylist(), strict=True):
            fits = value == round(value, 10) and abs(value) < 10**28
            assert held == (value if fits else None)


def test_texts_longer_than_two_billion_bytes_are_read_in_pieces() -> None:
    form = representation_of(as_decimal(38, 10), oids.NUMERIC, -1)
    typed, exact = form.keep(pa.chunked_array([["1.50"], ["2", None]]).cast(pa.large_string()), None)
    assert typed.to_pylist() == [Decimal("1.5"), Decimal(2), None]
    assert exact is not None
    assert exact.to_pylist() == ["1.50", None, None]


@pytest.mark.parametrize("wrong", [(39, 0), (10, 11), (0, 0), (5, -1)])
def test_no_such_decimal(wrong: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="decimal"):
        DecimalTexts(*wrong)
