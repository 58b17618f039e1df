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
from tests.go_programs import go_program
from tests.infra.test_pages import NOW, noted, pipeline
from tests.prometheus import require_query
from tests.sources import ROOT

FOLDER = ROOT / "infra" / "monitoring"
_PROMTOOL = ("github.com/prometheus/prometheus/cmd/promtool", "v0.305.0")
_GRAFANA = ("github.com/grafana/grafana-foundation-sdk/go/dashboard", "v0.0.18")
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


# Rule → series, minutes, and the labels of the alert that fires then; None: none does. Values as promtool
# writes them: `0x90`: 0, and 90 times more each minute; `0+60x90`: each time 60 more.
_SHOP = 'pipeline="shop"'
_CASES: dict[str, list[tuple[dict[str, str], int, dict[str, str] | None]]] = {
    "SlotlakeNotReady": [
        (
            {f"slotlake_ready{{{_SHOP}}}": "0x90", f'slotlake_state{{{_SHOP},state="slot lost"}}': "1x90"},
            6,
            {},
        ),
        (  # that another pipeline copies is no excuse
            {
                f"slotlake_ready{{{_SHOP}}}": "0x90",
                'slotlake_ready{pipeline="stock"}': "0x90",
                'slotlake_state{pipeline="stock",state="copying"}': "1x90",
            },
            6,
            {},
        ),
        ({f"slotlake_ready{{{_SHOP}}}": "0x90"}, 4, None),  # not for long enough
        (
            {f"slotlake_ready{{{_SHOP}}}": "0x90", f'slotlake_state{{{_SHOP},state="copying"}}': "1x90"},
            60,
            None,
        ),
        (
            {f"slotlake_ready{{{_SHOP}}}": "1x90", f'slotlake_state{{{_SHOP},state="ready"}}': "1x90"},
            60,
            None,
        ),
    ],
    "SlotlakeAlarm": [
        ({f'slotlake_alarms{{{_SHOP},kind="wal"}}': "2x90"}, 20, {"kind": "wal"}),
        ({f'slotlake_alarms{{{_SHOP},kind="wal"}}': "2x5 stale"}, 20, None),
    ],
    "SlotlakeNobodyLooks": [
        ({f"slotlake_look_timestamp_seconds{{{_SHOP}}}": "0x90"}, 31, {}),
        ({f"slotlake_look_timestamp_seconds{{{_SHOP}}}": "0+60x90"}, 60, None),
    ],
    "SlotlakeLag": [
        ({f"slotlake_lag_seconds{{{_SHOP}}}": "3000+60x90"}, 20, {}),
        ({f"slotlake_lag_seconds{{{_SHOP}}}": "5000 5000 5000 3x90"}, 20, None),
    ],
    "SlotlakeSlotNearInvalidation": [
        ({f"slotlake_invalidation_seconds{{{_SHOP}}}": "7200-60x90"}, 61, {}),
        ({f"slotlake_invalidation_seconds{{{_SHOP}}}": "7200x90"}, 61, None),
    ],
    "SlotlakeRetainedWal": [
        ({f"slotlake_retained_wal_bytes{{{_SHOP}}}": "11000000000x90"}, 6, {}),
        ({f"slotlake_retained_wal_bytes{{{_SHOP}}}": "10000000000x90"}, 60, None),
    ],
    "SlotlakeDiffers": [
        ({f"slotlake_verify_equal{{{_SHOP}}}": "0x9"}, 1, {}),
        (  # the last verification compared other rows
            {
                f"slotlake_verify_equal{{{_SHOP}}}": "1x9",
                f"slotlake_verify_tables_different{{{_SHOP}}}": "2x9",
            },
            1,
            {},
        ),
        (
            {
                f"slotlake_verify_equal{{{_SHOP}}}": "1x9",
                f"slotlake_verify_tables_different{{{_SHOP}}}": "0x9",
            },
            1,
            None,
        ),
    ],
    "SlotlakeNotVerified": [
        ({f"slotlake_verify_age_seconds{{{_SHOP}}}": "172801x9"}, 1, {}),
        ({f"slotlake_verify_age_seconds{{{_SHOP}}}": "86400x9"}, 1, None),
    ],
    "SlotlakeNeverVerified": [
        ({f"slotlake_ready{{{_SHOP}}}": "1x3000"}, 2900, {}),
        (  # that another pipeline is verified is no excuse
            {
                f"slotlake_ready{{{_SHOP}}}": "1x3000",
                'slotlake_ready{pipeline="stock"}': "1x3000",
                'slotlake_verify_timestamp_seconds{pipeline="stock"}': "1x3000",
            },
            2900,
            {},
        ),
        ({f"slotlake_ready{{{_SHOP}}}": "1x3000"}, 2800, None),
        (
            {
                f"slotlake_ready{{{_SHOP}}}": "1x3000",
                f"slotlake_verify_timestamp_seconds{{{_SHOP}}}": "1x3000",
            },
            2900,
            None,
        ),
    ],
    "SlotlakeTableSetAside": [
        ({f'slotlake_tables{{{_SHOP},state="set aside"}}': "1x90"}, 16, {"state": "set aside"}),
        ({f'slotlake_tables{{{_SHOP},state="ready"}}': "9x90"}, 16, None),
    ],
    "SlotlakeRunsFail": [
        ({f'slotlake_failures_total{{{_SHOP},error="SlotError"}}': "0+1x90"}, 60, {"error": "SlotError"}),
        ({f'slotlake_failures_total{{{_SHOP},error="SlotError"}}': "7x90"}, 60, None),  # long ago
    ],
}


def test_each_rule_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    rules = yaml.safe_load((FOLDER / "slotlake-alerts.yaml").read_text())["groups"][0]["rules"]
    assert [rule["alert"] for rule in rules] == list(_CASES)
    for cases in _CASES.values():
        assert {labels is None for _, _, labels in cases} == {True, False}
    series = " ".join(name for cases in _CASES.values() for given, _, _ in cases for name in given)
    assert _asked_for(series) <= set(metrics._HELP)


@pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it")
@pytest.mark.timeout(1800)
def test_an_alert_fires_when_it_should_and_only_then(tmp_path: Path) -> None:
    promtool = _promtool()
    rules = FOLDER / "slotlake-alerts.yaml"
    severities = {
        rule["alert"]: rule["labels"]["severity"]
        for rule in yaml.safe_load(rules.read_text())["groups"][0]["rules"]
    }
    tests = []
    for alert, cases in _CASES.items():
        for series, minutes, labels in cases:
            fires = {"exp_labels": {"pipeline": "shop", "severity": severities[alert], **(labels or {})}}
            tests.append(
                {
                    "name": f"{alert} {series}",
                    "interval": "1m",
                    "input_series": [{"series": name, "values": each} for name, each in series.items()],
                    "alert_rule_test": [
                        {
                            "eval_time": f"{minutes}m",
                            "alertname": alert,
                            "exp_alerts": [] if labels is None else [fires],
                        }
                    ],
                }
            )
    written = tmp_path / "tests.yaml"
    # Texts differ with the numbers; the labels are what is compared.
    bare = yaml.safe_load(rules.read_text())
    for rule in bare["groups"][0]["rules"]:
        del rule["annotations"]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(bare))
    written.write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": tests}))
    command = [str(promtool), "test", "rules", str(written)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


@pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it")
@pytest.mark.timeout(1800)
def test_grafanas_own_types_read_the_dashboard() -> None:
    """Strictly: no key that Grafana does not know, none missing that it wants, all of the right type."""
    program = _grafana_reader()
    text = (FOLDER / "slotlake-dashboard.json").read_text()
    done = subprocess.run([program], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    wrong = text.replace('"gridPos"', '"gridPosition"', 1)
    done = subprocess.run([program], input=wrong, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "gridPosition" in done.stdout


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
    """The machine's program, or one that Go builds once."""
    own = shutil.which("promtool")
    return go_program("promtool", *_PROMTOOL) if own is None else Path(own)


def _grafana_reader() -> Path:
    """A program that reads a dashboard with Grafana's types."""
    return go_program("reader", *_GRAFANA, source=Path(__file__).parent / "grafana" / "main.go")
