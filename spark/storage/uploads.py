"""Uploads in parts that were never ended: a killed copy, or a killed Spark, leaves them in S3.

They are no objects: nothing lists or reads them, but they cost storage.  obstore has no request for them, so
three plain requests are made here and signed as S3 wants it (AWS Signature Version 4): list, page on, abort.

Invariant: only uploads under one prefix, and begun before a moment, are ended.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPException
from typing import Final
from urllib.parse import quote, urlencode, urlsplit
from xml.etree import ElementTree

from slotlake.spark.storage.base import StoreUnavailableError
from slotlake.spark.storage.location import S3_SCHEMES, Location
from slotlake.spark.storage.settings import DEFAULT_REGION, StorageSettings

_SECONDS_MAX: Final = 30
_NOTHING_SHA256: Final = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True)
class Upload:
    """An upload in parts that has begun.

    Attributes:
        key: the name that the object would have.
        begun: seconds since 1970.
    """

    key: str
    upload_id: str
    begun: float


def end_uploads(folder: Location, settings: StorageSettings, oldest: float) -> int | None:
    """End uploads of a folder that began long ago, and return how many; None if this store is not asked.

    Only S3 is asked, and only with keys of ``lake.storage`` or the environment: Google's and Azure's stores
    remove such parts by themselves.

    Args:
        folder: a place in an object store.
        settings: how it is reached.
        oldest: seconds since 1970; uploads that began before it are ended.

    Raises:
        StoreUnavailableError: the store does not answer, or refuses.
    """
    signer = _signer(folder, settings)
    if signer is None:
        return None
    old = [each for each in _listed(signer, f"{folder.key.rstrip('/')}/") if each.begun < oldest]
    for upload in old:
        signer.ask("DELETE", upload.key, {"uploadId": upload.upload_id})
    return len(old)


@dataclass(frozen=True)
class _Signer:
    """Requests to one bucket, signed with one pair of keys."""

    folder: Location
    address: str
    path: str
    region: str
    access_key: str
    secret_key: str
    token: str | None

    def ask(self, method: str, key: str, query: Mapping[str, str]) -> bytes:
        path = quote(f"{self.path}/{key}" if key else self.path or "/")
        parameters = urlencode(sorted(query.items()), quote_via=quote, safe="-_.~")
        headers = self._signed(method, path, parameters)
        request = urllib.request.Request(  # noqa: S310  the address of lake.storage
            f"{self.address}{path}?{parameters}", method=method, headers=headers
        )
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS_MAX) as answer:  # noqa: S310
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            if error.code == 404:  # somebody else has ended it
                return b""
            raise self._failed(f"status {error.code} {error.reason}") from None
        except (OSError, HTTPException) as error:
            raise self._failed(str(getattr(error, "reason", error))) from None

    def _failed(self, why: str) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"the object store {self.address} failed to list or end uploads in parts: {why}",
            where=self.folder,
            way_out="let these keys list and abort multipart uploads (s3:ListBucketMultipartUploads, "
            "s3:AbortMultipartUpload), then run the same command again",
        )

    def _signed(self, method: str, path: str, parameters: str) -> dict[str, str]:
        now = datetime.now(UTC)
        moment, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
        headers = {
            "host": urlsplit(self.address).netloc,
            "x-amz-content-sha256": _NOTHING_SHA256,
            "x-amz-date": moment,
            **({"x-amz-security-token": self.token} if self.token else {}),
        }
        names = ";".join(sorted(headers))
        lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
        canonical = f"{method}\n{path}\n{parameters}\n{lines}\n{names}\n{_NOTHING_SHA256}"
        scope = f"{day}/{self.region}/s3/aws4_request"
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        key = f"AWS4{self.secret_key}".encode()
        for part in (day, self.region, "s3", "aws4_request"):
            key = hmac.digest(key, part.encode(), "sha256")
        text = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{digest}"
        signature = hmac.digest(key, text.encode(), "sha256").hex()
        credential = f"AWS4-HMAC-SHA256 Credential={self.access_key}/{scope}"
        return {**headers, "Authorization": f"{credential}, SignedHeaders={names}, Signature={signature}"}


def _signer(folder: Location, settings: StorageSettings) -> _Signer | None:
    access_key = settings.access_key or os.environ.get("AWS_ACCESS_KEY_ID")
    secret_key = settings.secret_key or os.environ.get("AWS_SECRET_ACCESS_KEY")
    if folder.scheme not in S3_SCHEMES or not access_key or not secret_key:
        return None
    own = settings.access_key is not None
    bucket = folder.bucket.partition("://")[2]
    region = settings.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    region = region or DEFAULT_REGION
    parts = urlsplit(settings.endpoint or f"https://s3.{region}.amazonaws.com")
    host = parts.netloc if settings.uses_paths else f"{bucket}.{parts.netloc}"
    return _Signer(
        folder=folder,
        address=f"{parts.scheme}://{host}",
        path=f"/{bucket}" if settings.uses_paths else "",
        region=region,
        access_key=access_key,
        secret_key=secret_key,
        token=settings.session_token if own else os.environ.get("AWS_SESSION_TOKEN"),
    )


def _listed(signer: _Signer, prefix: str) -> Iterator[Upload]:
    query = {"uploads": "", "prefix": prefix}
    while True:
        answer = ElementTree.fromstring(signer.ask("GET", "", query))  # noqa: S314
        for upload in answer.iterfind("{*}Upload"):
            key = upload.findtext("{*}Key", "")
            begun = datetime.fromisoformat(upload.findtext("{*}Initiated", "")).timestamp()
            if key.startswith(prefix):  # not every store looks at the prefix
                yield Upload(key, upload.findtext("{*}UploadId", ""), begun)
        if answer.findtext("{*}IsTruncated") != "true":
            return
        query["key-marker"] = answer.findtext("{*}NextKeyMarker", "")
        query["upload-id-marker"] = answer.findtext("{*}NextUploadIdMarker", "")
