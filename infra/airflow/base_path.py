"""Where Airflow is: the path of its own address, which all links on its pages begin with."""

from __future__ import annotations

from urllib.parse import urlsplit

PREFIX = "/slotlake"  # of the page, below it


def base_path() -> str:
    """Return the path of Airflow's own address, without a slash at its end: empty, or as ``/airflow``."""
    from airflow.configuration import conf

    return urlsplit(str(conf.get("api", "base_url", fallback="") or "")).path.rstrip("/")
