"""Requests to a catalog of AWS are signed, by slotlake and by Spark, for the right service and region."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slotlake.decoder.errors import LakeError
from slotlake.spark.catalog.open import check_lake, open_catalog
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import LakeName
from tests.spark.lake_lab import Lab, relation, update
from tests.spark.signature_proxy import SignatureProxy

LONG = bool(os.environ.get("SLOTLAKE_TEST_LONG"))
ONE = relation("one", ["id"], id="int8", v="int4")
KEYS = ("AKIASIGNER", "a/secret+key")
SIGNED = {
    "rest.sigv4-enabled": "true",
    "rest.signing-name": "s3tables",
    "rest.signing-region": "eu-central-1",
    "rest.access-key-id": KEYS[0],
    "rest.secret-access-key": KEYS[1],
}


def _lake(proxy: SignatureProxy, folder: Path) -> LakeSettings:
    namespace = "s" + "".join(c for c in folder.name if c.isalnum())
    return LakeSettings("lake", proxy.uri, f"file://{folder}/warehouse", namespace, rest=SIGNED)


def test_requests_are_signed(rest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With keys of lake.rest, then with the machine's; with escaped characters in the path."""
    with SignatureProxy(rest, KEYS, "s3tables", "eu-central-1") as proxy:
        lake = _lake(proxy, tmp_path)
        with open_catalog(lake) as catalog:
            catalog.make_namespace(lake.namespace)
            assert catalog.iceberg.list_tables(lake.namespace) == []
            assert catalog.pointers().get(LakeName(lake.namespace, "ä b:c")) is None
        machine = replace(lake, rest={k: v for k, v in SIGNED.items() if "key" not in k})
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEYS[0])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEYS[1])
        with open_catalog(machine) as catalog:
            assert list(catalog.pointers()) == []
        assert proxy.refusals == []
        assert proxy.passed == {"PyIceberg"}
        for wrong in ({"rest.secret-access-key": "x"}, {"rest.signing-name": "glue"}):
            with pytest.raises(LakeError, match=r"does not allow this \(403\)") as raised:
                check_lake(replace(lake, rest={**SIGNED, **wrong}))
            assert "rest.signing-name" in raised.value.way_out
        assert proxy.refusals[0] == "SignatureDoesNotMatch"
        assert proxy.refusals[-1] == "signed by AKIASIGNER for glue in eu-central-1"


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_a_lake_behind_signatures(session: Any, rest: str, tmp_path: Path) -> None:
    with SignatureProxy(rest, KEYS, "s3tables", "eu-central-1") as proxy:
        lab = Lab.on(session, _lake(proxy, tmp_path))
        lab.init({ONE: [{"id": "1", "v": "0"}]})
        lab.sync(update(ONE, id="1", v="1"))
        assert lab.rows("one") == [("1", "1")]
        assert proxy.refusals == []
        assert {"PyIceberg"} < proxy.passed  # Spark's requests too


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_keys_for_glue(session: Any, glue: str, tmp_path: Path) -> None:
    """Both halves sign with the keys of lake.glue, though the machine has others."""
    with SignatureProxy(glue, KEYS, "glue", "eu-central-1") as proxy:
        keys = {"endpoint": proxy.uri, "access_key": KEYS[0], "secret_key": KEYS[1]}
        lake = LakeSettings(
            "lake", "glue://eu-central-1", f"file://{tmp_path}/w", "signed", publish="per_table", glue=keys
        )
        lab = Lab.on(session, lake)
        lab.init({ONE: [{"id": "1", "v": "0"}]})
        lab.sync(update(ONE, id="1", v="1"))
        assert lab.rows("one") == [("1", "1")]
        assert proxy.refusals == []
        assert len(proxy.passed) == 2
        with pytest.raises(LakeError, match="AWS Glue refused"):
            check_lake(replace(lake, glue={**keys, "secret_key": "x"}))
