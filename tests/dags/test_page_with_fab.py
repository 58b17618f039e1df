"""The page behind FAB's auth manager: what its roles may see, as with Airflow's own login."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.infra.test_pages import noted, pipeline
from tests.provider_packages import fab_packages
from tests.sources import ROOT

pytestmark = [pytest.mark.seconds, pytest.mark.timeout(900)]
LONG = pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it")


@LONG
def test_roles_of_fab_decide_what_a_user_sees(tmp_path: Path) -> None:
    for name in ("shop", "desk"):
        noted(pipeline(tmp_path / "pipelines", name), equal=name != "shop")
    site = tmp_path / "pipelines/.slotlake/shop/expectations/gx/uncommitted/data_docs/local_site"
    site.mkdir(parents=True)
    (site / "index.html").write_text("all checks")
    plugin = tmp_path / "home" / "plugins" / "slotlake_page.py"  # an installed slotlake has an entry point
    plugin.parent.mkdir(parents=True)
    plugin.write_text("from slotlake.infra.airflow.plugin import SlotlakePlugin\n")
    environment = {
        **os.environ,
        "PYTHONPATH": f"{fab_packages()}:{ROOT / 'src'}:{ROOT}",
        "AIRFLOW_HOME": str(tmp_path / "home"),
        "AIRFLOW__CORE__AUTH_MANAGER": "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path / "dags"),
        "AIRFLOW__API_AUTH__JWT_SECRET": "a secret of this test, of sixty-four characters for its digest..",
        "SLOTLAKE_PIPELINES": str(tmp_path / "pipelines"),
        "SLOTLAKE_SHOW_KEYS": "1",
    }
    for command in (["-m", "airflow", "db", "migrate"], ["-m", "tests.dags.fab_server"]):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=400,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    fleet, shop, desk, dag, metrics, docs = next(iter(answers.values()))
    codes = {user: [code for code, _ in given.values()] for user, given in answers.items()}
    assert codes == {
        "stranger": [401] * 6,
        "nobody": [200, 403, 403, 403, 200, 403],  # with no pipeline in them
        "shopper": [200, 200, 403, 200, 200, 403],
        "looker": [200, 200, 200, 200, 200, 403],
        "boss": [200] * 6,
    }
    seen = {
        user: set(re.findall(r"/slotlake/pipeline/(\w+)", given[fleet][1])) for user, given in answers.items()
    }
    assert (seen["nobody"], seen["shopper"]) == (set(), {"shop"})
    assert seen["looker"] == seen["boss"] == {"shop", "desk"}
    assert "desk" not in answers["shopper"][metrics][1]
    assert "shop" not in answers["nobody"][metrics][1]
    for user in ("shopper", "looker"):
        assert "id=•••" in answers[user][shop][1]
        assert "4711" not in answers[user][shop][1]
    assert "id=4711" in answers["boss"][shop][1]
    assert answers["boss"][dag][1].count("<h2>shop</h2>") == 1
    assert "all checks" in answers["boss"][docs][1]
    assert "<h2>desk</h2>" in answers["looker"][desk][1]
