"""Dashboard and alert rules in infra/monitoring ask for metrics that there are; promtool reads both."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from slotlake.infra.health import metrics
from slotlake.infra.health.model import health_of
from slotlake.infra.launch.folders import home
from tests.infra.test_pages import NOW, noted, pipeline
from tests.prometheus import require_query
from tests.sources import ROOT

FOLDER = ROOT / "infra" / "monitoring"
_PROMTOOL = "github.com/prometheus/prometheus/cmd/promtool@v0.305.0"
_SUFFIXES = ("_bucket", "_sum", "_count")


def _asked_for(text: str) -> set[str]:
    names = set()
    for name in re.findall(r"\bslotlake_(\w+)", text):
        suffix = next((each for each in _SUFFIXES if name.endswith(each)), "")
        names.add(name.removesuffix(suffix) if suffix else name)
    return names


def test_rules_and_dashboard_ask_for_metrics_that_there_are() -> None:
    rules = yaml.safe_load((FOLDER / "slotlake-alerts.yaml").read_text())
    dashboard = json.loads((FOLDER / "slotlake-dashboard.json").read_text())
    expressions = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    targets: list[Any] = [target for panel in dashboard["panels"] for target in panel["targets"]]
    expressions += [target["expr"] for target in targets]
    expressions += [each["definition"] for each in dashboard["templating"]["list"] if "definition" in each]
    for expression in expressions:
        if not expression.startswith("label_values("):  # Grafana's own
            require_query(expression.replace("$__rate_interval", "5m"))
    with pytest.raises(ValueError, match="parenthesis"):
        require_query("sum(rate(x[5m])")
    asked = _asked_for("\n".join(expressions))
    assert len(asked) > 12
    assert asked <= set(metrics._HELP)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        assert {"summary", "description"} <= set(rule["annotations"])


@pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it")
@pytest.mark.timeout(1800)
def test_promtool_reads_metrics_and_rules(tmp_path: Path) -> None:
    promtool = _promtool()
    file = pipeline(tmp_path, "shop")
    noted(file, equal=False)
    text = metrics.metrics_text([health_of(file, NOW)], "1")
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")
    rules = FOLDER / "slotlake-alerts.yaml"
    done = subprocess.run([promtool, "check", "rules", rules], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _promtool() -> Path:
    """The program, built once by Go; skips where it cannot be built."""
    program = home() / "promtool-0.305.0" / "promtool"
    go = shutil.which("go") or "/usr/local/go/bin/go"
    if not program.exists():
        if not Path(go).exists():
            pytest.skip("there is no Go to build promtool with")
        environment = {**os.environ, "GOBIN": str(program.parent), "GOFLAGS": "-p=2"}
        done = subprocess.run(
            [go, "install", _PROMTOOL], check=False, capture_output=True, text=True, env=environment
        )
        if done.returncode:
            pytest.skip(f"promtool cannot be built here: {done.stderr.strip().splitlines()[-1]}")
    return program
