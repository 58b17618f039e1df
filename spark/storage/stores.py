"""Which store has a location: a folder of this machine, or the bucket that its prefix was registered with.

A REST catalog lends keys for a prefix; the longest prefix that fits a location is the one that counts, as in
the REST specification ("storage-credentials").  Metadata holds plain locations, so this is asked wherever one
is read.
"""

from __future__ import annotations

import os
import threading

from slotlake.decoder.errors import LakeError
from slotlake.spark.storage.base import Store
from slotlake.spark.storage.folder import FolderStore, local_path
from slotlake.spark.storage.location import FOLDER_SCHEMES, Location
from slotlake.spark.storage.settings import StorageSettings

_folder = FolderStore()
_lock = threading.Lock()
_settings: dict[str, StorageSettings] = {}
_open: dict[tuple[int, str, StorageSettings], Store] = {}


def register(prefix: str, settings: StorageSettings) -> None:
    """Say how files under a prefix are reached, from now on.

    Args:
        prefix: a bucket, or a folder in one.
        settings: endpoint and keys.
    """
    with _lock:
        _settings[canonical(prefix).rstrip("/")] = settings


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
    fitting = [prefix for prefix in _settings if location == prefix or location.startswith(f"{prefix}/")]
    return _settings[max(fitting, key=len)] if fitting else StorageSettings()
