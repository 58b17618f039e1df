"""The usual chain: who gives keys, asked one after another; the answer is used until shortly before it ends.

The first giver that is set up counts.  If it fails, nobody else is asked: keys of somebody else would be a
surprise.  Only the default profile and the instance, which nobody has named, may have nothing.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Final

from slotlake.decoder.errors import LakeError
from slotlake.spark.storage.base import StoreRefusedError
from slotlake.spark.storage.keys.metadata import (
    NoMetadataError,
    container_keys,
    instance_keys,
    instance_region,
)
from slotlake.spark.storage.keys.profiles import Profile, chosen_profile, named_profile
from slotlake.spark.storage.keys.roles import Role, assumed_keys, web_identity_keys
from slotlake.spark.storage.keys.signing import Keys

_RENEWED_BEFORE_SECONDS: Final = 300.0
_RENEWED_BEFORE_SHARE: Final = 0.2
_LOOKED_AT_AGAIN_SECONDS: Final = 10.0  # keys that say no end: a profile may have others meanwhile
_PROCESS_SECONDS: Final = 60
_SOURCES_MAX: Final = 5
_lock = threading.Lock()
# One entry: keys of the process's environment, until that changes.
_known: dict[tuple[tuple[str, str], ...], tuple[float, Keys]] = {}


def current_keys() -> Keys:
    """Return keys that are good for some minutes.

    Raises:
        StoreRefusedError: nobody gives keys, or who should give them refuses.
        StoreUnavailableError: who should give them does not answer.
    """
    key = tuple(
        sorted((name, text) for name, text in os.environ.items() if name.startswith(("AWS_", "HOME")))
    )
    with _lock:
        due, known = _known.get(key, (0.0, None))
        if known is None or time.time() >= due:
            try:
                known = _asked()
            except LakeError:
                if known is None or known.until is None or time.time() >= known.until:
                    raise
                due = time.time() + _LOOKED_AT_AGAIN_SECONDS  # they are good still
            else:
                due = _due(known)
            _known.clear()
            _known[key] = due, known
        return known


def usual_region() -> str | None:
    """Return the region that this machine is set to; None if nothing says one.

    Raises:
        StoreRefusedError: a file of AWS's profiles cannot be read.
    """
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region:
        return region
    profile = chosen_profile()
    return (profile.get("region") if profile else None) or None


def region_with_instance() -> str | None:
    """Return the region that this machine is set to, or the one that it is in."""
    return usual_region() or instance_region() or None


def _due(keys: Keys) -> float:
    now = time.time()
    if keys.until is None:
        return now + _LOOKED_AT_AGAIN_SECONDS
    return keys.until - min(_RENEWED_BEFORE_SECONDS, (keys.until - now) * _RENEWED_BEFORE_SHARE)


def _asked() -> Keys:
    """Ask all, in the order of AWS's kit for Java."""
    for ask in (_environment_keys, _identity_keys, _chosen_profile_keys, container_keys):
        keys = ask()
        if keys is not None:
            return keys
    try:
        return instance_keys()
    except NoMetadataError as error:
        raise StoreRefusedError(
            "there are no keys for AWS: none in the pipeline file, and none that this machine has",
            where="AWS_ACCESS_KEY_ID, AWS_WEB_IDENTITY_TOKEN_FILE, AWS_PROFILE, ~/.aws, a container's role: "
            f"none; instance metadata: {error}",
            way_out="give access_key and secret_key in lake.storage (a store), or set up one of these; a "
            "REST catalog that lends keys is asked for them with header.X-Iceberg-Access-Delegation: "
            "vended-credentials in lake.rest",
        ) from None


def _environment_keys() -> Keys | None:
    key, secret = (os.environ.get(name, "") for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
    if not key and not secret:
        return None
    if not key or not secret:
        raise StoreRefusedError(
            "only one of AWS's two keys is set",
            where="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of the environment",
            way_out="set both, or neither",
        )
    return Keys(key, secret, os.environ.get("AWS_SESSION_TOKEN", ""), None, "the environment")


def _identity_keys() -> Keys | None:
    """A web identity that the environment names, as Kubernetes does for a service account."""
    token_file, arn = os.environ.get("AWS_WEB_IDENTITY_TOKEN_FILE"), os.environ.get("AWS_ROLE_ARN")
    if not token_file:
        return None
    if not arn:
        raise StoreRefusedError(
            "a web identity has a token, but no role",
            where="AWS_WEB_IDENTITY_TOKEN_FILE is set, AWS_ROLE_ARN is not",
            way_out="set AWS_ROLE_ARN to the role that this identity is to have",
        )
    session = os.environ.get("AWS_ROLE_SESSION_NAME", "")
    role = Role(arn, "AWS_WEB_IDENTITY_TOKEN_FILE", session, usual_region() or "")
    return web_identity_keys(role, token_file)


def _chosen_profile_keys() -> Keys | None:
    profile = chosen_profile()
    if profile is None:
        return None
    keys = _profile_keys(profile, ())
    if keys is None and profile.wanted:
        raise _incomplete(profile, "it has neither keys nor a role, nor a command that gives keys")
    return keys


def _profile_keys(profile: Profile, before: tuple[str, ...]) -> Keys | None:
    """What a profile gives; None if it says nothing of keys."""
    if profile.get("role_arn") and profile.name not in before:
        return _role_keys(profile, before)
    if profile.get("sso_session") or profile.get("sso_start_url") or profile.get("login_session"):
        raise _incomplete(
            profile,
            "it is one of a single sign-on, which slotlake does not speak; write a second profile with "
            "`credential_process = aws configure export-credentials --format process --profile "
            f"{profile.name}`, and name that one",
        )
    key, secret = profile.get("aws_access_key_id"), profile.get("aws_secret_access_key")
    if key and secret:
        return Keys(key, secret, profile.get("aws_session_token"), None, _origin(profile))
    if key or secret:
        raise _incomplete(profile, "it has only one of aws_access_key_id and aws_secret_access_key")
    return _process_keys(profile) if profile.get("credential_process") else None


def _role_keys(profile: Profile, before: tuple[str, ...]) -> Keys:
    if profile.get("mfa_serial"):
        raise _incomplete(profile, "its role wants a code that a person types (mfa_serial); use another role")
    more = {"DurationSeconds": profile.get("duration_seconds"), "ExternalId": profile.get("external_id")}
    role = Role(
        profile.get("role_arn"),
        _origin(profile),
        profile.get("role_session_name"),
        profile.get("region") or os.environ.get("AWS_REGION", ""),
        {name: text for name, text in more.items() if text},
    )
    if profile.get("web_identity_token_file"):
        return web_identity_keys(role, profile.get("web_identity_token_file"))
    return assumed_keys(role, _source_keys(profile, (*before, profile.name)))


def _source_keys(profile: Profile, before: tuple[str, ...]) -> Keys:
    """The keys with which a profile's role is asked for."""
    source = profile.get("source_profile")
    if source and len(before) <= _SOURCES_MAX:
        by = f"source_profile of the profile {profile.name}"
        other = replace(profile, wanted=True) if source == profile.name else named_profile(source, by)
        keys = _profile_keys(other, before)
    else:
        sources: dict[str, Callable[[], Keys | None]] = {
            "Environment": _environment_keys,
            "EcsContainer": container_keys,
            "Ec2InstanceMetadata": _instance_or_none,
        }
        ask = sources.get(profile.get("credential_source"))
        keys = ask() if ask is not None else None
    if keys is None:
        raise _incomplete(profile, "source_profile or credential_source of its role gives no keys")
    return keys


def _instance_or_none() -> Keys | None:
    with suppress(NoMetadataError):
        return instance_keys()
    return None


def _process_keys(profile: Profile) -> Keys:
    """What a program of the user's choice prints ("Process credential provider", the same guide)."""
    try:
        done = subprocess.run(
            shlex.split(profile.get("credential_process")),
            capture_output=True,
            timeout=_PROCESS_SECONDS,
            check=True,
        )
        printed = json.loads(done.stdout)
        until = datetime.fromisoformat(printed["Expiration"]).timestamp() if "Expiration" in printed else None
        key, secret = printed["AccessKeyId"], printed["SecretAccessKey"]
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        raise _incomplete(profile, f"its credential_process gives no keys ({type(error).__name__})") from None
    return Keys(key, secret, printed.get("SessionToken") or "", until, _origin(profile))


def _origin(profile: Profile) -> str:
    return f"the profile {profile.name}"


def _incomplete(profile: Profile, why: str) -> StoreRefusedError:
    return StoreRefusedError(
        f"the profile {profile.name} of AWS gives no keys: {why}",
        where=profile.place,
        way_out="correct the profile, name another one by AWS_PROFILE, or give keys in lake.storage",
    )
