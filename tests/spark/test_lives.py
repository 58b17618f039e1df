"""The life of a table: the table of transitions is complete, and a lake of any version is read."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from slotlake.decoder.errors import LakeError
from slotlake.spark.names import LakeName
from slotlake.spark.publish.aside import Aside, Cause, Record
from slotlake.spark.publish.lives import Event, Life, after, moved, property_of, stored_in

ORDERS, ITEMS, USERS = ("public", "orders"), ("public", 'Odd "Name"'), ("public", "users")
# Each line: a life, and what follows from each event, in the order of Event; None: that cannot happen.
_A, _S, _C, _F, _X, _G, _L = Life
_TABLE: dict[Life, tuple[Life | None, ...]] = {
    #   waits begins published troubled tried again given_up unpublished removed
    _A: (_S, _C, _F, _X, None, _G, _A, None, None),
    _S: (_S, _C, _F, _X, None, None, _A, _A, _A),
    _C: (_S, _C, _F, _X, None, None, _A, _A, _A),
    _F: (None, None, _F, _X, None, _G, None, _L, _A),
    _X: (_X, _X, _F, _X, _X, _G, _X, _X, _A),
    _G: (_G, _G, _F, _X, _G, _G, _G, _X, _A),
    _L: (None, None, _F, None, None, None, None, None, _A),
}


def _entry(name: tuple[str, str], cause: Cause = "value", lsn: int | None = 1) -> Aside:
    return Aside(*name, lsn, "2026-01-01T00:00:00+00:00", cause, "what", "where", "way out")


@pytest.mark.parametrize(("life", "event"), list(itertools.product(Life, Event)))
def test_each_event_in_each_life(life: Life, event: Event) -> None:
    """It leads somewhere, or is refused with both names."""
    expected = _TABLE[life][list(Event).index(event)]
    print(f"{life:<14}{event:<40}{expected or 'refused'}")
    if expected is not None:
        assert after(life, event) is expected
        return
    with pytest.raises(LakeError) as refused:
        after(life, event, "public.orders")
    assert f'"{life}"' in refused.value.what
    assert event in refused.value.what
    assert "public.orders" in refused.value.where


@pytest.mark.parametrize("life", Life)
def test_each_life_can_be_reached_and_left(life: Life) -> None:
    edges = {(one, other) for one, row in _TABLE.items() for other in row if other not in {None, one}}
    assert life in {other for _, other in edges}
    assert life in {one for one, _ in edges}


@pytest.mark.parametrize("event", Event)
def test_each_event_can_happen(event: Event) -> None:
    assert any(row[list(Event).index(event)] is not None for row in _TABLE.values())


def test_followed_and_absent_tables_have_no_entry() -> None:
    lives = moved({}, {ORDERS: Event.TROUBLED, ITEMS: Event.WAITS}, in_lake=frozenset({ORDERS}))
    assert lives == {ORDERS: Life.SET_ASIDE, ITEMS: Life.SETTLING}
    assert moved(lives, {ORDERS: Event.PUBLISHED, ITEMS: Event.GIVEN_UP}) == {}
    assert moved({}, {ORDERS: Event.REMOVED}, in_lake=frozenset({ORDERS})) == {}
    with pytest.raises(LakeError, match='"followed" is not one that waits for open transactions'):
        moved({}, {ORDERS: Event.WAITS}, in_lake=frozenset({ORDERS}))


def test_property() -> None:
    """Names of any letters come back; without an entry there is no property."""
    lives = {ITEMS: Life.COPIED_AGAIN, ("ß", "a,b"): Life.COPYING}
    text = property_of(lives)
    assert stored_in({"properties": {"slotlake.lives": text}}) == lives
    assert property_of({}) is None
    assert stored_in({}) == {}


def test_a_record_and_its_lives_agree() -> None:
    """An entry says why exactly as long as the life says that the table is set aside."""
    record = Record({}, {}).after({ORDERS: Event.TROUBLED}, {ORDERS: _entry(ORDERS)}, frozenset({ORDERS}))
    record = record.after({ITEMS: Event.BEGINS})
    assert list(record.entries) == [ORDERS]
    commits = record.written_to({"properties": {"else": "stays"}})
    assert Record.of(commits) == record
    again = record.after({ORDERS: Event.AGAIN}, {ORDERS: _entry(ORDERS, "again")})
    assert again.lives[ORDERS] is Life.COPIED_AGAIN
    assert again.entries[ORDERS].cause == "again"
    published = again.published("shop", {LakeName("shop", "orders"), LakeName("shop", "users")})
    assert (published.entries, published.lives) == ({}, {ITEMS: Life.COPYING})
    empty = published.after({ITEMS: Event.PUBLISHED}).written_to(commits)
    assert empty["properties"] == {"else": "stays"}


def test_refused_changes_write_nothing() -> None:
    record = Record({}, {ORDERS: Life.COPYING})
    with pytest.raises(LakeError, match="copied again in vain"):
        record.after({ITEMS: Event.WAITS, ORDERS: Event.TRIED})
    assert record == Record({}, {ORDERS: Life.COPYING})


def _commits(entries: list[Aside], lives: str | None) -> dict[str, Any]:
    properties = {"slotlake.aside": json.dumps([vars(each) for each in entries])}
    return {"properties": properties | ({} if lives is None else {"slotlake.lives": lives})}


def test_lakes_of_versions_without_lives() -> None:
    """Their entries say what the lives are; what another version left of the property does not count."""
    entries = [_entry(ORDERS), _entry(ITEMS, "again")]
    expected = {ORDERS: Life.SET_ASIDE, ITEMS: Life.COPIED_AGAIN}
    assert Record.of(_commits(entries, None)).lives == expected
    stale = property_of({ORDERS: Life.COPYING, USERS: Life.SET_ASIDE})
    assert Record.of(_commits(entries, stale)).lives == expected
    assert Record.of({}) == Record({}, {})
