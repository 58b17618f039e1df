"""Requests to a REST catalog that AWS serves (S3 Tables, Glue's Iceberg endpoint): signed, not by a token.

The properties have the names that Iceberg's client in Spark knows: ``rest.sigv4-enabled``,
``rest.signing-name``, ``rest.signing-region``, and ``rest.access-key-id`` with ``rest.secret-access-key``
where the keys are not those of the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter

from slotlake.spark.storage.keys.chain import current_keys, region_with_instance
from slotlake.spark.storage.keys.plain_requests import Request
from slotlake.spark.storage.keys.signing import Keys, Scope, signed

ENABLED: Final = "rest.sigv4-enabled"
_DEFAULT_SERVICE: Final = "execute-api"  # as Iceberg's client
_DEFAULT_REGION: Final = "us-east-1"


def is_signed(properties: Mapping[str, str]) -> bool:
    """Return whether requests are to be signed.

    Args:
        properties: ``lake.rest``.
    """
    return properties.get(ENABLED, "").lower() == "true"


class SigningAdapter(HTTPAdapter):
    """Signs each request just before it is sent.

    Args:
        properties: ``lake.rest``.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        super().__init__()
        self._properties = properties

    def send(self, request: PreparedRequest, *args: Any, **options: Any) -> Response:
        """Sign the request and send it."""
        body = request.body or b""
        plain = Request(
            request.method or "GET",
            request.url or "",
            {},
            body.encode() if isinstance(body, str) else bytes(body),
        )
        if "Authorization" in request.headers:  # of a login besides; as Iceberg's client
            request.headers["Original-Authorization"] = request.headers.pop("Authorization")
        request.headers.update(signed(plain, self._keys(), self._scope()).headers)
        return super().send(request, *args, **options)

    def _keys(self) -> Keys:
        names = ("rest.access-key-id", "rest.secret-access-key", "rest.session-token")
        key, secret, token = (self._properties.get(name, "") for name in names)
        return Keys(key, secret, token, None, "lake.rest") if key and secret else current_keys()

    def _scope(self) -> Scope:
        region = self._properties.get("rest.signing-region") or region_with_instance() or _DEFAULT_REGION
        return Scope(self._properties.get("rest.signing-name", _DEFAULT_SERVICE), region)
