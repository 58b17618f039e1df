"""Which store has a location: a folder of this machine, or the bucket that its prefix was registered with.

A REST catalog lends keys for a prefix; the longest prefix that fits a location is the one that counts, as in
the REST specification ("storage-credentials").  Metadata holds plain locations, so this is asked wherever one
is read.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from slotlake.decoder.errors import LakeError
from slotlake.spark.storage.base import Store
from slotlake.spark.storage.folder import FolderStore, local_path
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


_folder = FolderStore()
_lock = threading.Lock()
_settings: dict[str, StorageSettings] = {}
_loans: dict[str, tuple[float, Loan]] = {}
_open: dict[tuple[int, str, StorageSettings], Store] = {}


def register(prefix: str, settings: StorageSettings, loan: Loan | None = None) -> None:
    """Say how files under a prefix are reached, from now on.

    Args:
        prefix: a bucket, or a folder in one.
        settings: endpoint and keys.
        loan: until when the keys are good; None: for ever.
    """
    with _lock:
        key = canonical(prefix).rstrip("/")
        _settings[key] = settings
        _loans.pop(key, None)
        if loan is not None:
            life = loan.until - time.time()
            renew_at = loan.until - min(_RENEWED_BEFORE_SECONDS, life * _RENEWED_BEFORE_SHARE)
            _loans[key] = renew_at, loan


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
    _renew(canonical(where))
    with _lock:
        settings = _registered(canonical(where))
        key = os.getpid(), where.bucket, settings  # a forked process cannot use its parent's connections
        if key not in _open:
            from slotlake.spark.storage.bucket import BucketStore

            _open[key] = BucketStore(where.bucket, settings)
        return _open[key]


def canonical(location: str) -> Location:
    """Return a location as it is compared with others.

    Hadoop writes ``file:/a`` and ``s3a://``, Iceberg ``file:///a``; both may escape characters.

    Args:
        location: as metadata has it.
    """
    where = Location(location)
    if where.is_in_bucket:
        return Location(f"{where.bucket}/{where.key}")
    return Location(f"file://{local_path(where)}")


def _registered(location: str) -> StorageSettings:
    prefix = _prefix_of(location)
    return StorageSettings() if prefix is None else _settings[prefix]


def _prefix_of(location: str) -> str | None:
    fitting = [prefix for prefix in _settings if location == prefix or location.startswith(f"{prefix}/")]
    return max(fitting, key=len, default=None)


def _renew(location: str) -> None:
    """Ask for other keys if those for a location are about to end."""
    with _lock:
        due = _loans.get(_prefix_of(location) or "")
    if due is None or time.time() < due[0]:
        return
    loan = due[1]
    if time.time() >= loan.until:
        loan.renew()
        return
    with suppress(LakeError):  # they are good still: it is asked again for the next file
        loan.renew()
