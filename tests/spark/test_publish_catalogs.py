"""The three kinds of catalog: one point for all tables on each, and what a lesser REST server may do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests

from slotlake.decoder.errors import LakeError
from slotlake.spark.catalog import tags as catalog_tags
from slotlake.spark.catalog.base import load_one
from slotlake.spark.catalog.open import Catalog, check_lake, open_catalog
from slotlake.spark.catalog.rest.catalog import RestPointers
from slotlake.spark.catalog.rest.changes import COPYING
from slotlake.spark.copy.initial import InitialCopy
from slotlake.spark.copy.owner import is_initialised
from slotlake.spark.direct.choice import NEVER, SWITCH
from slotlake.spark.lake import KeepPoints, LakeSettings
from slotlake.spark.maintenance import shared_warehouse
from slotlake.spark.maintenance.expiry import Grace
from slotlake.spark.maintenance.plan import Care
from slotlake.spark.maintenance.removal import drop_tables
from slotlake.spark.maintenance.rewrite import maintain_table, tables_to_maintain
from slotlake.spark.names import LakeName
from slotlake.spark.publish.swap import load
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.read.query import query
from slotlake.spark.storage.stores import canonical
from slotlake.spark.tables.schema import TableSchema
from tests.catalogs import postgres_uri
from tests.spark.lake_lab import PIPELINE, Lab, insert, relation, update, write_rows

ONE = relation("one", ["id"], id="int8", n="numeric", v="int4")
TWO = relation("Odd schema.Two", ["id"], id="int8", v="int4")
LATE = relation("late", ["id"], id="int8", v="int4")
FIRST = {ONE: [{"id": "1", "n": "1.5", "v": "0"}], TWO: [{"id": "1", "v": "0"}]}


@pytest.fixture(params=["sqlite", "postgresql", "rest", "staged"])
def anywhere(request: pytest.FixtureRequest, session: Any, tmp_path: Path) -> Lab:
    """A lake on each kind of catalog; `staged`: a REST server, whose branches are not used."""
    uri: Callable[[], str] = {
        "sqlite": lambda: f"sqlite:///{tmp_path}/catalog.db",
        "postgresql": lambda: postgres_uri(request.getfixturevalue("database")),
        "rest": lambda: str(request.getfixturevalue("rest")),
        "staged": lambda: str(request.getfixturevalue("rest")),
    }[request.param]
    staging = f"sqlite:///{tmp_path}/state/staging.db" if request.param == "staged" else ""
    return Lab.on(session, replace(_lake(uri(), tmp_path), staging=staging))


@pytest.fixture
def on_rest(session: Any, rest: str, tmp_path: Path) -> Lab:
    return Lab.on(session, _lake(rest, tmp_path))


def _lake(uri: str, folder: Path) -> LakeSettings:
    namespace = "s" + "".join(c for c in folder.name if c.isalnum())
    return LakeSettings("lake", uri, f"file://{folder}/warehouse", namespace, KeepPoints(3))


def test_a_life_on_each_kind_of_catalog(anywhere: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = anywhere
    lab.init(FIRST)
    lab.sync(update(ONE, id="1", n="2.5", v="1"), update(TWO, id="1", v="1"))
    lab.sync(insert(ONE, id="2", n="NaN", v="2"))
    assert lab.rows("one") == [("1", "2.5", "1"), ("2", "NaN", "2")]
    assert (lab.rows("one", 0x1000), lab.rows('"Odd schema"."Two"', 0x1000)) == (
        [("1", "1.5", "0")],
        [("1", "0")],
    )
    monkeypatch.setenv(SWITCH, NEVER)  # by Spark's MERGE, which leaves files to be packed
    _a_table_joins(lab)
    for number in range(3):
        lab.sync(update(ONE, id="1", n="0", v=str(number)))
    monkeypatch.delenv(SWITCH)
    with open_catalog(lab.lake) as catalog:
        pointers = catalog.pointers()
        assert {name: catalog.pointer(name) for name in catalog.names()} == dict(pointers)
        assert catalog.pointer(LakeName(lab.lake.namespace, "none")) is None
        one = load(pointers, LakeName(lab.lake.namespace, "one")).metadata
        assert list(catalog_tags.tags(one)) == [lab.position - 0x200, lab.position - 0x100, lab.position]
        commits = load(pointers, LakeName(lab.lake.namespace, "commits")).metadata
        assert len(commits["snapshots"]) == 3
        assert one["refs"]["stage"] == one["refs"]["main"]  # where the next batch begins
    rows = ReadPoint.latest(lab.lake).commits()
    assert [row["kind"] for row in rows] == ["copy", *["batch"] * 2, "copy", *["batch"] * 4]
    assert len(rows[-1]["tables"]) == 3
    with pytest.raises(LakeError, match="keeps nothing as old as"):
        ReadPoint.at(lab.lake, 0x1000)
    joined = "SELECT max(one.v) FROM one JOIN late USING (id)"
    old = query(lab.session, lab.lake, joined, lab.position - 0x100)
    assert old.rows == [("1",)]
    _maintained(lab)
    assert drop_tables(lab.lake, PIPELINE)
    assert not is_initialised(lab.lake, PIPELINE)


def _maintained(lab: Lab) -> None:
    kept = range(lab.position - 0x200, lab.position + 1, 0x100)
    rows = {
        (at, table): lab.rows(table, at) for at in kept for table in ("one", "late", '"Odd schema"."Two"')
    }
    commits = ReadPoint.latest(lab.lake).commits()
    now = Care(Grace(unused=0.0, orphan=3600.0))
    done = [
        maintain_table(lambda: lab.session, lab.lake, name, PIPELINE, now)
        for name in tables_to_maintain(lab.lake, PIPELINE)
    ]
    assert len(done) == 4
    assert sum(table.rewritten_files > 0 for table in done) >= 2
    assert sum(table.expired_snapshots for table in done) >= 2
    assert all(table.removed.files for table in done if table.expired_snapshots)
    assert {(at, table): lab.rows(table, at) for at, table in rows} == rows
    assert ReadPoint.latest(lab.lake).commits() == commits
    lab.sync(insert(ONE, id="9", n="9", v="9"))
    assert ("9", "9", "9") in lab.rows("one")


def _a_table_joins(lab: Lab) -> None:
    schema = TableSchema.of(LATE)
    with InitialCopy.begin(lab.session, lab.lake, PIPELINE, [schema]) as copy:
        write_rows(copy.target(schema), LATE, [{"id": "1", "v": "7"}])
        copy.register(schema)
        with pytest.raises(KeyError):
            ReadPoint.latest(lab.lake).find("late")
        copy.publish(lab.point("copy", "late"))
    assert lab.rows("late") == [("1", "7")]
    lab.sync(update(LATE, id="1", v="8"))
    assert lab.rows("late") == [("1", "8")]


def test_a_copy_shows_all_tables_or_none(anywhere: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = anywhere
    with pytest.raises(LakeError, match="the lake has no such table"):
        ReadPoint.latest(lab.lake)

    def fails(name: str) -> None:
        assert not is_initialised(lab.lake, PIPELINE)
        raise RuntimeError(name)

    monkeypatch.setattr("slotlake.spark.copy.initial.reach", fails)
    with pytest.raises(RuntimeError, match="before_publish"):
        lab.init(FIRST)
    monkeypatch.undo()
    with pytest.raises(LakeError, match="the lake has no such table"):
        ReadPoint.latest(lab.lake)
    lab.init(FIRST)
    assert lab.rows("one") == [("1", "1.5", "0")]


def test_what_a_crash_left_of_a_copy_on_rest_is_not_there_and_goes(
    on_rest: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between making the empty tables and giving all of them their content."""
    lab = on_rest
    commit = RestPointers._commit

    def killed(self: RestPointers, changes: list[dict[str, Any]]) -> None:
        if len(changes) > 1:
            raise KeyboardInterrupt
        commit(self, changes)

    monkeypatch.setattr(RestPointers, "_commit", killed)
    monkeypatch.setattr(InitialCopy, "_drop_all", lambda self: None)
    with pytest.raises(KeyboardInterrupt):
        lab.init(FIRST)
    monkeypatch.undo()
    with open_catalog(lab.lake) as catalog:
        left = catalog.iceberg.load_table((lab.lake.namespace, "one"))
        assert left.metadata.properties[COPYING] == "true"
        assert left.metadata.snapshots == []
        assert LakeName(lab.lake.namespace, "one") not in catalog.pointers()
    assert not is_initialised(lab.lake, PIPELINE)
    lab.init(FIRST)
    assert lab.rows("one") == [("1", "1.5", "0")]


@pytest.mark.parametrize("answer", [404, 405, 501, "not listed"])
def test_a_rest_server_that_cannot_publish_together_is_refused(
    rest: str, on_rest: Lab, answer: int | str
) -> None:
    with _Lesser(rest, answer) as uri:
        lake = replace(on_rest.lake, uri=uri)
        with pytest.raises(LakeError, match="cannot publish several tables at once") as caught:
            check_lake(lake)
        assert "lake.publish: per_table" in (caught.value.way_out or "")
        check_lake(replace(lake, publish="per_table"))


def test_one_table_after_another_where_the_user_accepts_it(
    session: Any, rest: str, on_rest: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _Lesser(rest, 501) as uri:
        lab = Lab.on(session, replace(on_rest.lake, uri=uri, publish="per_table"))
        lab.init(FIRST)
        lab.sync(update(ONE, id="1", n="2", v="1"), update(TWO, id="1", v="1"))
        _killed_half_way(lab, monkeypatch)
        assert (lab.rows("one"), lab.rows('"Odd schema"."Two"')) == ([("1", "2", "2")], [("1", "2")])


def _killed_half_way(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables published before `commits` are ahead of it: readers do not see it, and the next run goes on."""
    batch = lab.batch(update(ONE, id="1", n="2", v="2"), update(TWO, id="1", v="2"))
    lab.apply(batch)
    done = RestPointers._one
    count = 0

    def dies(self: RestPointers, change: dict[str, Any]) -> None:
        nonlocal count
        count += 1
        if count == 2:  # behind the first table
            raise KeyboardInterrupt
        done(self, change)

    monkeypatch.setattr(RestPointers, "_one", dies)
    with pytest.raises(KeyboardInterrupt):
        lab.publish(batch)
    monkeypatch.undo()
    with open_catalog(lab.lake) as catalog:
        ahead = [
            str(name) for name, where in catalog.pointers().items()
            if lab.position + 0x100 in catalog_tags.tags(load({name: where}, name).metadata)
        ]  # fmt: skip
    assert len(ahead) == 1
    assert (lab.rows("one"), lab.rows('"Odd schema"."Two"')) == ([("1", "2", "1")], [("1", "1")])
    lab.apply(batch)
    lab.publish(batch)


def test_tables_on_rest_are_asked_for_at_once(on_rest: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    on_rest.init(FIRST)
    both, asked = threading.Barrier(2, timeout=30), RestPointers.location

    def waits_for_another(self: RestPointers, name: LakeName) -> str | None:
        if name.table != "commits":
            both.wait()
        return asked(self, name)

    monkeypatch.setattr(RestPointers, "location", waits_for_another)
    assert len(ReadPoint.latest(on_rest.lake).tables()) == 2


def test_secrets_are_not_told(tmp_path: Path) -> None:
    lake = LakeSettings(
        "lake", "http://me:hidden@127.0.0.1:9", f"file://{tmp_path}/w", "shop",
        rest={"token": "hidden", "credential": "me:hidden"},
    )  # fmt: skip
    assert "hidden" not in repr(lake) + lake.place
    with pytest.raises(LakeError, match="cannot be reached") as caught, open_catalog(lake):
        pass
    assert "hidden" not in str(caught.value)


def test_a_token_is_sent(rest: str, tmp_path: Path) -> None:
    seen: list[str | None] = []
    with _Lesser(rest, "not listed", seen) as uri:
        lake = LakeSettings("lake", uri, f"file://{tmp_path}/w", "shop", rest={"token": "open sesame"})
        with open_catalog(lake) as catalog:
            assert list(catalog.pointers()) == []
    assert set(seen) == {"Bearer open sesame"}


class _Lesser:
    """The fixture behind a server that answers ``transactions/commit`` with an error, or does not list it."""

    def __init__(self, behind: str, answer: int | str, tokens: list[str | None] | None = None) -> None:
        class Handler(BaseHTTPRequestHandler):
            def _pass(self) -> None:
                if tokens is not None:
                    tokens.append(self.headers.get("Authorization"))
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if self.path.endswith("/transactions/commit"):
                    status, content = (answer if isinstance(answer, int) else 404), b"<html>no</html>"
                else:
                    kept = {k: v for k, v in self.headers.items() if k in ("Content-Type", "Accept")}
                    got = requests.request(
                        self.command, behind + self.path, data=body, headers=kept, timeout=30
                    )
                    status, content = got.status_code, got.content
                if self.path.startswith("/v1/config"):
                    content = self._config(got.json())
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            @staticmethod
            def _config(config: Any) -> bytes:
                import json

                listed = config.pop("endpoints")
                if answer == "not listed":
                    config["endpoints"] = [e for e in listed if "transactions" not in e and " /" in e]
                return json.dumps(config).encode()

            do_GET = do_POST = do_HEAD = do_DELETE = _pass  # noqa: N815 - http.server's names

            def log_message(self, *_: Any) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self) -> str:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_port}"

    def __exit__(self, *failure: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def test_the_table_by_which_a_cluster_is_tried_lies_in_the_lake(
    on_rest: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server puts tables elsewhere, where this process may have no keys."""
    remove, places = shared_warehouse._remove, []

    def noting(catalog: Catalog, name: LakeName) -> None:
        places.append(canonical(load_one(catalog, name).metadata["location"]))
        remove(catalog, name)

    monkeypatch.setattr(shared_warehouse, "_remove", noting)
    shared_warehouse.probe_executors(on_rest.session, on_rest.lake, "here")
    (place,) = places
    assert place.startswith(f"{on_rest.lake.root}/")
