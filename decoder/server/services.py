"""PostgreSQL as a service: how each is recognized, and its words for what slotlake advises.

A service makes nobody a superuser and has its own place for settings, so ALTER SYSTEM and ALTER ROLE …
REPLICATION help nobody there.  A service is recognized by a role that it makes in every server.  Add one
here, with a page in docs/managed/.  Nothing was tried on a service; the pages say what was read, and where.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import psycopg

# What is said of a server of one's own; the messages have these words.
SET_LOGICAL: Final = "ALTER SYSTEM SET wal_level = 'logical', then restart the server"
GIVE_REPLICATION: Final = "ALTER ROLE … REPLICATION (as a superuser)"
RESTART: Final = "(this needs a restart)"


@dataclass(frozen=True)
class Service:
    """A service, and what it says instead.

    Attributes:
        shown_by: a role or a function that all its servers have.
        page: in docs/managed/.
        logical, replication, restart: instead of `SET_LOGICAL`, `GIVE_REPLICATION`, `RESTART`.
    """

    name: str
    shown_by: str
    page: str
    logical: str
    replication: str
    restart: str

    def advice(self, way_out: str) -> str:
        """Return the advice in the service's words, with its page; unchanged if it has none for it."""
        said = way_out.replace(SET_LOGICAL, self.logical).replace(GIVE_REPLICATION, self.replication)
        said = said.replace(RESTART, self.restart)
        return way_out if said == way_out else f"{said}; docs/managed/{self.page} is about {self.name}"


_GRANT = "GRANT rds_replication TO … (as a role of rds_superuser)"
# The first one that is shown counts: a server may have the roles of two.
_SERVICES = (
    Service(
        "Amazon Aurora",
        "aurora_version",
        "aurora.md",
        "set rds.logical_replication = 1 in the parameter group of the DB cluster, then reboot the writer",
        _GRANT,
        "(in the parameter group of the DB cluster; this needs a reboot)",
    ),
    Service(
        "Amazon RDS",
        "rds_superuser",
        "rds.md",
        "set rds.logical_replication = 1 in the parameter group of the instance, then reboot it",
        _GRANT,
        "(in the parameter group; this needs a reboot)",
    ),
    Service(
        "AlloyDB",
        "alloydbsuperuser",
        "alloydb.md",
        "set the flag alloydb.logical_decoding = on; this restarts the instance",
        "ALTER USER … WITH REPLICATION (as a role of alloydbsuperuser)",
        "(as a flag of the instance; this restarts it)",
    ),
    Service(
        "Cloud SQL",
        "cloudsqlsuperuser",
        "cloud-sql.md",
        "set the flag cloudsql.logical_decoding = on; this restarts the instance",
        "ALTER USER … WITH REPLICATION (as a role of cloudsqlsuperuser)",
        "(as a flag of the instance; this restarts it)",
    ),
    Service(
        "Azure Database for PostgreSQL",
        "azure_pg_admin",
        "azure.md",
        "set the server parameter wal_level to logical, save, and restart the server",
        "ALTER ROLE … WITH REPLICATION (as the server's administrator)",
        "(as a server parameter; this needs a restart)",
    ),
    Service(
        "Neon",
        "neon_superuser",
        "neon.md",
        "enable Logical Replication in the project's settings in the Neon Console; it restarts all computes",
        "use a role that was made by Neon's Console, CLI or API, because one made by SQL has no REPLICATION",
        "(ask Neon's support)",
    ),
    Service(
        "Supabase",
        "supabase_admin",
        "supabase.md",
        "set wal_level back to logical, which a Supabase project has from its beginning, and restart it",
        "ALTER ROLE … WITH REPLICATION (as the role postgres), or before PostgreSQL 17 use postgres itself",
        "(in the database's settings, by Supabase's CLI; this needs a restart)",
    ),
)
_SHOWN = f"""
SELECT rolname::text FROM pg_catalog.pg_roles
WHERE rolname IN ({", ".join(f"'{each.shown_by}'" for each in _SERVICES)})
UNION SELECT proname::text FROM pg_catalog.pg_proc WHERE proname = 'aurora_version'
"""  # without parameters: a replication connection takes none


def service_of(connection: psycopg.Connection[Any]) -> Service | None:
    """Return the service that runs this server; None if it shows none."""
    shown = {row[0] for row in connection.execute(_SHOWN.encode())}
    return next((each for each in _SERVICES if each.shown_by in shown), None)


def advised(connection: psycopg.Connection[Any], way_out: str) -> str:
    """Return the advice in the words of the service that runs this server, if one does."""
    service = service_of(connection)
    return way_out if service is None else service.advice(way_out)
