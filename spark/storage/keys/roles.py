"""Keys of a role, from AWS's token service (STS): for a web identity, or for another user's keys.

AWS Security Token Service, API Reference: AssumeRoleWithWebIdentity (not signed: the token says who asks) and
AssumeRole.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlencode
from xml.etree import ElementTree

from slotlake.spark.storage.base import StoreRefusedError, StoreUnavailableError
from slotlake.spark.storage.keys.plain_requests import Answer, Request, ask
from slotlake.spark.storage.keys.signing import Keys, Scope, signed

_SERVERS_FAULT: Final = 500
_LATER: Final = 429
_TRIES: Final = 3
_DEFAULT_REGION: Final = "us-east-1"


@dataclass(frozen=True)
class Role:
    """A role that is to be taken.

    Attributes:
        arn: its name.
        by: who names it, for errors and reports.
        session: what AWS's records call this program; empty: slotlake's own word.
        region: in which the token service is asked; empty: us-east-1.
        more: further parameters (DurationSeconds, ExternalId).
    """

    arn: str
    by: str
    session: str = ""
    region: str = ""
    more: Mapping[str, str] | None = None

    @property
    def origin(self) -> str:
        """Where its keys come from, for errors."""
        return f"the role {self.arn} ({self.by})"


def web_identity_keys(role: Role, token_file: str) -> Keys:
    """Return a role's keys for a web identity, whose token is read again each time.

    Raises:
        StoreRefusedError: the token cannot be read, or the role is not given for it.
        StoreUnavailableError: the token service does not answer.
    """
    try:
        token = Path(token_file).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StoreRefusedError(
            f"the token of the web identity cannot be read: {type(error).__name__}",
            where=f"{token_file}, named by {role.by}",
            way_out="let this user read it, and see that what writes it (Kubernetes, a CI system) did so",
        ) from None
    return _assumed(role, _request(role, "AssumeRoleWithWebIdentity", {"WebIdentityToken": token}))


def assumed_keys(role: Role, keys: Keys) -> Keys:
    """Return a role's keys for other keys.

    Args:
        keys: of somebody who may take it.

    Raises:
        StoreRefusedError: the role is not given.
        StoreUnavailableError: the token service does not answer.
    """
    request = _request(role, "AssumeRole", {})
    return _assumed(role, signed(request, keys, Scope("sts", role.region or _DEFAULT_REGION)))


def _request(role: Role, action: str, parameters: Mapping[str, str]) -> Request:
    named = {
        "Action": action,
        "Version": "2011-06-15",
        "RoleArn": role.arn,
        "RoleSessionName": role.session or f"slotlake-{int(time.time())}",
        **(role.more or {}),
        **parameters,
    }
    headers = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
    return Request("POST", f"{_address(role.region)}/", headers, urlencode(named).encode())


def _address(region: str) -> str:
    given = os.environ.get("AWS_ENDPOINT_URL_STS") or os.environ.get("AWS_ENDPOINT_URL")
    if given:
        return given.rstrip("/")
    end = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return f"https://sts.{region or _DEFAULT_REGION}.{end}"


def _assumed(role: Role, request: Request) -> Keys:
    answer = _asked(role, request)
    try:
        tree = ElementTree.fromstring(answer.body)  # noqa: S314  of AWS, or as the environment says
    except ElementTree.ParseError:
        tree = ElementTree.Element("nothing")
    if not answer.ok:
        code = tree.findtext(".//{*}Code") or f"status {answer.status}"
        raise StoreRefusedError(
            f"AWS's token service does not give {role.origin}: {code}",
            where=request.address,
            way_out="see that the role is there, that its trust policy names this identity, and that the "
            "token or the keys that ask for it are right and not expired",
        )
    texts = {each.tag.rpartition("}")[2]: each.text or "" for each in tree.iterfind(".//{*}Credentials/*")}
    try:
        until = datetime.fromisoformat(texts["Expiration"]).timestamp()
        return Keys(texts["AccessKeyId"], texts["SecretAccessKey"], texts["SessionToken"], until, role.origin)
    except (KeyError, ValueError):
        raise _away(request, "an answer without keys") from None


def _asked(role: Role, request: Request) -> Answer:
    why = ""
    for number in range(_TRIES):
        if number:
            time.sleep(0.5 * number)
        try:
            answer = ask(request)
        except OSError as error:
            why = str(error)
            continue
        if answer.status < _SERVERS_FAULT and answer.status != _LATER:
            return answer
        why = f"status {answer.status}"
    raise _away(request, why)


def _away(request: Request, why: str) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"AWS's token service, which gives keys for a role, fails: {why}",
        where=request.address,
        way_out="see that it can be reached from here (region, AWS_ENDPOINT_URL_STS, HTTPS_PROXY), then run "
        "the same command again: nothing unfinished was published",
    )
