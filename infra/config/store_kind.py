"""Whether the keys of ``lake.storage`` fit the kind of the object store.

Google's and Azure's stores have less to say than S3: their keys are those of the machine, or an account's.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

_KNOWN: Final = {"gs": {"endpoint"}, "abfs": {"endpoint", "access_key", "secret_key"}}


def require_known(warehouse: str, keys: Collection[str], endpoint: str | None) -> None:
    """Check the keys of the section against the warehouse's scheme.

    Args:
        warehouse: as it is written.
        keys: those that are given.
        endpoint: the address that is given; only Azure's may have a path, the account's name.

    Raises:
        ValueError: a key does not fit.
    """
    scheme = warehouse.partition(":")[0].replace("abfss", "abfs")
    refused = set(keys) - _KNOWN.get(scheme, set(keys))
    if refused:
        raise ValueError(
            f"storage.{min(refused)} is not for {scheme}://: there storage can have "
            f"{', '.join(sorted(_KNOWN[scheme]))}, and other keys are those of this machine"
        )
    if scheme != "abfs" and "://" in (endpoint or "") and urlsplit(endpoint or "").path.strip("/"):
        raise ValueError("storage.endpoint: write the server's address as https://host:port, or env:NAME")
