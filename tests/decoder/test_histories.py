"""Generated histories of every protocol version, read back: messages, transactions, damage."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slotlake.decoder.protocol.reader import StreamReader
from tests.decoder.agreement import columnar
from tests.decoder.agreement import plain as plain_meaning
from tests.decoder.assembling import assembled, random_cuts, scratch, without_names
from tests.decoder.histories import random_options, serve
from tests.decoder.reference import reference_transactions

pytestmark = pytest.mark.fast

histories = settings(
    max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)
seeds = st.integers(0, 2**32 - 1)


@histories
@given(seed=seeds, steps=st.integers(1, 120))
def test_what_a_server_says_is_read_as_it_was_meant(seed: int, steps: int) -> None:
    draw = random.Random(seed)
    options = random_options(draw)
    server = serve(draw, options, steps)
    reader = StreamReader(**options.reader())
    assert [reader.read(payload, lsn) for lsn, payload in server.stream] == [m for _, m in server.sent]
    assert list(reference_transactions(server.stream, **options.reader())) == server.expected


def test_the_generator_makes_every_kind_of_message() -> None:
    seen: set[str] = set()
    for seed in range(60):
        draw = random.Random(seed)
        server = serve(draw, random_options(draw), 80)
        seen |= {payload[:1].decode() for _, payload in server.stream}
    assert seen == set("BCORYIUDTMSEcAbPKrp")


@pytest.mark.seconds
@histories
@given(seed=seeds, steps=st.integers(1, 120), memory_bytes=st.sampled_from([0, 500, 1 << 20]))
def test_the_assembler_makes_the_same_transactions_however_the_stream_is_cut(
    seed: int, steps: int, memory_bytes: int
) -> None:
    draw = random.Random(seed)
    options = random_options(draw)
    server = serve(draw, options, steps)
    with scratch() as folder:
        plain = assembled(
            server.stream,
            options=options.reader(),
            cuts=random_cuts(draw, len(server.stream)),
            memory_bytes=memory_bytes,
            folder=Path(folder),
        )
    found = list(reference_transactions(plain, binary=options.binary))
    assert found == without_names(server.expected)
    cuts = random_cuts(draw, len(plain))
    assert columnar(plain, cuts, binary=options.binary) == plain_meaning(plain, binary=options.binary)
