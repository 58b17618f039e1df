"""What this process has seen of the tables of a REST catalog, so that not every batch asks for each of them.

A REST server has no request for the pointers of all tables: a look at a lake of a thousand tables is a
thousand requests, and a sync looks several times.  While a sync runs (:func:`sparing`), such a look is
remembered, and used again for tables that this process has not changed since, as long as `commits` says that
nobody else has published, and for a minute at most, or longer where a look itself takes seconds.

Invariant: what is about to be changed is always read anew.  So what somebody else does to a table meanwhile
is found when a batch touches the table, or by the next look; never built upon.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import LakeName

LIFE_SECONDS_MIN = 60.0
# Ten thousand tables take half a minute: a look lives so long that looks are a twentieth of the time.
LIFE_TIMES = 20
# With fewer tables a look costs little, and then it is always a new one.
TABLES_MIN = 50
_Key = tuple[str, str, str]


@dataclass(frozen=True)
class Look:
    """The tables of a lake as they were read.

    Attributes:
        head: the snapshot of `commits` then.
        at: when that was, by the monotonic clock, in seconds.
        pointers: table → metadata location; None for what was changed by this process since.
        names: of all tables, those being filled among them.
        seconds: how long it took to read them.
    """

    head: int | None
    at: float
    pointers: Mapping[LakeName, str | None]
    names: frozenset[LakeName]
    seconds: float


_sparing: ContextVar[bool] = ContextVar("slotlake_sparing", default=False)
_looks: dict[_Key, Look] = {}
_lock = threading.Lock()


@contextmanager
def sparing() -> Iterator[None]:
    """Let looks at all tables of a REST catalog be answered from what was read lately."""
    token = _sparing.set(True)
    try:
        yield
    finally:
        _sparing.reset(token)


def is_sparing() -> bool:
    """Return whether looks may be answered from what was read lately."""
    return _sparing.get()


def is_in_use(lake: LakeSettings) -> bool:
    """Return whether a look was remembered: then a table may have been changed by somebody since."""
    return _sparing.get() and _key(lake) in _looks


def remembered(lake: LakeSettings, head: int | None) -> Mapping[LakeName, str | None] | None:
    """Return the last look's pointers, None for tables to be read anew; None if there is no look to use.

    Args:
        head: the snapshot of `commits` now.
    """
    look = _usable(lake, head)
    return None if look is None else look.pointers


def names(lake: LakeSettings, head: int | None) -> frozenset[LakeName] | None:
    """Return the names of all tables at the last look; None if looks are not spared, or there is none to use.

    Whatever this process makes, renames or drops ends a look (:func:`forget_all`).

    Args:
        head: the snapshot of `commits` now.
    """
    look = _usable(lake, head) if is_sparing() else None
    return None if look is None else look.names


def remember(
    lake: LakeSettings,
    head: int | None,
    pointers: Mapping[LakeName, str],
    names: frozenset[LakeName],
    seconds: float,
) -> None:
    """Remember a look at all tables, if they are many.

    Args:
        head: the snapshot of `commits`.
    """
    with _lock:
        if len(pointers) < TABLES_MIN:
            _looks.pop(_key(lake), None)
        else:
            _looks[_key(lake)] = Look(head, time.monotonic(), dict(pointers), names, seconds)


def amend(lake: LakeSettings, pointers: Mapping[LakeName, str]) -> None:
    """Add to the last look what was read anew of some tables."""
    _change(lake, pointers)


def forget(lake: LakeSettings, names: Collection[LakeName], head: int | None = None) -> None:
    """Note that this process has changed tables: they are read anew at the next look.

    Args:
        head: the snapshot of `commits` since, if it is another.
    """
    _change(lake, dict.fromkeys(names), head)


def forget_all(lake: LakeSettings) -> None:
    """Note that this process has made or dropped tables."""
    with _lock:
        _looks.pop(_key(lake), None)


def _usable(lake: LakeSettings, head: int | None) -> Look | None:
    look = _looks.get(_key(lake))
    if look is None or look.head != head:
        return None
    life = max(LIFE_SECONDS_MIN, LIFE_TIMES * look.seconds)
    return look if time.monotonic() - look.at <= life else None


def _change(lake: LakeSettings, pointers: Mapping[LakeName, str | None], head: int | None = None) -> None:
    with _lock:
        look = _looks.get(_key(lake))
        if look is not None:
            newest = look.head if head is None else head
            pointers = {**look.pointers, **pointers}
            _looks[_key(lake)] = replace(look, head=newest, pointers=pointers)


def _key(lake: LakeSettings) -> _Key:
    return lake.uri, lake.catalog, lake.namespace
