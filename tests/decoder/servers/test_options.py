"""What is asked of a server: floors, refusals that say what would work, and the most when left open."""

from __future__ import annotations

from typing import Any

import pytest

from slotlake.decoder.errors import SourceError
from slotlake.decoder.server.source import SourceSettings
from slotlake.decoder.stream.options import Options, negotiate
from slotlake.decoder.stream.receive import replication_command, start_command

SERVERS = (14, 15, 16, 17, 18, 19)
NEWEST = {14: 2, 15: 3, 16: 4, 17: 4, 18: 4, 19: 4}


def asked(**more: Any) -> SourceSettings:
    return SourceSettings("host=h password=geheim", ("p",), "s", **more)


@pytest.mark.parametrize("server", SERVERS)
def test_what_is_left_open_becomes_the_most_the_server_has(server: int) -> None:
    options = negotiate(asked(streaming=None), server * 10000 + 3)
    assert options.proto_version == NEWEST[server]
    assert options.streaming == ("parallel" if server >= 16 else "on")
    assert not options.two_phase


def test_a_server_of_the_future_gets_the_newest_that_is_known() -> None:
    assert negotiate(asked(streaming=None), 210000) == Options(4, "parallel")


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_streaming_left_open_follows_the_version_asked_for(version: int) -> None:
    options = negotiate(asked(proto_version=version, streaming=None), 180004)
    assert options == Options(version, {1: "off", 4: "parallel"}.get(version, "on"))  # type: ignore[arg-type]


def test_what_is_asked_for_is_given() -> None:
    wanted = {"proto_version": 3, "streaming": "on", "two_phase": True, "binary": True, "messages": True}
    assert negotiate(asked(**wanted), 150010) == Options(3, "on", two_phase=True, binary=True, messages=True)
    assert negotiate(asked(origin="none"), 160000).origin == "none"


@pytest.mark.parametrize(
    ("server", "settings", "what", "way_out"),
    [
        (13, {}, "PostgreSQL 13 is not supported", "PostgreSQL 14 or later"),
        (14, {"proto_version": 3}, "does not support source.proto_version 3", "1 to 2"),
        (15, {"proto_version": 4}, "does not support source.proto_version 4", "1 to 3"),
        (18, {"proto_version": 5}, "does not support source.proto_version 5", "1 to 4"),
        (18, {"proto_version": 0}, "does not support source.proto_version 0", "1 to 4"),
        (18, {"proto_version": 1, "streaming": "on"}, "needs protocol version 2", "2 to 4"),
        (16, {"proto_version": 3, "streaming": "parallel"}, "needs protocol version 4", "4"),
        (15, {"streaming": "parallel"}, "does not support streaming 'parallel'", "set streaming to 'on', or"),
        (14, {"two_phase": True}, "does not support two_phase", "PostgreSQL 15 or later"),
        (17, {"two_phase": True, "proto_version": 2}, "two_phase needs protocol version 3", "3 to 4"),
        (15, {"origin": "none"}, "origin 'none'", "PostgreSQL 16 or later"),
    ],
)
def test_what_is_lacking_is_refused_with_what_would_work(
    server: int, settings: dict[str, Any], what: str, way_out: str
) -> None:
    with pytest.raises(SourceError) as caught:
        negotiate(asked(**settings), server * 10000)
    error = caught.value
    assert what in error.what
    assert way_out in error.way_out
    assert f"PostgreSQL {server}" in error.where
    assert "geheim" not in str(error)


def test_every_option_reaches_the_command() -> None:
    source = asked(streaming="parallel", two_phase=True, binary=True, messages=True, origin="none")
    command = start_command(source, negotiate(source, 170000), 1).decode()
    assert command == (
        "START_REPLICATION SLOT \"s\" LOGICAL 0/1 (proto_version '4', publication_names '\"p\"', "
        "streaming 'parallel', two_phase 'on', binary 'true', messages 'true', origin 'none')"
    )


def test_a_command_for_another_plugin() -> None:
    assert replication_command("s", 1, [("format-version", "2"), ("include_xids", "it's")]) == (
        b"START_REPLICATION SLOT \"s\" LOGICAL 0/1 (\"format-version\" '2', include_xids 'it''s')"
    )
    assert replication_command("s", 1, []) == b'START_REPLICATION SLOT "s" LOGICAL 0/1'
