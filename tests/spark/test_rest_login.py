"""A REST catalog that demands a login: tokens that end, are refused, or are not enough."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slotlake.decoder.errors import LakeError
from slotlake.spark.catalog.open import check_lake, open_catalog
from slotlake.spark.lake import LakeSettings
from tests.spark.lake_lab import Lab, relation, update
from tests.spark.login_proxy import LoginProxy

ONE = relation("one", ["id"], id="int8", v="int4")
SECRET = {"credential": "me:s3cret"}


def _lake(uri: str, folder: Path, rest: Mapping[str, str]) -> LakeSettings:
    namespace = "l" + "".join(c for c in folder.name if c.isalnum())
    return LakeSettings("lake", uri, f"file://{folder}/warehouse", namespace, rest=rest)


def test_tokens_are_renewed_while_a_pipeline_works(session: Any, rest: str, tmp_path: Path) -> None:
    with LoginProxy(rest, life=5) as proxy:
        lab = Lab.on(session, _lake(proxy.uri, tmp_path, {**SECRET, "scope": "tables"}))
        lab.init({ONE: [{"id": "1", "v": "0"}]})
        first = proxy.given
        lab.sync(update(ONE, id="1", v="1"))
        time.sleep(5.5)  # both Spark's token and ours have ended
        lab.sync(update(ONE, id="1", v="2"))
        assert lab.rows("one") == [("1", "2")]
        assert proxy.given > first
        assert "tables" in proxy.scopes
        assert {"PyIceberg"} < proxy.passed  # Spark's requests too


def test_a_process_logs_in_once(rest: str, tmp_path: Path) -> None:
    with LoginProxy(rest) as proxy:
        lake = _lake(proxy.uri, tmp_path, SECRET)
        for _ in range(5):
            with open_catalog(lake) as catalog:
                assert list(catalog.pointers()) == []
        assert (proxy.given, proxy.configs) == (1, 1)
        proxy.revoke()
        with open_catalog(lake) as catalog:
            assert list(catalog.pointers()) == []
        assert (proxy.given, proxy.configs, proxy.refused) == (2, 1, 1)


def test_a_connection_that_the_server_has_ended_is_begun_anew(rest: str, tmp_path: Path) -> None:
    with LoginProxy(rest) as proxy:
        lake = _lake(proxy.uri, tmp_path, SECRET)
        with open_catalog(lake) as catalog:
            assert list(catalog.pointers()) == []
            proxy.drops = 1
            assert list(catalog.pointers()) == []
            proxy.drops = 2
            with pytest.raises(LakeError, match="cannot be reached"):
                list(catalog.pointers())


@pytest.mark.parametrize(
    ("rest_keys", "what", "key"),
    [
        ({"credential": "me:wrong"}, "refuses this credential", "lake.rest.credential"),
        ({"token": "wrong"}, r"does not accept this user's login \(401\)", "lake.rest.token"),
        ({}, r"does not accept this user's login \(401\)", "neither token nor credential"),
        (
            {"credential": "me:s3cret", "oauth2-server-uri": "http://127.0.0.1:9/token"},
            "server that gives tokens cannot be reached",
            "lake.rest.oauth2-server-uri",
        ),
    ],
)
def test_a_wrong_login_is_named(
    rest: str, tmp_path: Path, rest_keys: dict[str, str], what: str, key: str
) -> None:
    with LoginProxy(rest) as proxy:
        with pytest.raises(LakeError, match=what) as caught:
            check_lake(_lake(proxy.uri, tmp_path, rest_keys))
        assert key in (caught.value.way_out or "")
        assert "wrong" not in str(caught.value)
        assert "s3cret" not in str(caught.value)


@pytest.mark.seconds
def test_a_user_who_may_not_is_named(rest: str, tmp_path: Path) -> None:
    with LoginProxy(rest) as proxy:
        lake = _lake(proxy.uri, tmp_path, SECRET)
        check_lake(lake)
        proxy.forbids = True
        with (
            pytest.raises(LakeError, match=r"does not allow this \(403\)") as caught,
            open_catalog(lake) as catalog,
        ):
            list(catalog.pointers())
        assert "lake.rest.credential" in (caught.value.way_out or "")
        with pytest.raises(LakeError, match=r"\(403\)"):
            check_lake(replace(lake, warehouse=f"file://{tmp_path}/other"))
