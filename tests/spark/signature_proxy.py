"""A server before a catalog that passes on only what is signed rightly, as AWS does.

It is written from AWS's description of Signature Version 4, and knows nothing of slotlake's own signer.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qsl, quote, urlsplit

from tests.spark.login_proxy import LoginProxy

_LOGIN = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/([^/]+)/aws4_request, ?"
    r"SignedHeaders=([^,]+), ?Signature=([0-9a-f]{64})"
)


class SignatureProxy(LoginProxy):
    """One server.

    Attributes:
        refusals: why requests were refused.
    """

    def __init__(self, to: str, keys: tuple[str, str], service: str, region: str) -> None:
        super().__init__(to)
        self._signer = Signer(keys, service, region)
        self.refusals: list[str] = []

    def answer(self, handler: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
        """Pass a request on, if it is signed by the one user for this service and region."""
        refusal = self._signer.refusal(handler.command, handler.path, handler.headers, body)
        if refusal:
            self.refusals.append(refusal)
            error = {"message": refusal, "type": "ForbiddenException", "code": 403}
            return 403, json.dumps({"error": error}).encode()
        return self.passed_on(handler, body)


@dataclass(frozen=True)
class Signer:
    """Who may send requests, and for what.

    Attributes:
        keys: access key and secret key.
    """

    keys: tuple[str, str]
    service: str
    region: str

    def refusal(self, method: str, target: str, headers: Message[str, str], body: bytes) -> str:
        """Why a request is refused; empty if it is signed rightly."""
        login = _LOGIN.fullmatch(headers.get("Authorization", ""))
        if login is None:
            return "not signed"
        key, day, region, service, names, signature = login.groups()
        if (key, region, service) != (self.keys[0], self.region, self.service):
            return f"signed by {key} for {service} in {region}"
        parts = urlsplit(target)
        parameters = sorted((quote(n, "-_.~"), quote(v, "-_.~")) for n, v in parse_qsl(parts.query, True))
        signed_lines = [f"{name}:{' '.join((headers[name] or '').split())}" for name in names.split(";")]
        canonical = "\n".join(
            [
                method,
                quote(parts.path, "/-_.~"),
                "&".join(f"{name}={value}" for name, value in parameters),
                *signed_lines,
                "",
                names,
                hashlib.sha256(body).hexdigest(),
            ]
        )
        scope = f"{day}/{region}/{service}/aws4_request"
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        text = f"AWS4-HMAC-SHA256\n{headers['X-Amz-Date']}\n{scope}\n{digest}"
        secret = f"AWS4{self.keys[1]}".encode()
        for part in (day, region, service, "aws4_request"):
            secret = hmac.new(secret, part.encode(), hashlib.sha256).digest()
        expected = hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()
        return "" if expected == signature else "SignatureDoesNotMatch"
