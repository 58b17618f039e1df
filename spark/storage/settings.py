"""How an object store is reached: ``lake.storage`` of the pipeline file, for obstore and for Spark.

Without keys both take what the machine has, in the same order (spark/storage/keys).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from slotlake.spark.storage.keys.chain import current_keys, region_with_instance, usual_region
from slotlake.spark.storage.keys.signing import Keys

DEFAULT_REGION: Final = "us-east-1"  # signatures need one; S3 servers other than AWS ignore which


@dataclass(frozen=True)
class StorageSettings:
    """The section ``lake.storage`` of a pipeline file; for AWS no key is required.

    Attributes:
        endpoint: ``https://host:port`` of an S3 server that is not AWS.
        region: the bucket's region.
        access_key, secret_key: the user's keys; both, or neither.
        session_token: of temporary keys.
        path_style: whether the bucket stands in the path (``host/bucket/key``), not in the host's name. None:
            it does where an endpoint is given.
        encryption: ``AES256`` or ``aws:kms``: server-side encryption of what is written.
        kms_key: the key's ARN, for ``aws:kms``.
    """

    endpoint: str | None = None
    region: str | None = None
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    path_style: bool | None = None
    encryption: str | None = None
    kms_key: str | None = None

    @property
    def uses_paths(self) -> bool:
        """Whether the bucket stands in the path of each request."""
        return self.endpoint is not None if self.path_style is None else self.path_style

    def keys(self) -> Keys:
        """Return the keys that requests are signed with, good for some minutes.

        Raises:
            StoreRefusedError: there are none, or who should give them refuses.
            StoreUnavailableError: who should give them does not answer.
        """
        if self.access_key and self.secret_key:
            return Keys(self.access_key, self.secret_key, self.session_token or "")
        return current_keys()

    def signing_region(self) -> str:
        """Return the region for signatures; a machine that says none is asked where it is."""
        own = self.region or (DEFAULT_REGION if self.endpoint else None)
        return own or region_with_instance() or DEFAULT_REGION

    def obstore_config(self) -> dict[str, str | bool]:
        """Return the settings for obstore's ``S3Store``, without keys."""
        given = {
            "endpoint": self.endpoint,
            "region": self.signing_region(),
            "server_side_encryption": self.encryption,
            "sse_kms_key_id": self.kms_key,
        }
        config: dict[str, str | bool] = {name: text for name, text in given.items() if text is not None}
        return config | {"virtual_hosted_style_request": not self.uses_paths}

    def iceberg_properties(self) -> dict[str, str]:
        """Return the settings for Iceberg's ``S3FileIO``, by its names."""
        given = {
            "s3.endpoint": self.endpoint,
            "client.region": self.region or (DEFAULT_REGION if self.endpoint else usual_region()),
            "s3.access-key-id": self.access_key,
            "s3.secret-access-key": self.secret_key,
            "s3.session-token": self.session_token,
            "s3.path-style-access": "true" if self.uses_paths else None,
            "s3.sse.type": {"AES256": "s3", "aws:kms": "kms"}.get(self.encryption or ""),
            "s3.sse.key": self.kms_key,
        }
        return {name: text for name, text in given.items() if text is not None}

    @classmethod
    def of_iceberg_properties(cls, properties: Mapping[str, str]) -> StorageSettings:
        """Return what a REST catalog says about a table's storage, with the keys that it lends.

        Args:
            properties: by Iceberg's names.
        """
        path_style = properties.get("s3.path-style-access")
        return cls(
            endpoint=properties.get("s3.endpoint"),
            region=properties.get("client.region") or properties.get("s3.region"),
            access_key=properties.get("s3.access-key-id"),
            secret_key=properties.get("s3.secret-access-key"),
            session_token=properties.get("s3.session-token"),
            path_style=None if path_style is None else path_style.lower() == "true",
        )
