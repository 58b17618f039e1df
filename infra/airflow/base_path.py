"""Where Airflow is: the path of its own address, which all links on its pages begin with."""

from __future__ import annotations

from urllib.parse import urlsplit

PREFIX = "/slotlake"  # of the page, below it


def base_address() -> str:
    """Return Airflow's own address, without a slash at its end; empty, or a path, if it is not set."""
    from airflow.configuration import conf

    return str(conf.get("api", "base_url", fallback="") or "").rstrip("/")


def base_path() -> str:
    """Return the path of Airflow's own address, without a slash at its end: empty, or as ``/airflow``."""
    return urlsplit(base_address()).path.rstrip("/")
