"""Generated histories of every protocol version, read back: messages, transactions, damage."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from decoder.reader import StreamReader
from decoder.transactions import reference_transactions
from tests.decoder.histories import random_options, serve

pytestmark = pytest.mark.fast

histories = settings(
    max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)
randoms = st.randoms(use_true_random=False)


@histories
@given(draw=randoms, steps=st.integers(1, 80))
def test_what_a_server_says_is_read_as_it_was_meant(draw: random.Random, steps: int) -> None:
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
