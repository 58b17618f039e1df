"""The pages: one offline document of pipelines, written by Jinja with everything escaped.

The report of the command and the pages in Airflow are the same templates. A document names no other address
than links that its caller gives. Its one style sheet is inside; in Airflow it has a script, which reads the
page again and follows Airflow's theme.  Invariant: no row value gets in; the keys of differing rows only if
the caller says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from slotlake.infra.config.pipeline_file import PipelineFile
from slotlake.infra.health import words
from slotlake.infra.health.charts import Period, period_of, split_of
from slotlake.infra.health.model import Health, all_series
from slotlake.infra.health.repairs import repairs
from slotlake.infra.progress import counted

_TABLES_MAX = 500
_POINTS_MAX = 20
_LINES_MAX = 100  # of alarms, of warnings, …: there may be one for each of thousands of tables


@dataclass(frozen=True)
class Links:
    """Addresses that a page may have; None where there is nothing to link to.

    Attributes:
        pipeline: name → address of the pipeline's page.
        run: DAG id and run id → address of that run.
        task: DAG id, run id and task id → address of that task's log.
        recover: pipeline → address of its DAG `cdc_recover_…`.
        fleet: address of the page of all pipelines.
        data_docs: pipeline → address of Great Expectations' Data Docs.
    """

    pipeline: Callable[[str], str | None] = lambda name: f"#{name}"
    run: Callable[[str, str], str | None] = lambda dag, run: None
    task: Callable[[str, str, str], str | None] = lambda dag, run, task: None
    recover: Callable[[str], str | None] = lambda name: None
    fleet: str | None = None
    data_docs: Callable[[PipelineFile], str | None] = lambda file: None


@dataclass(frozen=True)
class _Some:
    """The first of what may be very many, and how many more there are."""

    first: Sequence[Any]
    left: int

    @classmethod
    def of(cls, every: Sequence[Any], most: int = _LINES_MAX) -> _Some:
        return cls(every[:most], max(0, len(every) - most))


@dataclass(frozen=True)
class _Shown:
    """One pipeline as the template shows it."""

    health: Health
    periods: list[Period]
    alarms: _Some
    warnings: _Some
    unresolved: _Some
    tables: _Some
    points: list[dict[str, Any]]
    repairs: _Some
    data_docs: str | None = None


def document(
    fleet: Sequence[Health],
    detailed: Sequence[tuple[Health, PipelineFile]],
    *,
    version: str,
    links: Links | None = None,
    show_keys: bool = False,
    nonce: str = "",
    live: bool = False,
) -> str:
    """Return the whole HTML document.

    Args:
        fleet: pipelines for the table at the top; none of it if there are fewer than two and no ``detailed``.
        detailed: pipelines with a part of their own, each with its pipeline file.
        links: addresses; by default only to parts of the same document.
        show_keys: show the keys of differing rows.
        nonce: for the style sheet and the script, if a policy asks for one.
        live: with a script, by which the page is read again by itself and follows Airflow's theme.
    """
    links = links or Links()
    shown = [_shown(health, file, links) for health, file in sorted(detailed, key=lambda each: each[0].order)]
    return (
        _environment()
        .get_template("document.html")
        .render(
            fleet=sorted(fleet, key=lambda health: health.order),
            pipelines=shown,
            links=links,
            show_keys=show_keys,
            nonce=nonce,
            live=live,
            version=version,
        )
    )


def _shown(health: Health, file: PipelineFile, links: Links) -> _Shown:
    points = list(health.seen.get("points", ()))
    return _Shown(
        health=health,
        periods=[period_of(name, bins) for name, bins in all_series(health).items()],
        alarms=_Some.of(health.alarms),
        warnings=_Some.of(health.status.get("warnings", [])),
        unresolved=_Some.of(health.unresolved),
        tables=_Some.of(_tables(health), _TABLES_MAX),
        points=points[: -_POINTS_MAX - 1 : -1],
        repairs=_Some.of(repairs(health)),
        data_docs=links.data_docs(file),
    )


def _tables(health: Health) -> list[dict[str, Any]]:
    """The tables with their state, those that need somebody first."""
    facts: dict[str, dict[str, Any]] = health.seen.get("tables", {})
    verified = health.verified
    different = {} if verified is None else verified["different"]
    tables = []
    for entry in health.status.get("tables", ()):
        name = entry["table"]
        tables.append(
            {
                "name": name,
                "state": entry["state"],
                "life": entry.get("life", ""),
                "copied": _share(entry.get("copied")),
                "different": sum(different.get(name, {}).get("kinds", {}).values()),
                "conflicts": sum(entry.get("conflicts", {}).values()),
                **{key: facts.get(name, {}).get(key) for key in _FACTS},
            }
        )
    return sorted(tables, key=lambda table: (table["state"] == "ready", -table["different"], table["name"]))


_FACTS = ("rows", "bytes", "files", "delete_files", "last_change", "schema_changes", "exact_texts")


def _share(copied: dict[str, Any] | None) -> float | None:
    """How much of a table is copied, of 100; None if it is not being copied."""
    if not copied or not copied.get("ranges"):
        return None
    return round(100 * float(copied["ranges_done"]) / float(copied["ranges"]), 1)


def _code(text: str) -> str:
    """Return a text as HTML: what is between backticks is code, and all is escaped."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


def _together(failures: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Failures with the same words as one, with ``count`` and ``first``; the newest first."""
    by_words: dict[tuple[str, str], dict[str, Any]] = {}
    for each in failures[::-1]:
        known = by_words.setdefault((each["what"], each["way_out"]), {**each, "count": 0})
        known |= {"count": known["count"] + 1, "first": each["time"]}
    return list(by_words.values())


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "size": words.size,
        "spent": words.spent,
        "moment": words.moment,
        "count": words.count,
        "rate": words.rows_rate,
        "key": words.key_text,
        "batch_end": words.batch_end,
        "differ": words.rows_differ,
        "split": split_of,
        "code": _code,
        "scope": words.scope,
        "symbol": words.SYMBOLS.get,
        "together": _together,
        "run": words.run_text,
        "counted": counted,
    }
    return environment
