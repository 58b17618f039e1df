"""Keys that the machine itself gives: of a container's role, and of an instance's (IMDSv2).

Amazon EC2 User Guide, "Use the Instance Metadata Service to access instance metadata": a token is fetched
first, and named in each request.  The older way without a token is not used: a request that somebody makes a
program send could read the keys by it.
"""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from slotlake.spark.storage.base import StoreRefusedError, StoreUnavailableError
from slotlake.spark.storage.keys.plain_requests import Answer, Request, ask
from slotlake.spark.storage.keys.signing import Keys

_INSTANCE: Final = {"ipv4": "http://169.254.169.254", "ipv6": "http://[fd00:ec2::254]"}
_CONTAINER: Final = "http://169.254.170.2"
_ROLES: Final = "/latest/meta-data/iam/security-credentials/"
_TOKEN_SECONDS: Final = "21600"  # noqa: S105  not a token, but how long one is good
_SECONDS, _TRIES = 1.0, 2  # on a machine that is not in AWS nobody answers


class NoMetadataError(Exception):
    """This machine gives no keys; the text says why."""


def container_keys() -> Keys | None:
    """Return the keys of a container's role; None where the environment names no container service.

    Raises:
        StoreUnavailableError, StoreRefusedError: the service does not give them.
    """
    relative, full = (
        os.environ.get(f"AWS_CONTAINER_CREDENTIALS_{kind}_URI") for kind in ("RELATIVE", "FULL")
    )
    if not relative and not full:
        return None
    address = f"{_CONTAINER}{relative}" if relative else str(full)
    origin = "the role of this container"
    try:
        answer = ask(Request("GET", address, _container_headers(), seconds=5.0, nearby=True))
    except OSError as error:
        raise StoreUnavailableError(
            f"the service that gives a container its keys does not answer: {error}",
            where=address,
            way_out="see that AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or …_FULL_URI is right, then run again",
        ) from None
    return _keys(answer, origin, address)


def _container_headers() -> dict[str, str]:
    path = os.environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
    if path:
        try:
            return {"Authorization": Path(path).read_text(encoding="utf-8").strip()}
        except (OSError, UnicodeDecodeError) as error:
            raise StoreRefusedError(
                f"the file with the token for this container's keys cannot be read: {type(error).__name__}",
                where=f"{path}, named by AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
                way_out="let this user read it",
            ) from None
    token = os.environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN")
    return {"Authorization": token} if token else {}


def instance_keys() -> Keys:
    """Return the keys of an instance's role.

    Raises:
        NoMetadataError: this machine has no metadata service, or no role.
        StoreRefusedError: the service does not give the keys.
    """
    token = _token()
    listed = _get(_ROLES, token)
    role = listed.text.strip().splitlines()[0] if listed.ok and listed.text.strip() else ""
    if not role:
        raise NoMetadataError("the instance has no role")
    return _keys(_get(f"{_ROLES}{role}", token), f"the instance's role {role}", f"{_address()}{_ROLES}{role}")


def instance_region() -> str:
    """Return the region of an instance; empty if the service does not say it."""
    try:
        answer = _get("/latest/meta-data/placement/region", _token())
    except NoMetadataError:
        return ""
    return answer.text.strip() if answer.ok else ""


def _token() -> str:
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        raise NoMetadataError("AWS_EC2_METADATA_DISABLED forbids to ask")
    headers = {"X-aws-ec2-metadata-token-ttl-seconds": _TOKEN_SECONDS}
    answer = _asked(
        Request("PUT", f"{_address()}/latest/api/token", headers, seconds=_seconds(), nearby=True)
    )
    if not answer.ok:
        raise NoMetadataError(f"{_address()} gives no token (status {answer.status})")
    return answer.text.strip()


def _get(path: str, token: str) -> Answer:
    headers = {"X-aws-ec2-metadata-token": token}
    return _asked(Request("GET", f"{_address()}{path}", headers, seconds=_seconds(), nearby=True))


def _asked(request: Request) -> Answer:
    tries = int(os.environ.get("AWS_METADATA_SERVICE_NUM_ATTEMPTS", "") or _TRIES)
    why = ""
    for _ in range(max(1, tries)):
        try:
            return ask(request)
        except OSError as error:
            why = str(error)
    raise NoMetadataError(f"{_address()} does not answer ({why})")


def _seconds() -> float:
    return float(os.environ.get("AWS_METADATA_SERVICE_TIMEOUT", "") or _SECONDS)


def _address() -> str:
    mode = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "ipv4").lower()
    given = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "")
    return given.rstrip("/") or _INSTANCE.get(mode, _INSTANCE["ipv4"])


def _keys(answer: Answer, origin: str, address: str) -> Keys:
    try:
        content: dict[str, Any] = json.loads(answer.body) if answer.ok else {}
        until = datetime.fromisoformat(content["Expiration"]).timestamp() if "Expiration" in content else None
        return Keys(
            content["AccessKeyId"], content["SecretAccessKey"], content.get("Token", ""), until, origin
        )
    except (ValueError, KeyError, TypeError):
        raise StoreRefusedError(
            f"{origin} gives no keys: status {answer.status}",
            where=address,
            way_out="see that the role is there and that this machine may use it",
        ) from None
