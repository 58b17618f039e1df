"""Airflow's FAB auth manager, for tests: in a folder of its own, fetched when it is first asked for.

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

_PROVIDER: Final = "3.10.2"
_PACKAGES: Final = (
    f"apache-airflow-providers-fab=={_PROVIDER}",
    "flask-appbuilder==5.2.2",
    "apispec==6.10.1",
    "blinker==1.9.0",
    "cachelib==0.17.0",
    *("Flask==3.1.3", "flask-babel==4.0.0", "Flask-JWT-Extended==4.7.4", "Flask-Limiter==4.1.1"),
    *("Flask-Login==0.6.3", "Flask-Session==0.8.0", "Flask-SQLAlchemy==3.1.1", "Flask-WTF==1.3.0"),
    *("jmespath==1.1.0", "limits==5.8.0", "marshmallow-sqlalchemy==1.6.0", "msgpack==1.2.4"),
    *("ordered-set==4.1.0", "prison==0.2.1", "python-dateutil==2.9.0.post0", "pytz==2026.6"),
    *("colorama==0.4.6", "SQLAlchemy-Utils==0.43.0", "Werkzeug==3.1.9", "WTForms==3.3.2"),
)


def fab_packages() -> Path:
    """Return the folder with the packages, for PYTHONPATH; the test is skipped if they cannot be had."""
    folder = home() / f"fab-{_PROVIDER}"
    if (folder / "made").exists():
        return folder
    if os.environ.get("SLOTLAKE_OFFLINE"):
        pytest.skip("SLOTLAKE_OFFLINE is set, and Airflow's provider for FAB has not been fetched")
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), *_PACKAGES]
    environment = {key: text for key, text in os.environ.items() if key != "PYTHONPATH"}
    try:
        subprocess.run(command, check=True, capture_output=True, env=environment, timeout=300)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"Airflow's provider for FAB cannot be had: {type(error).__name__}")
    (folder / "made").touch()
    return folder
