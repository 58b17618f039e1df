"""Requests signed as AWS wants them: Signature Version 4 (AWS General Reference)."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from slotlake.spark.storage.keys.plain_requests import Request


@dataclass(frozen=True)
class Keys:
    """What requests are signed with.

    Attributes:
        token: of temporary keys; empty for a user's own.
        until: when they end, in seconds since 1970; None if nobody says so.
        origin: where they come from, for errors.
    """

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    token: str = field(default="", repr=False)
    until: float | None = None
    origin: str = "lake.storage"


@dataclass(frozen=True)
class Scope:
    """What a signature is for: a service (``s3``, ``sts``) in a region."""

    service: str
    region: str


def query_text(query: Mapping[str, str]) -> str:
    """Return the parameters of an address as a signature has them: sorted and escaped."""
    return urlencode(sorted(query.items()), quote_via=quote, safe="-_.~")


def signed(request: Request, keys: Keys, scope: Scope) -> Request:
    """Return a request with the headers of its signature.

    Args:
        request: its path is escaped; no parameter is there twice.
    """
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    day = moment[:8]
    parts, content = urlsplit(request.address), hashlib.sha256(request.body).hexdigest()
    headers = {
        **{name.lower(): text for name, text in request.headers.items()},
        "host": parts.netloc,
        "x-amz-content-sha256": content,
        "x-amz-date": moment,
        **({"x-amz-security-token": keys.token} if keys.token else {}),
    }
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    path = parts.path or "/"
    path = path if scope.service == "s3" else quote(path)  # only S3's paths are escaped once
    query = query_text(dict(parse_qsl(parts.query, keep_blank_values=True)))
    canonical = f"{request.method}\n{path}\n{query}\n{lines}\n{names}\n{content}"
    within = f"{day}/{scope.region}/{scope.service}/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{moment}\n{within}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{keys.secret_key}".encode()
    for part in (day, scope.region, scope.service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    login = f"AWS4-HMAC-SHA256 Credential={keys.access_key}/{within}, SignedHeaders={names}"
    return request.with_headers({**headers, "authorization": f"{login}, Signature={signature}"})
