"""Golden vectors of streamed and prepared transactions: real servers' bytes in every choice of protocol."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from slotlake.decoder.errors import ProtocolError
from slotlake.decoder.lsn import parse_lsn
from slotlake.decoder.protocol.messages import Streamed
from slotlake.decoder.protocol.reader import State, StreamReader, read_message
from tests.decoder.agreement import Stream
from tests.decoder.assembling import assembled
from tests.decoder.comparing import comparable
from tests.decoder.live import VARIANTS, meaning_of
from tests.decoder.reference import reference_transactions
from tests.decoder.wire import encode
from tests.vectors.capture import as_json
from tests.vectors.capture_streams import KEPT
from tests.vectors.histories import HISTORIES

pytestmark = pytest.mark.fast

FOLDER = Path(__file__).parents[1] / "vectors"
VECTORS = sorted(FOLDER.glob("pg*/streams/*.hex"))
vectors = pytest.mark.parametrize("path", VECTORS, ids=[f"{p.parts[-3]}-{p.stem}" for p in VECTORS])


@cache
def load(path: Path) -> Stream:
    lines = [line.split(" ") for line in path.read_text().splitlines()]
    return [(parse_lsn(lsn), bytes.fromhex(payload)) for lsn, payload in lines]


def split(path: Path) -> tuple[str, str]:
    """The history and how it was asked for."""
    name, _, choice = path.stem.partition("-")
    return name, choice


def test_every_history_is_captured_and_every_message_type_occurs() -> None:
    found = {(p.parts[-3], *split(p)) for p in VECTORS}
    names = [name.replace(" ", "_") for name in HISTORIES]
    assert found == {(pg, name, choice) for pg in ("pg16", "pg18") for name in names for choice in KEPT}
    for version in ("pg16", "pg18"):
        tags = {payload[:1] for p in VECTORS if p.parts[-3] == version for _, payload in load(p)}
        assert tags == {bytes([c]) for c in b"BCORYIUDTMSEcAbPKrp"}


@vectors
def test_what_was_captured_is_read_and_written_again(path: Path) -> None:
    expected: list[Any] = json.loads(path.with_suffix(".json").read_text())
    reader = StreamReader(**meaning_of(VARIANTS[split(path)[1]]))
    messages = [reader.read(payload, lsn) for lsn, payload in load(path)]
    assert [as_json(message) for message in messages] == expected
    assert [encode(message) for message in messages] == [payload for _, payload in load(path)]


@vectors
def test_every_choice_comes_to_what_protocol_1_was_sent(path: Path, tmp_path: Path) -> None:
    name, choice = split(path)
    options = meaning_of(VARIANTS[choice])
    oracle = comparable(reference_transactions(load(path.with_name(f"{name}-1.hex"))))
    assert comparable(reference_transactions(load(path), **options)) == oracle
    plain = assembled(load(path), options=options, folder=tmp_path)
    assert comparable(reference_transactions(plain, binary=options["binary"])) == oracle


@vectors
def test_a_message_cut_anywhere_or_with_junk_behind_is_refused(path: Path) -> None:
    settings = meaning_of(VARIANTS[split(path)[1]])
    reader, seen = StreamReader(**settings), set()
    for lsn, payload in load(path):
        how = {
            "in_stream": reader.state is State.BLOCK,
            "binary": settings["binary"],
            "parallel": settings["streaming"] == "parallel",
        }
        message = reader.read(payload, lsn)
        kind = (payload[:1], len(payload), isinstance(message, Streamed))
        for cut in range(0 if kind not in seen else len(payload), len(payload)):
            with pytest.raises(ProtocolError) as error:
                read_message(payload[:cut], **how)
            assert error.value.offset <= cut
        with pytest.raises(ProtocolError, match="left over"):
            read_message(payload + b"\0", **how)
        seen.add(kind)
