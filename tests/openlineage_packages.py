"""Airflow's provider for OpenLineage, for tests: in a folder of its own, fetched when it is first asked for.

slotlake does not depend on it; processes that need it have the folder on their path.
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

_PROVIDER: Final = "2.20.3"
# Later ones of the client need an HTTP library that is not among what Airflow brings.
_PACKAGES: Final = f"""
apache-airflow-providers-openlineage=={_PROVIDER} \
--hash=sha256:f5e14bd69060ba5012e0ffe09764d97da887572ea6dd9755e579244648c26528
openlineage-integration-common==1.52.0 \
--hash=sha256:b003b812535b9f2b9570a7dbedc8c8913713b3e971abda77edfdb9234542d548
openlineage-python==1.52.0 \
--hash=sha256:e1bd73b3066021eecf69cc5c3571f6fd7e253768ea941f2c76f18969ea0ecb20
"""


def openlineage_packages() -> Path:
    """Return the folder with the packages, for PYTHONPATH; the test is skipped if they cannot be had."""
    folder = home() / f"openlineage-{_PROVIDER}"
    if (folder / "made").exists():
        return folder
    if os.environ.get("SLOTLAKE_OFFLINE"):
        pytest.skip("SLOTLAKE_OFFLINE is set, and Airflow's provider for OpenLineage has not been fetched")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "requirements.txt").write_text(_PACKAGES)
    options = ["-q", "--no-deps", "--require-hashes", "--only-binary", ":all:", "--target", str(folder)]
    command = [sys.executable, "-m", "pip", "install", *options, "-r", str(folder / "requirements.txt")]
    environment = {key: text for key, text in os.environ.items() if key != "PYTHONPATH"}
    try:
        subprocess.run(command, check=True, capture_output=True, env=environment, timeout=300)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"Airflow's provider for OpenLineage cannot be had: {type(error).__name__}")
    (folder / "made").touch()
    return folder
