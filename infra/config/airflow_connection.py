"""A connection of Airflow as an address: the Postgres type with its extras as libpq understands them.

Airflow's own URI has extras that are no texts in a parameter that libpq does not know, and has the hook's own
extras too. Invariant: an extra that changes how to connect is passed on or refused by name, never dropped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from slotlake.decoder.errors import PipelineFileError

_POSTGRES = frozenset({"postgres", "postgresql"})
# What Airflow's hook takes for itself, and what says nothing of how to connect.
_OF_THE_HOOK = frozenset({"cursor", "sqlalchemy_scheme", "sqlalchemy_query", "enable_log_db_messages"})
_TOKENS = {
    "iam": "a token of AWS IAM",
    "redshift": "Amazon Redshift",
    "use_azure_identity": "a token of Azure",
    "azure_conn_id": "a token of Azure",
}
_OF_A_TOKEN = frozenset({"aws_conn_id", "cluster-identifier", "workgroup-name", "redshift-serverless"})


def connection_text(connection_id: str, where: str) -> str:
    """Return a connection as text: that of a Postgres connection as libpq reads it, else Airflow's own URI.

    Args:
        connection_id: of Airflow.
        where: the key of the pipeline file that names it, for errors.

    Raises:
        PipelineFileError: it cannot be read, or has an extra that slotlake cannot pass on.
    """
    try:
        from airflow.sdk import BaseHook

        connection = BaseHook.get_connection(connection_id)
        if connection.conn_type not in _POSTGRES:
            return re.sub(r"^postgres://", "postgresql://", str(connection.get_uri()))
        extras = connection.extra_dejson
    except Exception as error:  # noqa: BLE001 - each secrets backend of Airflow has errors of its own
        raise PipelineFileError(
            f"the Airflow connection {connection_id!r} cannot be read ({type(error).__name__})",
            where=where,
            way_out="create it in Airflow (Admin, Connections) and run inside Airflow, or use env:NAME",
        ) from None
    return _address(connection, _parameters(extras, f"{where}, Airflow connection {connection_id!r}"))


def _parameters(extras: Mapping[str, Any], where: str) -> dict[str, str]:
    """Return the extras that are libpq's, as texts."""
    from psycopg.pq import Conninfo

    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    parameters = {}
    for name, value in extras.items():
        if name in _OF_THE_HOOK or (name in _OF_A_TOKEN | _TOKENS.keys() and not _is_on(name, extras)):
            continue
        if name in _TOKENS or name in _OF_A_TOKEN:
            raise PipelineFileError(
                f"the extra {name!r} asks for {_TOKENS.get(name, 'a token')}, which slotlake does not fetch",
                where=where,
                way_out="use a password, or env:NAME with a connection string that something else renews",
            )
        if name not in known or isinstance(value, list | dict):
            raise PipelineFileError(
                f"the extra {name!r} is no parameter of a PostgreSQL connection",
                where=where,
                way_out="remove it; PostgreSQL's manual lists the Parameter Key Words (sslmode, options, …)",
            )
        if value is not None:
            parameters[name] = str(int(value)) if isinstance(value, bool) else str(value)
    return parameters


def _is_on(name: str, extras: Mapping[str, Any]) -> bool:
    """Return whether an extra about tokens has an effect."""
    wanted = any(_truth(extras.get(token)) for token in _TOKENS)
    return wanted if name in _OF_A_TOKEN else _truth(extras.get(name))


def _truth(value: object) -> bool:
    return value not in (None, False, 0, "", "false", "False", "0")


def _address(connection: Any, parameters: dict[str, str]) -> str:
    host, port = connection.host or "", connection.port
    if host.startswith("/"):  # the folder of a socket
        parameters, host = {"host": host, **parameters}, ""
        if port:
            parameters, port = {"port": str(port), **parameters}, None
    hosts = ",".join(_host(each.strip(), port) for each in host.split(","))
    user = quote(connection.login or "", safe="")
    password = f":{quote(connection.password, safe='')}" if connection.password else ""
    who = f"{user}{password}@" if user or password else ""
    query = f"?{urlencode(parameters, quote_via=quote)}" if parameters else ""
    return f"postgresql://{who}{hosts}/{quote(connection.schema or '', safe='')}{query}"


def _host(host: str, port: int | None) -> str:
    if host.count(":") > 1 and not host.startswith("["):
        host = f"[{host}]"  # an address of IPv6
    has_port = ":" in host.rpartition("]")[2]
    return host if has_port or port is None else f"{host}:{port}"
