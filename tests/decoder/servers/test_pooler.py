"""A real PgBouncer before the server: it is named, with the way out, and not tried again for ever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slotlake.decoder.errors import SourceError
from slotlake.decoder.server.source import connect, connect_replication, identify
from tests.conftest import Database
from tests.pooler import pooler, until_it_listens

pytestmark = pytest.mark.server


@pytest.fixture(params=["", "options,extra_float_digits", "options,extra_float_digits,replication"])
def through(request: pytest.FixtureRequest, database: Database, tmp_path: Path) -> Iterator[str]:
    """A connection string through PgBouncer, which pools transactions and ignores some parameters."""
    with pooler(database, tmp_path, ignore_startup_parameters=request.param) as dsn:
        yield dsn


def test_it_is_named_and_not_tried_again(through: str) -> None:
    until_it_listens(through)
    for opened in (connect, connect_replication, identify):
        with pytest.raises(SourceError, match="connection pooler") as told:
            opened(through)
        assert not told.value.retryable
        assert "at the PostgreSQL server itself" in told.value.way_out
