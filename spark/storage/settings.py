"""How an object store is reached: ``lake.storage`` of the pipeline file, for obstore and for Spark.

Without keys both take what the machine has, in the same order (spark/storage/keys).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import urlsplit

from slotlake.spark.storage.keys.chain import current_keys, region_with_instance, usual_region
from slotlake.spark.storage.keys.signing import Keys
from slotlake.spark.storage.location import S3_SCHEMES, Location

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
        lent: a REST catalog has lent the keys.
    """

    endpoint: str | None = None
    region: str | None = None
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    path_style: bool | None = None
    encryption: str | None = None
    kms_key: str | None = None
    lent: bool = False

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
            origin = "the REST catalog" if self.lent else "lake.storage"
            return Keys(self.access_key, self.secret_key, self.session_token or "", None, origin)
        return current_keys()

    def without_keys(self) -> StorageSettings:
        """Return the same with nobody's keys."""
        return replace(self, access_key=None, secret_key=None, session_token=None)

    def signing_region(self) -> str:
        """Return the region for signatures; a machine that says none is asked where it is."""
        own = self.region or (DEFAULT_REGION if self.endpoint else None)
        return own or region_with_instance() or DEFAULT_REGION

    @property
    def without_login(self) -> bool:
        """Whether requests go to a server on this machine or in this network that asks nobody who he is.

        Google's and Azure's own stores, and all that stand for them, have certificates; an S3 server may not.
        """
        return (self.endpoint or "").startswith("http://")

    def google_config(self) -> dict[str, str]:
        """Return the settings for obstore's ``GCSStore``; its keys are those of the machine."""
        if self.endpoint is None:
            return {}
        if not self.without_login:
            return {"base_url": self.endpoint}
        # With skip_signature obstore 0.12 asks for a token all the same.
        nobody = {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
        return {"service_account_key": json.dumps({"gcs_base_url": self.endpoint, **nobody})}

    def azure_config(self) -> dict[str, str]:
        """Return the settings for obstore's ``AzureStore``; without its key, those of the machine count."""
        given = {
            "endpoint": self.endpoint,
            "account_name": self.access_key,
            "account_key": self.secret_key,
        }
        return {name: text for name, text in given.items() if text is not None}

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

    def iceberg_properties(self, location: Location) -> dict[str, str]:
        """Return the settings for Iceberg's files of a bucket, by its names."""
        if location.scheme == "gs":
            return self._google_properties()
        return self._s3_properties() if location.scheme in S3_SCHEMES else self._azure_properties(location)

    def _google_properties(self) -> dict[str, str]:
        given = {"gcs.service.host": self.endpoint} if self.endpoint else {}
        return {**given, "gcs.no-auth": "true", "gcs.project-id": "none"} if self.without_login else given

    def _azure_properties(self, location: Location) -> dict[str, str]:
        account = urlsplit(location).netloc.rpartition("@")[2]
        given = {
            f"adls.connection-string.{account}": self.endpoint,
            "adls.auth.shared-key.account.name": self.access_key,
            "adls.auth.shared-key.account.key": self.secret_key,
        }
        return {name: text for name, text in given.items() if text is not None}

    def _s3_properties(self) -> dict[str, str]:
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
