"""Who gives keys on AWS's machines, as small servers: an instance's metadata (IMDSv2), and the token service.

They are as strict as the real ones in what slotlake and Spark rely on: no metadata without a token that was
fetched by PUT before; no role for another identity token, or for a request that is not signed rightly.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs

from tests.spark.signature_proxy import Signer

_TOKEN = "an-instance-token"
_ROLES = "/latest/meta-data/iam/security-credentials/"
_REFUSAL = "<ErrorResponse><Error><Code>{}</Code><Message>no</Message></Error></ErrorResponse>"


@dataclass
class KeyGiver:
    """One server; a context manager that starts and ends it.

    Attributes:
        access_key, secret_key: what it gives.
        identity: the token of the one web identity that may have the role.
        user: the keys of the one user who may have it.
        session: the token of the keys that it gives; S3Proxy refuses one, if it is not set up otherwise.
        seconds: how long what it gives is good.
        asked: the actions and paths that were answered with keys, in order.
    """

    access_key: str
    secret_key: str
    identity: str = "an-identity"
    role: str = "arn:aws:iam::123456789012:role/lake"
    user: tuple[str, str] = ("AKIAUSER", "user-secret")
    session: str = ""
    seconds: float = 3600.0
    asked: list[str] = field(default_factory=list)
    fails: bool = False

    def __post_init__(self) -> None:
        giver = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                token = (
                    self.path == "/latest/api/token"
                    and "X-aws-ec2-metadata-token-ttl-seconds" in self.headers
                )
                self._send(200 if token else 400, _TOKEN)

            def do_GET(self) -> None:
                if self.headers.get("X-aws-ec2-metadata-token") != _TOKEN:
                    self._send(401, "")
                    return
                self._send(*giver.metadata(self.path))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self._send(*giver.role_given(body, self.headers), "text/xml")

            def _send(self, status: int, text: str, kind: str = "text/plain") -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(text.encode())))
                if status == 200 and self.command == "PUT":
                    self.send_header("X-aws-ec2-metadata-token-ttl-seconds", "21600")
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=[0.05], daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def address(self) -> str:
        """The address of the server."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def metadata(self, path: str) -> tuple[int, str]:
        """Answer a question to the metadata service, which was asked with a token."""
        if self.fails:
            return 500, ""
        if path == _ROLES:
            return 200, "lake-role"
        if path == f"{_ROLES}lake-role":
            self.asked.append("instance")
            given = {
                "AccessKeyId": self.access_key,
                "SecretAccessKey": self.secret_key,
                "Token": self.session,
            }
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            fixed = {"Code": "Success", "LastUpdated": now, "Type": "AWS-HMAC"}
            return 200, json.dumps({**fixed, **given, "Expiration": self._until()})
        return (200, "us-east-1") if path == "/latest/meta-data/placement/region" else (404, "")

    def role_given(self, body: bytes, headers: Message[str, str]) -> tuple[int, str]:
        """Answer a request to the token service."""
        asked = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        if self.fails:
            return 503, _REFUSAL.format("ServiceUnavailable")
        if asked.get("Action") == "AssumeRoleWithWebIdentity":
            refusal = "" if asked["WebIdentityToken"] == self.identity else "InvalidIdentityToken"
        else:
            refusal = Signer(self.user, "sts", "us-east-1").refusal("POST", "/", headers, body)
        if refusal or asked["RoleArn"] != self.role:
            return 403, _REFUSAL.format(refusal or "AccessDenied")
        self.asked.append(asked["Action"])
        return 200, (
            f'<{asked["Action"]}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
            f"<{asked['Action']}Result><Credentials><AccessKeyId>{self.access_key}</AccessKeyId>"
            f"<SecretAccessKey>{self.secret_key}</SecretAccessKey><SessionToken>{self.session}</SessionToken>"
            f"<Expiration>{self._until()}</Expiration></Credentials>"
            f"<AssumedRoleUser><Arn>{self.role}</Arn><AssumedRoleId>A:s</AssumedRoleId></AssumedRoleUser>"
            f"</{asked['Action']}Result></{asked['Action']}Response>"
        )

    def _until(self) -> str:
        return (datetime.now(UTC) + timedelta(seconds=self.seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
