"""Makes ``decoder/types/oids.py`` from the catalog of real servers: ``python -m tests.decoder.type_oids``.

The module names the OIDs of PostgreSQL's own types, as psycopg's ``_oids.py`` does.  The test asks a
server for the same (`pinned_types`), so that the module and a server cannot differ unseen.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg

from slotlake.infra.local.postgres import temporary_postgres
from tests.debian_postgres import IN_DEBIAN_ONLY, debian_postgres

MODULE = Path(__file__).parents[2] / "decoder" / "types" / "oids.py"
_VERSIONS = (16, 18, 19)
# Without pseudo-types and `unknown`, of which no column can be.
_PINNED = """
SELECT oid::bigint, typname FROM pg_catalog.pg_type WHERE oid < 10000 AND typcategory NOT IN ('P', 'X')
"""
_HEAD = '''"""OIDs of PostgreSQL's own types, by their names in pg_type; ``X_ARRAY`` is the array of X.

Made by ``python -m tests.decoder.type_oids`` from the catalogs of PostgreSQL {versions}; not to be edited.
`tests/decoder/test_type_oids.py` compares it with the servers.  A type's OID never changes.
"""

from __future__ import annotations

'''


def pinned_types(connection: psycopg.Connection[Any]) -> dict[str, int]:
    """The types that the server was built with: constant name → OID."""
    return {constant(name): oid for oid, name in connection.execute(_PINNED).fetchall()}


def constant(type_name: str) -> str:
    """The constant for a name in pg_type: ``_int4`` → ``INT4_ARRAY``."""
    return f"{type_name[1:]}_array".upper() if type_name.startswith("_") else type_name.upper()


def main() -> None:
    """Write the module."""
    types: dict[str, int] = {}
    for version in _VERSIONS:
        programs = debian_postgres(version) if version in IN_DEBIAN_ONLY else None
        with (
            temporary_postgres(version=version, programs=programs) as server,  # type: ignore[arg-type]
            psycopg.connect(server.dsn()) as connection,
        ):
            types |= pinned_types(connection)
    lines = [f"{name} = {oid}" for name, oid in sorted(types.items(), key=lambda each: each[1])]
    MODULE.write_text(_HEAD.format(versions="{}, {} and {}".format(*_VERSIONS)) + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
