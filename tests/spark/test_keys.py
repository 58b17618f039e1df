"""Without keys in lake.storage: each giver of the usual chain, with a real S3 server."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slotlake.decoder.errors import LakeError
from slotlake.infra.local.object_store import LocalObjectStore
from slotlake.spark import lake_files
from slotlake.spark.lake import LakeSettings
from slotlake.spark.storage import stores, uploads
from slotlake.spark.storage.base import StoreRefusedError, StoreUnavailableError
from slotlake.spark.storage.settings import StorageSettings
from tests.key_givers import KeyGiver

pytestmark = pytest.mark.server
_NOBODY = "http://127.0.0.1:1"


class Machine:
    """A machine without keys, and what can be set up on it."""

    def __init__(
        self, store: LocalObjectStore, giver: KeyGiver, folder: Path, patch: pytest.MonkeyPatch
    ) -> None:
        self.giver, self.folder, self._patch = giver, folder, patch
        self.keys = store.storage["access_key"], store.storage["secret_key"]
        self.lake = LakeSettings(
            "lake",
            "sqlite:////x.db",
            f"{store.warehouse}/{folder.name}",
            "shop",
            storage=StorageSettings(endpoint=store.endpoint),
        )

    def set(self, **variables: str) -> None:
        for name, text in variables.items():
            self._patch.setenv(name, text)

    def write(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text)
        return str(self.folder / name)

    def profile(self, text: str, name: str = "lake") -> None:
        self.set(AWS_CONFIG_FILE=self.write("config", text), AWS_PROFILE=name)

    def probe(self) -> str:
        """Use the store, also by a plain request and as DuckDB does; return whose keys these were."""
        stores._open.clear()  # obstore uses keys for ten seconds
        lake_files.probe_bucket(self.lake)
        assert uploads.end_uploads(self.lake.root, self.lake.storage, 0) == 0
        return self.lake.storage.keys().origin


@pytest.fixture
def machine(
    object_store: LocalObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Machine]:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", _NOBODY)
    keys = object_store.storage["access_key"], object_store.storage["secret_key"]
    with KeyGiver(*keys) as giver:
        yield Machine(object_store, giver, tmp_path, monkeypatch)


def test_each_giver_is_asked(machine: Machine) -> None:
    """One after another on one machine: each comes before those that are set up already."""
    giver, (key, secret) = machine.giver, machine.keys
    with pytest.raises(StoreRefusedError, match="there are no keys for AWS"):
        machine.probe()
    machine.set(AWS_EC2_METADATA_SERVICE_ENDPOINT=giver.address)
    assert (machine.probe(), giver.asked) == ("the instance's role lake-role", ["instance"])
    machine.write("token", giver.identity)
    text = f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n"
    machine.set(AWS_SHARED_CREDENTIALS_FILE=machine.write("credentials", text))
    assert machine.probe() == "the profile default"
    given = json.dumps({"Version": 1, "AccessKeyId": key, "SecretAccessKey": secret})
    program = machine.write("give.py", f"print('''{given}''')")
    machine.profile(f"[profile lake]\ncredential_process = {sys.executable} {program}\n")
    assert machine.probe() == "the profile lake"
    user = "[profile user]\naws_access_key_id = {}\naws_secret_access_key = {}\n".format(*giver.user)
    machine.profile(f"[profile lake]\nrole_arn = {giver.role}\nsource_profile = user\n{user}")
    machine.set(AWS_ENDPOINT_URL_STS=giver.address)
    assert machine.probe() == f"the role {giver.role} (the profile lake)"
    assert giver.asked == ["instance", "AssumeRole"]
    machine.set(AWS_WEB_IDENTITY_TOKEN_FILE=str(machine.folder / "token"), AWS_ROLE_ARN=giver.role)
    assert machine.probe() == f"the role {giver.role} (AWS_WEB_IDENTITY_TOKEN_FILE)"
    machine.set(AWS_ACCESS_KEY_ID=key, AWS_SECRET_ACCESS_KEY=secret)
    assert machine.probe() == "the environment"


def test_wrong_keys_are_refused_with_their_origin(machine: Machine) -> None:
    machine.set(AWS_ACCESS_KEY_ID=machine.keys[0], AWS_SECRET_ACCESS_KEY="wrong")
    with pytest.raises(StoreRefusedError, match="with the keys of the environment: SignatureDoesNotMatch"):
        machine.probe()


def test_a_token_of_the_environment_does_not_go_with_other_keys(machine: Machine) -> None:
    machine.set(AWS_ACCESS_KEY_ID="others", AWS_SECRET_ACCESS_KEY="x", AWS_SESSION_TOKEN="y")
    own = StorageSettings(machine.lake.storage.endpoint, None, *machine.keys)
    assert (own.keys().access_key, own.keys().token) == (machine.keys[0], "")


@pytest.mark.parametrize(
    ("profile", "why"),
    [
        ("[profile other]\nregion = x", "there is no profile 'lake'"),
        ("[profile lake]\nregion = x", "neither keys nor a role"),
        ("[profile lake]\naws_access_key_id = x", "only one of"),
        ("[profile lake]\nsso_session = x", "single sign-on"),
        ("[profile lake]\nrole_arn = a\nmfa_serial = x", "a code that a person types"),
        ("[profile lake]\nrole_arn = a\nsource_profile = lake", "source_profile or credential_source"),
        ("[profile lake]\nrole_arn = a\nsource_profile = b\n[profile b]\nrole_arn = c\nsource_profile = lake",
         "source_profile or credential_source"),
        ("[profile lake]\nrole_arn = a\ncredential_source = Ec2InstanceMetadata", "gives no keys"),
        ("[profile lake]\ncredential_process = /no/such/program", "credential_process gives no keys"),
        ("no section", "cannot be read"),
    ],
)  # fmt: skip
def test_a_profile_that_gives_no_keys_is_named(machine: Machine, profile: str, why: str) -> None:
    machine.profile(profile)
    with pytest.raises(StoreRefusedError, match=why) as raised:
        machine.probe()
    assert "config" in raised.value.where


def test_a_role_that_is_not_given_is_named(machine: Machine) -> None:
    giver = machine.giver
    token = machine.write("token", "another")
    machine.set(AWS_ENDPOINT_URL_STS=giver.address, AWS_WEB_IDENTITY_TOKEN_FILE=token)
    with pytest.raises(StoreRefusedError, match="has a token, but no role"):
        machine.probe()
    machine.set(AWS_ROLE_ARN=giver.role)
    with pytest.raises(StoreRefusedError, match=r"does not give the role arn.*: InvalidIdentityToken"):
        machine.probe()
    machine.set(AWS_WEB_IDENTITY_TOKEN_FILE=token + "s")
    with pytest.raises(StoreRefusedError, match="token of the web identity cannot be read"):
        machine.probe()
    giver.fails = True
    machine.set(AWS_WEB_IDENTITY_TOKEN_FILE=token)
    with pytest.raises(StoreUnavailableError, match="token service"):
        machine.probe()


def test_keys_are_renewed_before_they_end(machine: Machine) -> None:
    giver = machine.giver
    giver.seconds = 4
    machine.set(AWS_EC2_METADATA_SERVICE_ENDPOINT=giver.address)
    machine.probe()
    machine.probe()
    assert giver.asked == ["instance"]
    time.sleep(3.3)
    machine.probe()
    assert giver.asked == ["instance", "instance"]


def test_a_role_of_a_profile_is_asked_for_with_a_signed_request(machine: Machine) -> None:
    user = "[profile user]\naws_access_key_id = AKIAUSER\naws_secret_access_key = wrong\n"
    machine.profile(f"[profile lake]\nrole_arn = {machine.giver.role}\nsource_profile = user\n{user}")
    machine.set(AWS_ENDPOINT_URL_STS=machine.giver.address)
    with pytest.raises(LakeError, match="SignatureDoesNotMatch"):
        machine.probe()
