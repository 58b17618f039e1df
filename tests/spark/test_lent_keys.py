"""Keys that a REST catalog lends for a table's files are renewed before they end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slotlake.decoder.errors import LakeError
from slotlake.spark.catalog.rest.catalog import RestPointers
from slotlake.spark.catalog.rest.session import Answered
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import LakeName
from slotlake.spark.storage import stores
from slotlake.spark.storage.location import Location
from slotlake.spark.storage.settings import StorageSettings

TABLE = "s3://lent/shop/orders"
FILE = f"{TABLE}/data/1.parquet"
NAME = LakeName("shop", "orders")


class Lender:
    """A server that lends keys for so many seconds; ``fails``: it lends no more."""

    def __init__(self, pointers: RestPointers, seconds: float) -> None:
        self.pointers, self.seconds = pointers, seconds
        self.lent, self.fails = 0, False

    def answered(self, name: LakeName) -> Answered | None:
        if self.fails:
            raise LakeError("no", where="here", way_out="none")
        self.lent += 1
        ends = int((time.time() + self.seconds) * 1000)
        keys = {
            "s3.access-key-id": f"key{self.lent}",
            "s3.secret-access-key": "x",
            "s3.session-token": "y",
            "s3.session-token-expires-at-ms": str(ends),
        }
        content = {"config": {}, "storage-credentials": [{"prefix": TABLE, "config": keys}]}
        self.pointers.storage.register(name, TABLE, content)
        return None


@pytest.fixture
def lender(rest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lender]:
    lake = LakeSettings("lake", rest, f"file://{tmp_path}/warehouse", "shop")
    pointers = RestPointers(lake)
    found = Lender(pointers, 1.0)
    monkeypatch.setattr(pointers.storage, "_answered", found.answered)
    yield found
    stores.register(TABLE, StorageSettings())


def _key() -> Any:
    stores.store_of(FILE)
    return stores._settings_of(Location(FILE)).access_key


@pytest.mark.seconds
def test_lent_keys_are_renewed_before_they_end(lender: Lender) -> None:
    lender.answered(NAME)
    assert (_key(), lender.lent) == ("key1", 1)
    time.sleep(0.85)  # a fifth of their life is left
    assert (_key(), lender.lent) == ("key2", 2)
    assert (_key(), lender.lent) == ("key2", 2)
    lender.fails = True
    time.sleep(0.85)
    assert _key() == "key2"  # good still
    time.sleep(0.2)
    with pytest.raises(LakeError, match="no"):
        _key()
