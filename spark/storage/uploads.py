"""Uploads in parts that were never ended: a killed copy, or a killed Spark, leaves them in S3.

They are no objects: nothing lists or reads them, but they cost storage.  obstore has no request for them, so
three plain requests are made here: list, page on, abort.

Invariant: only uploads under one prefix, and begun before a moment, are ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree

from slotlake.spark.storage.base import StoreUnavailableError
from slotlake.spark.storage.keys.plain_requests import Request, ask
from slotlake.spark.storage.keys.signing import Keys, Scope, query_text, signed
from slotlake.spark.storage.location import S3_SCHEMES, Location
from slotlake.spark.storage.settings import StorageSettings

_SECONDS_MAX: Final = 30


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

    Only S3 is asked: Google's and Azure's stores remove such parts by themselves.

    Args:
        folder: a place in an object store.
        oldest: seconds since 1970; uploads that began before it are ended.

    Raises:
        StoreUnavailableError: the store does not answer, or refuses.
        StoreRefusedError: there are no keys.
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
    keys: Keys

    def ask(self, method: str, key: str, query: Mapping[str, str]) -> bytes:
        path = quote(f"{self.path}/{key}" if key else self.path or "/")
        request = Request(method, f"{self.address}{path}?{query_text(query)}", seconds=_SECONDS_MAX)
        try:
            answer = ask(signed(request, self.keys, Scope("s3", self.region)))
        except OSError as error:
            raise self._failed(str(error)) from None
        if answer.status == 404:  # somebody else has ended it
            return b""
        if not answer.ok:
            raise self._failed(f"status {answer.status}")
        return answer.body

    def _failed(self, why: str) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"the object store {self.address} failed to list or end uploads in parts: {why}",
            where=self.folder,
            way_out="let these keys list and abort multipart uploads (s3:ListBucketMultipartUploads, "
            "s3:AbortMultipartUpload), then run the same command again",
        )


def _signer(folder: Location, settings: StorageSettings) -> _Signer | None:
    if folder.scheme not in S3_SCHEMES:
        return None
    bucket, region = folder.bucket.partition("://")[2], settings.signing_region()
    parts = urlsplit(settings.endpoint or f"https://s3.{region}.amazonaws.com")
    host = parts.netloc if settings.uses_paths else f"{bucket}.{parts.netloc}"
    return _Signer(
        folder=folder,
        address=f"{parts.scheme}://{host}",
        path=f"/{bucket}" if settings.uses_paths else "",
        region=region,
        keys=settings.keys(),
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
