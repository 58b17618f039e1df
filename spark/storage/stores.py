"""Which store has a location: a folder of this machine, or the bucket that its prefix was registered with.

A REST catalog lends keys for a prefix; the longest prefix that fits a location is the one that counts, as in
the REST specification ("storage-credentials").  Metadata holds plain locations, so this is asked wherever one
is read.

Invariant: where keys are lent for a lake (`lend`), nothing below its root is asked for with other keys, but
for what was registered as having its own.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from slotlake.decoder.errors import LakeError
from slotlake.spark.storage.base import Store
from slotlake.spark.storage.folder import FolderStore, local_path
from slotlake.spark.storage.keys.signing import Keys
from slotlake.spark.storage.location import FOLDER_SCHEMES, Location
from slotlake.spark.storage.settings import StorageSettings

_RENEWED_BEFORE_SECONDS: Final = 300.0
_RENEWED_BEFORE_SHARE: Final = 0.2


@dataclass(frozen=True)
class Loan:
    """Keys that a REST catalog lends for a time.

    Attributes:
        until: when they end, in seconds since 1970.
        renew: asks for others, and registers them.
    """

    until: float
    renew: Callable[[], object]


@dataclass(frozen=True)
class _Place:
    """How what lies under a prefix is reached.

    Attributes:
        own: nobody is asked to lend keys for it.
        renew_at: when other keys are asked for by ``loan``, in seconds since 1970.
        lender: lends keys for what lies below, if it is a lake's root.
    """

    settings: StorageSettings | None = None  # None: as what lies above it
    own: bool = False
    loan: Loan | None = None
    renew_at: float = 0.0
    lender: Callable[[Location], object] | None = None


_NOWHERE: Final = _Place()
_folder = FolderStore()
_lock = threading.Lock()
# Metadata holds plain locations: who reads one knows no lake, and so no object that could own this.
_places: dict[str, _Place] = {}
# Lakes with the same keys share the connections to their bucket.
_open: dict[tuple[int, str, str, StorageSettings], Store] = {}


def register(prefix: str, settings: StorageSettings, loan: Loan | None = None, *, own: bool = False) -> None:
    """Say how files under a prefix are reached, from now on.

    Args:
        prefix: a bucket, or a folder in one.
        loan: until when the keys are good; None: for ever.
        own: nobody is asked to lend keys for it, though it lies in a lake for which keys are lent.
    """
    renew_at = 0.0
    if loan is not None:
        life = loan.until - time.time()
        renew_at = loan.until - min(_RENEWED_BEFORE_SECONDS, life * _RENEWED_BEFORE_SHARE)
    key = canonical(prefix).rstrip("/")
    with _lock:
        lender = _places.get(key, _NOWHERE).lender
        _places[key] = _Place(settings, own, loan, renew_at, lender)


def lend(root: str, lender: Callable[[Location], object] | None) -> None:
    """Say who lends keys for what lies below a lake's root.

    Args:
        lender: registers a prefix of a location with keys, or raises an error of the lake; None: nobody.
    """
    with _lock:
        key = canonical(root).rstrip("/")
        _places[key] = replace(_places.get(key, _NOWHERE), lender=lender)


def is_lent(location: str) -> bool:
    """Return whether keys were lent for a location."""
    with _lock:
        return _settings_of(canonical(location)).lent


def borrow_again(location: str) -> None:
    """Ask for other keys for a location; nothing if nobody lends any.

    Raises:
        LakeError: who lends keys lends none for it.
    """
    where = canonical(location)
    with _lock:
        lender = _lender_of(where)
    if lender is not None:
        lender(where)


def settings_of(location: str) -> StorageSettings:
    """Return how a location is reached now; keys that are about to end are renewed before.

    Raises:
        LakeError: nobody lends keys for it.
    """
    where = canonical(location)
    _renew(where)
    _borrow(where)
    with _lock:
        return _settings_of(where)


def store_of(location: str) -> Store:
    """Return the store that has a location.

    Raises:
        LakeError: the location's bucket belongs to no lake that is open, or its scheme is unknown.
    """
    where = Location(location)
    if where.scheme in FOLDER_SCHEMES:
        return _folder
    if not where.is_in_bucket:
        raise LakeError(
            f"this version has no storage for {where.scheme}:// locations",
            where=location,
            way_out="keep the table in a folder, or in an object store: s3://…, gs://… or abfss://…",
        )
    settings = settings_of(where)
    with _lock:
        lent = _prefix_of(canonical(where)) if settings.lent else ""
        settings = settings.without_keys() if lent else settings
        key = os.getpid(), where.bucket, lent, settings  # a fork cannot use its parent's connections
        if key not in _open:
            from slotlake.spark.storage.bucket import BucketStore

            _open[key] = BucketStore(where.bucket, settings, partial(_lent_keys, lent) if lent else None)
        return _open[key]


def canonical(location: str) -> Location:
    """Return a location as it is compared with others.

    Hadoop writes ``file:/a`` and ``s3a://``, Iceberg ``file:///a``; both may escape characters.
    """
    where = Location(location)
    if where.is_in_bucket:
        return Location(f"{where.bucket}/{where.key}")
    return Location(f"file://{local_path(where)}")


def _place_of(location: str) -> _Place:
    return _places.get(_prefix_of(location), _NOWHERE)


def _settings_of(location: str) -> StorageSettings:
    return _place_of(location).settings or StorageSettings()


def _prefix_of(location: str) -> str:
    """The longest prefix that was registered; empty if there is none."""
    prefix = location.rstrip("/")
    while prefix and _places.get(prefix, _NOWHERE).settings is None:
        prefix = prefix.rpartition("/")[0]
    return prefix


def _lender_of(location: str) -> Callable[[Location], object] | None:
    """Who lends keys for the lake that a location is in; None if nobody does."""
    prefix = location
    while prefix := prefix.rpartition("/")[0]:
        if (lender := _places.get(prefix, _NOWHERE).lender) is not None:
            return lender
    return None


def _lent_keys(prefix: str) -> Keys:
    """The keys for what lies below a prefix; they are others from time to time."""
    return settings_of(prefix).keys()


def _borrow(location: Location) -> None:
    """Ask for keys, if none were lent for a location yet."""
    with _lock:
        place = _place_of(location)
        if place.own or _settings_of(location).lent or _lender_of(location) is None:
            return
    borrow_again(location)


def _renew(location: str) -> None:
    """Ask for other keys if those for a location are about to end."""
    with _lock:
        place = _place_of(location)
    loan = place.loan
    if loan is None or time.time() < place.renew_at:
        return
    if time.time() >= loan.until:
        loan.renew()
        return
    with suppress(LakeError):  # they are good still: it is asked again for the next file
        loan.renew()
