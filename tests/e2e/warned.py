"""What a test has Airflow call when the monitor warns: writes down why, where the environment says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def note(context: Any) -> None:
    """An `on_failure_callback`."""
    Path(os.environ["SLOTLAKE_TEST_WARNED"]).write_text(str(context["exception"]))
