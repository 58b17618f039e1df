"""Airflow's provider for Celery, for tests: in a folder of its own, fetched when it is first asked for.

It is not among what slotlake is tested with otherwise; processes that need it have the folder on their path.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from slotlake.infra.launch.folders import home

_PROVIDER: Final = "3.26.0"
_PACKAGES: Final = (
    f"apache-airflow-providers-celery=={_PROVIDER}",
    "celery==5.5.3",  # the provider cannot be imported with 5.7
    "kombu==5.5.4",
    "billiard==4.2.2",
    "amqp==5.3.1",
    "vine==5.1.0",
    *("click-didyoumean==0.3.1", "click-plugins==1.1.1.2", "click-repl==0.4.1"),
    *("prompt_toolkit==3.0.53", "wcwidth==0.9.4", "tzlocal==5.4.5", "tzdata"),
)


def celery_packages() -> Path:
    """Return the folder with the packages, for PYTHONPATH; the test is skipped if they cannot be had."""
    folder = home() / f"celery-{_PROVIDER}"
    if (folder / "made").exists():
        return folder
    if os.environ.get("SLOTLAKE_OFFLINE"):
        pytest.skip("SLOTLAKE_OFFLINE is set, and Airflow's provider for Celery has not been fetched")
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), *_PACKAGES]
    environment = {key: text for key, text in os.environ.items() if key != "PYTHONPATH"}
    try:
        subprocess.run(command, check=True, capture_output=True, env=environment, timeout=300)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"Airflow's provider for Celery cannot be had: {type(error).__name__}")
    (folder / "made").touch()
    return folder
