"""A session in this process and one on a Connect server, side by side and in either order."""

from __future__ import annotations

import os
from typing import Any

from slotlake.spark.session import open_session


def test_a_remote_session_leaves_the_process_free_for_the_other_kind(session: Any, connect: str) -> None:
    remote = open_session(remote=connect)
    assert remote.sql("SELECT 1").collect()[0][0] == 1
    assert "SPARK_CONNECT_MODE_ENABLED" not in os.environ
    classic = open_session()
    assert classic.sql("SELECT 2").collect()[0][0] == 2
    remote.stop()
    assert session.sql("SELECT 3").collect()[0][0] == 3
