"""What a REST server says about the storage of a table, and the keys that it lends for the table's files.

The server lends keys for prefixes ("storage-credentials" of the REST specification).  One that is broader
than the table (``s3``, a bucket, the warehouse) counts for the table alone: it came with this table's answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, Final

from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import LakeName
from slotlake.spark.storage import stores
from slotlake.spark.storage.location import Location
from slotlake.spark.storage.settings import StorageSettings

# By Iceberg's names; more is not followed.
_PLAIN: Final = ("s3.endpoint", "s3.region", "client.region", "s3.path-style-access")
_KEYS: Final = ("s3.access-key-id", "s3.secret-access-key", "s3.session-token")
_ENDS: Final = "s3.session-token-expires-at-ms"
_FOLLOWED: Final = frozenset({*_PLAIN, *_KEYS, _ENDS})


class TableStorage:
    """The storage of the tables of one lake.

    Args:
        lake: the lake.
        answered: asks the server for a table, which registers its storage; None if there is no such table.
    """

    def __init__(self, lake: LakeSettings, answered: Callable[[LakeName], object]) -> None:
        self._lake = lake
        self._answered = answered

    def register(self, name: LakeName, location: str, content: Mapping[str, Any]) -> None:
        """Take over what the server says about the storage of a table."""
        if not Location(location).is_in_bucket:
            return
        config = _followed(content.get("config") or {})
        places = {location: config} if config else {}
        lent = content.get("storage-credentials") or ()
        for each in sorted(lent, key=lambda credential: len(credential["prefix"])):
            places[_place(each["prefix"], location)] = {**config, **_followed(each["config"])}
        for place, said in places.items():
            stores.register(place, self._settings(said), self._loan(name, location, said))

    def _loan(self, name: LakeName, location: str, said: Mapping[str, str]) -> stores.Loan | None:
        """Until when the keys are good; None if the server does not say it."""

        def renew() -> None:
            if self._answered(name) is None:  # the table is not there yet, or not any more
                stores.borrow_again(location)

        ends = said.get(_ENDS, "")
        return stores.Loan(int(ends) / 1000, renew) if ends.isdigit() else None

    def _settings(self, said: Mapping[str, str]) -> StorageSettings:
        """What the server says, on top of what the pipeline file says; keys are never of both."""
        stated = StorageSettings.of_iceberg_properties(said)
        given = {each.name: getattr(stated, each.name) for each in fields(stated)}
        lent = stated.access_key is not None
        own = self._lake.storage.without_keys() if lent else self._lake.storage
        return replace(own, **{**{n: value for n, value in given.items() if value is not None}, "lent": lent})


def _followed(config: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in config.items() if name in _FOLLOWED}


def _place(prefix: str, location: str) -> str:
    """Where keys count that are lent for a prefix, with the answer about the table at a location."""
    where = Location(location)
    plain, broad = f"{where.bucket}/{where.key}", prefix.rstrip("/")
    return location if location.startswith(broad) or plain.startswith(broad) else prefix
