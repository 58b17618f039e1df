"""What docs/plugins.md shows is run as it stands; its list of callbacks is the code's."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from slotlake import decoder
from slotlake.decoder.plugins import consumer
from slotlake.decoder.plugins.readers import PLUGINS
from slotlake.decoder.protocol.messages import Message
from tests.conftest import ROOT, Database
from tests.decoder.sources import slotted

PAGE = (ROOT / "docs" / "plugins.md").read_text()
MESSAGES = (ROOT / "docs" / "messages.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_consumer_of_the_page(
    database: Database, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE orders")
    source, _ = slotted(database)
    database.execute("INSERT INTO orders SELECT generate_series(1, 1500)")
    database.execute("DELETE FROM orders WHERE id < 3")
    monkeypatch.setenv("DSN", source.dsn)
    example = BLOCKS[0].replace('("shop",)', '("p",)').replace('"mine"', repr(source.slot))
    exec(compile(example, "docs/plugins.md", "exec"), {"__name__": "example"})
    said = capsys.readouterr().out
    assert "1500 changes" in said
    assert "{'insert orders': 1500, 'delete orders': 2}" in said


def test_the_parts_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(BLOCKS[1], "docs/plugins.md", "exec"), {"__name__": "example"})
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("Begin(final_lsn=26684928, commit_time=")
    assert said[0].endswith("xid=752)")
    assert said[1] == "2 0 {}"
    assert len(BLOCKS) == 2


def test_every_callback_and_plugin_is_on_the_page() -> None:
    families = (
        consumer.MANDATORY, consumer.OPTIONAL, consumer.STREAM_REQUIRED, consumer.STREAM_OPTIONAL,
        consumer.PREPARE_REQUIRED, consumer.PREPARE_OPTIONAL,
    )  # fmt: skip
    callbacks = [name for family in families for name in family]
    assert [name for name in callbacks if not re.search(rf"`{name}\b", PAGE)] == []
    assert [name for name in callbacks if name not in (consumer.__doc__ or "")] == []
    assert [plugin for plugin in PLUGINS if f"`{plugin}`" not in PAGE] == []


def test_every_message_is_on_its_page() -> None:
    rows = [line.split(" | ") for line in MESSAGES.splitlines() if re.match(r"\| `\w` \| ", line)]
    listed = {row[3].strip("`"): row[4].split("`")[1] for row in rows if len(row) == 7}
    classes = {each.__name__ for each in get_args(Message)} - {"Streamed"}
    assert set(listed) == classes
    known = {*consumer.MANDATORY, *consumer.OPTIONAL, *consumer.STREAM_REQUIRED, *consumer.PREPARE_REQUIRED}
    called = {name for name in listed.values() if "." not in name}
    assert called <= known | {"stream_prepare"}


def test_public_names_are_there() -> None:
    assert decoder.__all__ == sorted(decoder.__all__)
    for name in decoder.__all__:
        assert getattr(decoder, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = decoder.nothing
