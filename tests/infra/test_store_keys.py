"""Keys for stores and for AWS Glue in a pipeline file: what does not fit is refused when it is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotlake.decoder.errors import PipelineFileError
from slotlake.infra.config.pipeline_file import load_pipeline
from slotlake.infra.config.secrets import secrets_of
from slotlake.infra.opened.open_pipeline import lake_settings
from slotlake.spark.lake import LakeSettings

pytestmark = pytest.mark.fast
GLUE = "uri: 'glue://eu-central-1', publish: per_table, "
KEYS = "access_key: the-key, secret_key: the-secret"
AZURE = "abfss://c@account.dfs.core.windows.net/p"


def _file(folder: Path, lake: str, more: str = "") -> Path:
    path = folder / "shop.yaml"
    path.write_text(
        "name: shop\nsource: {dsn: 'host=h', publications: [p], slot: s}\n"
        f"lake: {{namespace: shop, {lake}}}\ntables: {{}}\n{more}"
    )
    return path


def _lake(folder: Path, lake: str) -> LakeSettings:
    return lake_settings(load_pipeline(_file(folder, lake)))


@pytest.mark.parametrize(
    ("lake", "more", "why"),
    [
        (
            "uri: 'sqlite:////c.db', warehouse: 'gs://b/p', storage: {region: x}",
            "",
            "storage.region is not for gs",
        ),
        (
            f"uri: 'sqlite:////c.db', warehouse: 'gs://b/p', storage: {{{KEYS}}}",
            "",
            "access_key is not for gs",
        ),
        (
            f"uri: 'sqlite:////c.db', warehouse: '{AZURE}', storage: {{path_style: true}}",
            "",
            "is not for abfs",
        ),
        ("uri: 'sqlite:////c.db', warehouse: 'abfss://container/p'", "", "container and account"),
        (f"{GLUE} warehouse: 's3://b', glue: {{access_key: a}}", "", "access_key and secret_key together"),
        (
            f"{GLUE} warehouse: 's3://b', glue: {{{KEYS}}}",
            "spark: {remote: 'sc://h:1'}",
            "keys for AWS Glue cannot be given",
        ),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, lake: str, more: str, why: str) -> None:
    with pytest.raises(PipelineFileError, match=why):
        lake_settings(load_pipeline(_file(tmp_path, lake, more)))


def test_keys_for_glue(tmp_path: Path) -> None:
    """They open the bucket too, if it has none; nobody prints them."""
    lake = _lake(tmp_path, f"{GLUE} warehouse: 's3://b', glue: {{{KEYS}}}")
    assert (lake.storage.access_key, lake.glue["secret_key"]) == ("the-key", "the-secret")
    own = "storage: {access_key: other, secret_key: more}"
    assert (
        _lake(tmp_path, f"{GLUE} warehouse: 's3://b', glue: {{{KEYS}}}, {own}").storage.access_key == "other"
    )
    assert "the-" not in repr(lake)
    masked = secrets_of(
        load_pipeline(_file(tmp_path, f"{GLUE} warehouse: 's3://b', glue: {{{KEYS}}}, {own}"))
    )
    assert {"the-key", "the-secret", "other", "more"} <= masked


def test_a_store_of_google_and_of_azure(tmp_path: Path) -> None:
    sql = "uri: 'sqlite:////c.db'"
    google = _lake(tmp_path, f"{sql}, warehouse: 'gs://b/p'")
    assert google.storage.google_config() == {}
    assert "gcs.no-auth" not in google.spark_properties()
    local = _lake(tmp_path, f"{sql}, warehouse: 'gs://b/p', storage: {{endpoint: 'http://h:1'}}")
    assert "http://h:1" in local.storage.google_config()["service_account_key"]
    other = _lake(tmp_path, f"{sql}, warehouse: 'gs://b/p', storage: {{endpoint: 'https://h:1'}}")
    assert other.storage.google_config() == {"base_url": "https://h:1"}
    assert local.spark_properties()["gcs.service.host"] == "http://h:1"
    azure = _lake(tmp_path, f"{sql}, warehouse: '{AZURE}', storage: {{{KEYS}}}").spark_properties()
    assert azure["adls.auth.shared-key.account.key"] == "the-secret"
    assert not [name for name in azure if name.startswith("s3.") and "retry" not in name]
