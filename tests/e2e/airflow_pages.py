"""Airflow's pages as a person uses them: log in, and pictures for the documentation."""

from __future__ import annotations

import os
from datetime import datetime
from functools import partial
from pathlib import Path

from tests.e2e.airflow_stack import Stack
from tests.e2e.browser import Browser


def log_in(desk: Stack, browser: Browser) -> None:
    """As a person does, unless the browser is logged in."""
    browser.go(f"{desk.airflow.url}/")
    words = ("Username", "Assets")
    shown = browser._until(lambda: next((w for w in words if w in browser.text()), None), str(words), 60.0)
    if shown == "Username":
        browser.click("input[name=username]")
        browser.type("admin")
        browser.click("input[name=password]")
        browser.type(desk.airflow.password)
        browser.click("button", "Sign in")
    browser.wait_text("Dags", "Assets")


def picture(browser: Browser, name: str) -> None:
    """For docs/backfill.md, if somebody asks for pictures."""
    if folder := os.environ.get("SLOTLAKE_PICTURES"):
        browser.picture(Path(folder) / f"{name}.png")


def press_backfill(desk: Stack, browser: Browser, start: datetime, end: datetime) -> int:
    """Fill the form of a range of logical dates and send it; the backfill's id."""
    dag = desk.dag("sync")

    def made() -> list[int]:
        return sorted(each["id"] for each in desk.client.call("GET", "/backfills", dag_id=dag)["backfills"])

    known = made()
    browser.go(f"{desk.airflow.url}/dags/{dag}")
    browser.click("button", "Trigger")
    browser.wait_text("Run this Dag for a range of dates")
    browser.click("label:has(input[value=backfill])")
    browser.wait_text("Scratch namespace", "Run Backfill")
    for number, moment in enumerate((start, end)):
        browser.click("[data-testid=datetime-input]", number=number)
        for field, text in (("YYYY/MM/DD", f"{moment:%Y/%m/%d}"), ("HH:mm", f"{moment:%H:%M}")):
            browser.click(f'input[placeholder="{field}"]')
            browser.select_all()
            browser.type(text)
        browser.press("Escape", 27)
        browser.wait_text(f"{moment:%b %d, %Y %H:%M}")
    browser.click("label:has(input[value=completed])")  # all runs, also those that there are
    browser.click("label", "Override parameters on existing runs")  # without it no field of the form is sent
    browser.click("input[name=element_scratch_namespace]")
    browser.select_all()
    browser.type("trial")
    picture(browser, "backfill-5-range")
    browser.click("button", "Run Backfill")
    desk.until(lambda: len(made()) > len(known), "the form has made a backfill")
    return made()[-1]


def fill_backfill_form(browser: Browser, table: str, condition: str, *, dry_run: bool) -> None:
    """On the page of cdc_backfill: fill the form, look that it has taken all of it, and send it.

    Args:
        table: the one that is chosen.
        condition: the field WHERE.
        dry_run: as it is, unless a person switches it off.
    """
    browser.click("button", "Trigger")
    browser.wait_text("Tables", "Dry run")
    chosen = f"""!!document.querySelector('[aria-label="Remove {table}"]')"""
    browser.do(partial(_choose, browser, table), chosen)
    filled = f"document.querySelector('input[name=element_where]').value === '{condition}'"
    browser.do(partial(_type_condition, browser, condition), filled)
    if dry_run:
        picture(browser, "backfill-2-form")
    else:
        switched_off = "!document.querySelector('input[name=element_dry_run]').checked"
        browser.do(partial(browser.click, "label:has(input[name=element_dry_run])"), switched_off)
    browser.click("[data-testid=trigger-dag-submit]")


def _choose(browser: Browser, table: str) -> None:
    browser.click('input[aria-label^="Select one or mult"]')
    browser.wait_text(table)
    browser.click("[role=option]", table)


def _type_condition(browser: Browser, condition: str) -> None:
    browser.click("input[name=element_where]")
    browser.select_all()
    browser.type(condition)
