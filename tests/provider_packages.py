"""Airflow's providers that slotlake is not tested with otherwise, for tests: each set in a folder of its own.

A folder is fetched when it is first asked for; processes that need it have it on their path.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from slotlake.infra.launch.folders import home
from tests.sources import ROOT

_LOCKED: Final = ROOT / "infra" / "deploy" / "executors.txt"
_SECONDS_MAX: Final = 600
_FAB: Final = """
apache-airflow-providers-fab==3.10.2
flask-appbuilder==5.2.2
apispec==6.10.1
blinker==1.9.0
cachelib==0.17.0
colorama==0.4.6
Flask==3.1.3
flask-babel==4.0.0
Flask-JWT-Extended==4.7.4
Flask-Limiter==4.1.1
Flask-Login==0.6.3
Flask-Session==0.8.0
Flask-SQLAlchemy==3.1.1
Flask-WTF==1.3.0
jmespath==1.1.0
limits==5.8.0
marshmallow-sqlalchemy==1.6.0
msgpack==1.2.4
ordered-set==4.1.0
prison==0.2.1
python-dateutil==2.9.0.post0
pytz==2026.6
SQLAlchemy-Utils==0.43.0
Werkzeug==3.1.9
WTForms==3.3.2
"""
# Later ones of the client need an HTTP library that is not among what Airflow brings.
_OPENLINEAGE: Final = """
apache-airflow-providers-openlineage==2.20.3 \
--hash=sha256:f5e14bd69060ba5012e0ffe09764d97da887572ea6dd9755e579244648c26528
openlineage-integration-common==1.52.0 \
--hash=sha256:b003b812535b9f2b9570a7dbedc8c8913713b3e971abda77edfdb9234542d548
openlineage-python==1.52.0 \
--hash=sha256:e1bd73b3066021eecf69cc5c3571f6fd7e253768ea941f2c76f18969ea0ecb20
"""


def fab_packages() -> Path:
    """Return the folder with Airflow's FAB auth manager; the test is skipped if it cannot be had."""
    return _fetched("fab", _FAB)


def openlineage_packages() -> Path:
    """Return the folder with the provider for OpenLineage; the test is skipped if it cannot be had."""
    return _fetched("openlineage", _OPENLINEAGE)


def executor_packages() -> Path:
    """Return the folder with the image's providers for executors; the test is skipped if it cannot be had."""
    return _fetched("executors", _LOCKED.read_text())


def _fetched(name: str, requirements: str) -> Path:
    digest = hashlib.sha256(sys.version.encode() + requirements.encode()).hexdigest()[:12]
    folder = home() / f"{name}-{digest}"
    if (folder / "made").exists():
        return folder
    if os.environ.get("SLOTLAKE_OFFLINE"):
        pytest.skip(f"SLOTLAKE_OFFLINE is set, and Airflow's packages for {name} have not been fetched")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    listed = folder / "requirements.txt"
    listed.write_text(requirements)
    options = ["-q", "--no-deps", "--only-binary", ":all:", "--target", str(folder)]
    if "--hash" in requirements:
        options.append("--require-hashes")
    command = [sys.executable, "-m", "pip", "install", *options, "-r", str(listed)]
    environment = {key: text for key, text in os.environ.items() if key != "PYTHONPATH"}
    try:
        subprocess.run(command, check=True, capture_output=True, env=environment, timeout=_SECONDS_MAX)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"Airflow's packages for {name} cannot be had: {type(error).__name__}")
    (folder / "made").touch()
    return folder
