"""Values and names that would mean something within SQL mean themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from slotlake.spark.direct import choice
from slotlake.spark.lake import LakeSettings
from slotlake.spark.merge import run as apply_run
from slotlake.spark.read.query import query
from slotlake.spark.session import open_session, sibling
from tests.spark.lake_lab import UNCHANGED, Change, Lab, delete, insert, relation, update

# What Spark's SQL gives a meaning: variables, the environment, markers, quotes, escapes, comments.
TEXTS = [
    "price.${region}.eur",
    "${env:PATH}",
    ":v0 ?",
    "a'b''c\\'d\\",
    '"; DROP TABLE `x` -- /* ${',
    "\\u0041%_\n",
]
TABLE = relation("texts", ["k"], k="text", v="text", w="int4")
BAG = relation("texts_of_no_key", [], "f", k="text", w="int4")
ODD = relation("${env:PATH}`'", ["k${a}"], **{"k${a}": "text", "${env:PATH}": "text"})
ODD_NAME = 'public."${env:PATH}`\'"'


def test_texts_are_found_by_themselves(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(choice.SWITCH, choice.NEVER)
    said = _said(monkeypatch)
    held = [{"k": text, "v": text, "w": str(i)} for i, text in enumerate(TEXTS)]
    lab.init(
        {TABLE: held, BAG: [{"k": row["k"], "w": row["w"]} for row in held], ODD: []},
        modes={"public.texts": ["history"]},
    )
    for low in range(0, len(TEXTS), 2):
        lab.sync(*(change for i in (low, low + 1) for change in _updates(i)))
    assert lab.rows("texts") == _sorted((t, f"new {t}", str(i)) for i, t in enumerate(TEXTS))
    assert lab.rows("texts_of_no_key") == _sorted((t, str(100 + i)) for i, t in enumerate(TEXTS))
    assert lab.rows(ODD_NAME) == _sorted((t, t) for t in TEXTS)
    gone, left = (list(enumerate(TEXTS))[start::2] for start in (0, 1))
    lab.sync(*(update(TABLE, {"k": t}, k=f"{t}!", v=UNCHANGED, w="0") for _, t in gone))
    lab.sync(*(change for i, t in gone for change in _deletes(i)))
    assert lab.rows("texts") == _sorted((t, f"new {t}", str(i)) for i, t in left)
    assert lab.rows("texts_of_no_key") == _sorted((t, str(100 + i)) for i, t in left)
    assert lab.rows(ODD_NAME) == _sorted((t, t) for _, t in left)
    open_now = "SELECT k, v FROM texts__history WHERE is_open ORDER BY w"
    assert query(lab.session, lab.lake, open_now).rows == [(t, f"new {t}") for _, t in left]
    assert len(said) > 12
    assert not [sql for sql in said if any(text in sql for text in TEXTS)]


@pytest.fixture(params=["classic", "connect"])
def any_lab(request: pytest.FixtureRequest, lake: LakeSettings) -> Iterator[Lab]:
    """A lab on a session of either kind."""
    if request.param == "classic":
        yield Lab.on(request.getfixturevalue("session"), lake)
        return
    session = open_session(lake, remote=request.getfixturevalue("connect"))
    yield Lab(session, lake)
    session.stop()


@pytest.mark.server
def test_queries_mean_what_they_say(any_lab: Lab) -> None:
    any_lab.init({TABLE: [{"k": text, "v": TEXTS[1], "w": "1"} for text in TEXTS[:2]]})
    any_lab.sync(update(TABLE, k=TEXTS[0], v=TEXTS[0], w="2"), delete(TABLE, k=TEXTS[1]))
    asked = "SELECT k, v, '${env:PATH}' AS `${env:PATH}` FROM texts WHERE k = 'price.${region}.eur'"
    found = query(any_lab.session, any_lab.lake, asked)
    assert (found.columns, found.rows) == (["k", "v", "${env:PATH}"], [(TEXTS[0], TEXTS[0], "${env:PATH}")])
    beside = sibling(any_lab.session)
    beside.conf.set("region", "x")
    assert beside.sql("SELECT '${region}'").collect()[0][0] == "${region}"


def _updates(i: int) -> list[Change]:
    text = TEXTS[i]
    return [
        update(TABLE, k=text, v=f"new {text}", w=str(i)),
        update(BAG, {"k": text, "w": str(i)}, k=text, w=str(100 + i)),
        insert(ODD, **{"k${a}": text, "${env:PATH}": text}),
    ]


def _deletes(i: int) -> list[Change]:
    text = TEXTS[i]
    return [
        delete(TABLE, k=f"{text}!"),
        delete(BAG, k=text, w=str(100 + i)),
        delete(ODD, **{"k${a}": text}),
    ]


def _sorted(rows: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return sorted(rows, key=repr)


def _said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The text of what is run, but for the shape of a table, which tells names."""
    said: list[str] = []
    run = apply_run._execute

    def told(session: Any, sql: str, markers: Any) -> Any:
        if "TBLPROPERTIES" not in sql:
            said.append(sql)
        return run(session, sql, markers)

    monkeypatch.setattr(apply_run, "_execute", told)
    return said
