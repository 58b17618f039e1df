# ruff: noqa: E501  (a break is read as a line)
"""The matrix finds what is wrong: at one place slotlake is broken on purpose, and a road that leads past it says so."""

from __future__ import annotations

import decimal
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from slotlake.decoder.copy import parts
from slotlake.infra.local.postgres import EmbeddedPostgres
from slotlake.spark.catalog.rest import published as rest_published
from slotlake.spark.copy import files
from slotlake.spark.direct import change_log, history, positions, snapshot, stage
from slotlake.spark.fold import slices
from slotlake.spark.history import changes_table
from slotlake.spark.history import fold as history_fold
from slotlake.spark.merge import bounds
from tests.conftest import fresh_database
from tests.roads.journey import begun
from tests.roads.road import CHOICES, Road
from tests.roads.travel import Services

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it"),
]
STEPS = 16  # at most
Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Break:
    """One place that is broken.

    Attributes:
        patch: breaks it.
        tables: what is written to.
        road: other answers than the first ones.
    """

    patch: Patch
    tables: Sequence[str]
    road: Mapping[str, str] = field(default_factory=dict)


def _replaced(module: Any, name: str, made: Callable[[Any], Any]) -> Patch:
    """Put what ``made`` makes of an object in its place."""
    return lambda patch: patch.setattr(module, name, made(getattr(module, name)))


BREAKS: dict[str, Break] = {
    "decimals of 28 digits": Break(
        _replaced(positions, "_EXACT", lambda _: decimal.Context(prec=28)), ["k_num38", "k_pair", "k_num29"]
    ),
    "an upper bound is cut, not raised": Break(
        _replaced(files, "text_above", lambda _: lambda text, length: text[:length]), ["k_text", "k_pair"]
    ),
    "dates before 1970 are large": Break(
        _replaced(
            positions, "_bound",
            lambda right: lambda stored, kind: int.from_bytes(stored, "little") if pa.types.is_date(kind) else right(stored, kind),
        ), ["k_date"],
    ),
    "the next row is deleted": Break(
        _replaced(
            snapshot, "puffin_of", lambda right: lambda rows, by: right({k: v + 1 for k, v in rows.items()}, by)
        ), ["k_num18", "k_uuid", "laid_by_part"],
    ),
    "row numbers are given twice": Break(
        _replaced(
            stage, "with_snapshot",
            lambda right: lambda metadata, *rest: {**right(metadata, *rest), "next-row-id": metadata["next-row-id"]},
        ), ["k_num18", "k_uuid"],
    ),
    "a summary counts one more": Break(
        _replaced(
            snapshot, "_summary",
            lambda right: lambda before, of: {**(told := right(before, of)), "total-records": str(int(told["total-records"]) + 1)},
        ), ["k_num18"],
    ),
    "bounds of keys are too narrow": Break(
        _replaced(bounds, "_rounded", lambda _: lambda low, high, kind: (low, low)),
        ["k_int2", "k_int8", "full_key"], {"engine": "merge"},
    ),
    "a slice forgets the TRUNCATE": Break(
        _replaced(slices, "last_truncate", lambda _: lambda rows: -1),
        ["emptied", "k_num18"], {"engine": "merge", "slices": "many"},
    ),
    "a slice forgets the TRUNCATE, without Spark": Break(
        _replaced(slices, "last_truncate", lambda _: lambda rows: -1), ["emptied", "k_num18"], {"slices": "many"}
    ),
    "a row that moves brings no values along": Break(
        _replaced(stage, "Old", lambda right: lambda replaced, origin: right(replaced, replaced)), ["k_num18", "k_uuid"]
    ),
    "the last range is not copied": Break(
        _replaced(parts, "_parts", lambda right: lambda *of: right(*of)[:-1] or right(*of)),
        ["k_num18", "emptied"], {"copy": "over_syncs"},
    ),
    "a version ends when it begins": Break(
        _replaced(history_fold, "_times", lambda right: lambda txns, begun, ended: right(txns, begun, begun)),
        ["k_num18", "k_uuid"], {"mode": "history"},
    ),
    "unchanged values are NULL": Break(
        _replaced(changes_table, "_unchanged", lambda _: lambda merged, columns: pa.nulls(len(merged.op), pa.list_(pa.string()))),
        ["k_num18", "k_uuid", "k_num3810"], {"mode": "append"},
    ),
    "a version that ends holds on": Break(
        _replaced(history, "Change", lambda right: lambda rows, deleted, removed=(): right(rows, {}, removed)),
        ["k_num18", "k_uuid"], {"mode": "history"},
    ),
    "what was before is what is now": Break(
        _replaced(change_log, "image_sources", lambda right: lambda schema, image: right(schema, "new")),
        ["k_num18", "full_key", "k_uuid"], {"mode": "append"},
    ),
    "a server hears of the last snapshot's rows only": Break(
        _replaced(rest_published, "_snapshot", lambda right: lambda metadata, server=None: _as_it_is(metadata, right(metadata, server))),
        ["k_num18", "k_num3810"], {"engine": "merge", "slices": "many", "catalog": "staged"},
    ),
}  # fmt: skip


def _as_it_is(metadata: Any, changes: list[Any]) -> list[Any]:
    """With the numbers that the snapshot has in our own metadata."""
    own = {each["snapshot-id"]: each for each in metadata["snapshots"]}
    for change in changes:
        if (told := change.get("snapshot")) is not None:
            its = own[told["snapshot-id"]]
            told |= {name: its[name] for name in ("first-row-id", "added-rows") if name in its}
    return changes


@pytest.mark.parametrize("name", BREAKS)
def test_is_found(
    server: EmbeddedPostgres, services: Services, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    broken = BREAKS[name]
    broken.patch(monkeypatch)
    first = {question: answers[0] for question, answers in CHOICES.items()}
    with fresh_database(server) as source:
        try:
            made = begun([Road(**{**first, **broken.road})], [broken.tables], source, services, seed=1)
            for _ in range(STEPS):
                made.step()
                if any(each.wrong for each in made.travellers):
                    break
            wrong = made.end()
        except (AttributeError, NameError, TypeError):
            raise  # the break itself is broken
        except Exception as error:  # noqa: BLE001  (what is broken may end in any error)
            wrong = [str(error)]
        assert wrong
