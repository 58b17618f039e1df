"""Google's XML API (which obstore speaks) before fake-gcs-server, which speaks the JSON API only.

What an object is, and whether it is there already (`ifGenerationMatch`), is the server's matter; here
requests are translated, and parts of an upload are put together.  All others go to the server as they are.
"""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

_JSON = ("/storage/", "/upload/", "/download/", "/batch/", "/resumable/", "/b/")
_HOP = {"connection", "transfer-encoding", "content-length", "host", "date", "server"}
Answer = tuple[int, dict[str, str], bytes]


class GoogleXml:
    """One proxy; a context manager that starts and ends it.

    Args:
        server: the address of fake-gcs-server.
        port: where it listens.
    """

    def __init__(self, server: str, port: int) -> None:
        self._server = server
        self._uploads: dict[str, dict[int, bytes]] = {}
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", port), handler)
        self._http.daemon_threads = True

    def __enter__(self) -> Self:
        threading.Thread(target=self._http.serve_forever, args=[0.05], daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()

    def answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Answer a request."""
        parts = urlsplit(target)
        if parts.path.startswith(_JSON):
            return self._asked(method, target, headers, body)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        bucket, _, name = unquote(parts.path.lstrip("/")).partition("/")
        if not name:
            return self._listed(bucket, query)
        place = f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}"
        if method == "GET":
            return self._with_etag(self._asked("GET", f"{place}?alt=media", headers, b""))
        if method == "HEAD":
            return self._described(place)
        if method == "DELETE":
            return self._asked("DELETE", place, {}, b"")
        return self._written(bucket, name, query, headers, body)

    def _written(
        self, bucket: str, name: str, query: dict[str, str], headers: Mapping[str, str], body: bytes
    ) -> Answer:
        if "uploads" in query:
            upload = uuid.uuid4().hex
            self._uploads[upload] = {}
            text = f"<Bucket>{bucket}</Bucket><Key>{escape(name)}</Key><UploadId>{upload}</UploadId>"
            return 200, {}, f"<InitiateMultipartUploadResult>{text}</InitiateMultipartUploadResult>".encode()
        if "partNumber" in query:
            self._uploads[query["uploadId"]][int(query["partNumber"])] = body
            return 200, {"ETag": f'"{query["partNumber"]}"'}, b""
        ended = "uploadId" in query
        if ended:
            pieces = self._uploads.pop(query["uploadId"])
            body = b"".join(pieces[number] for number in sorted(pieces))
        condition = headers.get("x-goog-if-generation-match")
        more = f"&ifGenerationMatch={condition}" if condition is not None else ""
        # The server looks at the condition only in uploads of this kind.
        target = f"/upload/storage/v1/b/{bucket}/o?uploadType=multipart{more}"
        edge = uuid.uuid4().hex
        described = f"--{edge}\r\nContent-Type: application/json\r\n\r\n{json.dumps({'name': name})}\r\n"
        begin = f"{described}--{edge}\r\nContent-Type: application/octet-stream\r\n\r\n".encode()
        kind = {"Content-Type": f"multipart/related; boundary={edge}"}
        status, _, content = self._asked("POST", target, kind, begin + body + f"\r\n--{edge}--".encode())
        if status >= 300:
            return status, {}, content
        said: dict[str, Any] = json.loads(content)
        etag = f'"{said["generation"]}"'
        xml = f"<CompleteMultipartUploadResult><ETag>{escape(etag)}</ETag></CompleteMultipartUploadResult>"
        return 200, {"ETag": etag, "x-goog-generation": said["generation"]}, xml.encode() if ended else b""

    def _described(self, place: str) -> Answer:
        status, _, content = self._asked("GET", place, {}, b"")
        if status >= 300:
            return status, {}, b""
        said: dict[str, Any] = json.loads(content)
        return self._with_etag(self._asked("HEAD", f"{place}?alt=media", {}, b""), said)

    def _with_etag(self, answer: Answer, said: dict[str, Any] | None = None) -> Answer:
        """Answers about objects have a version, a size and a time."""
        status, headers, content = answer
        own = {name.lower(): text for name, text in headers.items()}
        own.setdefault("etag", f'"{own.get("x-goog-generation", "1")}"')
        own.setdefault("last-modified", "Mon, 02 Jan 2006 15:04:05 GMT")
        if said is not None:
            own["content-length"] = said["size"]
        return status, own, content

    def _listed(self, bucket: str, query: dict[str, str]) -> Answer:
        token = query.get("continuation-token", "")
        start = query.get("start-after", "")
        more = f"&pageToken={quote(token, safe='')}" if token else ""
        more += f"&startOffset={quote(start, safe='')}" if start else ""
        prefix = quote(query.get("prefix", ""), safe="")
        limit = query.get("max-keys", "1000")
        target = f"/storage/v1/b/{bucket}/o?prefix={prefix}&maxResults={limit}{more}"
        status, _, content = self._asked("GET", target, {}, b"")
        if status >= 300:
            return status, {}, content
        said: dict[str, Any] = json.loads(content)
        contents = "".join(
            f"<Contents><Key>{escape(each['name'])}</Key><Size>{each['size']}</Size>"
            f"<LastModified>{each['updated']}</LastModified><ETag>{each['generation']}</ETag></Contents>"
            for each in said.get("items", ())
            if each["name"] > start
        )
        following = said.get("nextPageToken")
        page = f"<NextContinuationToken>{following}</NextContinuationToken>" if following else ""
        cut = f"<IsTruncated>{'true' if following else 'false'}</IsTruncated>"
        return 200, {}, f"<ListBucketResult>{cut}{page}{contents}</ListBucketResult>".encode()

    def _asked(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        given = {name: text for name, text in headers.items() if name.lower() not in _HOP}
        request = urllib.request.Request(
            self._server + target,
            method=method,
            headers=given,
            data=body if method in ("POST", "PUT", "PATCH") else None,
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, dict(answer.headers), answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, dict(error.headers), error.read()


class _Handler(BaseHTTPRequestHandler):
    proxy: GoogleXml
    protocol_version = "HTTP/1.1"

    def _pass_on(self) -> None:
        if "chunked" in (self.headers.get("Transfer-Encoding") or ""):
            pieces = []
            while size := int(self.rfile.readline().partition(b";")[0], 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            body = b"".join(pieces)
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = dict(self.headers.items())
        status, own, content = self.proxy.answer(self.command, self.path, headers, body)
        self.send_response(status)
        for name, text in own.items():
            if name.lower() not in _HOP:
                self.send_header(name, text)
        sizes = [text for name, text in own.items() if name.lower() == "content-length"]
        length = sizes[0] if self.command == "HEAD" and sizes else str(len(content))
        if status not in (204, 304):
            self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD" and status != 204:
            self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_PATCH = _pass_on  # noqa: N815 - http.server's names

    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""
