"""Profiles: what stands in ``~/.aws/config`` and ``~/.aws/credentials``, or where the environment says.

Their names and keys are those of AWS's own programs ("AWS SDKs and Tools Reference Guide": Shared config and
credentials files).  A key that stands in both files counts as the credentials file has it.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from slotlake.spark.storage.base import StoreRefusedError

_DEFAULT: Final = "default"


@dataclass(frozen=True)
class Profile:
    """One profile.

    Attributes:
        name: as the files have it.
        wanted: somebody has named it (AWS_PROFILE, source_profile); else it is the default one.
        place: the files, for errors.
    """

    name: str
    wanted: bool
    place: str
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)

    def get(self, key: str) -> str:
        """What a key says; empty if it is not there."""
        return self.settings.get(key, "").strip()


def chosen_profile() -> Profile | None:
    """Return the profile that the environment names, or the one called default; None if there is none.

    Raises:
        StoreRefusedError: the environment names one that is not there, or a file cannot be read.
    """
    name = os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE")
    if name:
        return named_profile(name, "the environment variable AWS_PROFILE")
    settings = _profiles().get(_DEFAULT)
    return None if settings is None else Profile(_DEFAULT, False, _place(), settings)


def named_profile(name: str, by: str) -> Profile:
    """Return a profile.

    Raises:
        StoreRefusedError: there is no such profile.
    """
    profiles = _profiles()
    if name not in profiles:
        raise StoreRefusedError(
            f"there is no profile {name!r} of AWS",
            where=f"{_place()}; {by} names it",
            way_out="write the profile there (`aws configure --profile NAME`), or name another one",
        )
    return Profile(name, True, _place(), profiles[name])


def _paths() -> tuple[Path, Path]:
    config = os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config"
    credentials = os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials"
    return Path(config).expanduser(), Path(credentials).expanduser()


def _place() -> str:
    return " and ".join(str(path) for path in _paths())


def _profiles() -> dict[str, dict[str, str]]:
    config, credentials = _paths()
    profiles: dict[str, dict[str, str]] = {}
    for section, settings in _sections(config).items():
        kind, _, name = section.partition(" ")
        if section == _DEFAULT:
            profiles.setdefault(_DEFAULT, {}).update(settings)
        elif kind == "profile" and name.strip():
            profiles.setdefault(name.strip().strip("\"'"), {}).update(settings)
    for section, settings in _sections(credentials).items():
        profiles.setdefault(section.removeprefix("profile ").strip(), {}).update(settings)
    return profiles


def _sections(path: Path) -> dict[str, dict[str, str]]:
    parser = configparser.RawConfigParser(default_section="\0", strict=False)
    try:
        parser.read_string(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        raise StoreRefusedError(
            f"a file of AWS's profiles cannot be read: {type(error).__name__}",
            where=str(path),
            way_out="make it a readable file with [sections] and `key = value` lines, or name another one by "
            "AWS_CONFIG_FILE or AWS_SHARED_CREDENTIALS_FILE",
        ) from None
    return {section: dict(parser.items(section)) for section in parser.sections()}
