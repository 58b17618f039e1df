"""A connection of Airflow as an address: the Postgres type with its extras as libpq understands them.

Airflow's own URI has extras that are no texts in a parameter that libpq does not know, and has the hook's own
extras too. Invariant: an extra that changes how to connect is passed on or refused by name, never dropped.

With the extra ``iam`` the password is a token of AWS, which Airflow's own hook fetches. It is valid for a
quarter of an hour, so it is in no address: `decoder.server.short_lived` asks for it.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from slotlake.decoder.errors import PipelineFileError, SourceUnavailableError
from slotlake.decoder.server.short_lived import register

_POSTGRES = frozenset({"postgres", "postgresql"})
# What Airflow's hook takes for itself, and what says nothing of how to connect.
_OF_THE_HOOK = frozenset({"cursor", "sqlalchemy_scheme", "sqlalchemy_query", "enable_log_db_messages"})
TOKEN_SECONDS = 300.0  # a token is valid for 900
_IAM = "iam"
_TOKENS = {
    _IAM: "a token of AWS IAM",
    "redshift": "Amazon Redshift",
    "use_azure_identity": "a token of Azure",
    "azure_conn_id": "a token of Azure",
}
_OF_A_TOKEN = frozenset({"aws_conn_id", "cluster-identifier", "workgroup-name", "redshift-serverless"})


def connection_text(connection_id: str, where: str, *, tokens: bool = False) -> str:
    """Return a connection as text: that of a Postgres connection as libpq reads it, else Airflow's own URI.

    Args:
        where: the key of the pipeline file that names it, for errors.
        tokens: it is the source's, whose sessions ask for a token of AWS IAM if the connection has the extra.

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
    place = f"{where}, Airflow connection {connection_id!r}"
    if not (tokens and _truth(extras.get(_IAM)) and not _truth(extras.get("redshift"))):
        return _address(connection, _parameters(extras, place), connection.password)
    others = {name: value for name, value in extras.items() if name not in (_IAM, "aws_conn_id")}
    address = _address(connection, _parameters(others, place), None)
    register(address, _Tokens(connection, place).token)
    return address


class _Tokens:
    """The tokens of one connection, as Airflow's hook fetches them; may be called from several threads."""

    def __init__(self, connection: Any, place: str) -> None:
        self._connection, self._place = connection, place
        self._lock = threading.Lock()
        self._token, self._until = "", 0.0

    def token(self) -> str:
        """Return a token that is valid for some minutes.

        Raises:
            PipelineFileError: Airflow's providers are not installed.
            SourceUnavailableError: AWS gives no token now.
        """
        with self._lock:
            if time.monotonic() >= self._until:
                self._token = self._fetched()
                self._until = time.monotonic() + TOKEN_SECONDS
            return self._token

    def _fetched(self) -> str:
        try:
            from airflow.providers.postgres.hooks.postgres import PostgresHook
        except ImportError:
            raise PipelineFileError(
                f"the extra {_IAM!r} asks for {_TOKENS[_IAM]}, and Airflow's provider for it is missing",
                where=self._place,
                way_out="install apache-airflow-providers-postgres and apache-airflow-providers-amazon here",
            ) from None
        try:
            _, token, _ = PostgresHook(connection=self._connection).get_iam_token(self._connection)
        except Exception as error:  # noqa: BLE001 - AWS, the network and both providers have errors of their own
            raise SourceUnavailableError(
                f"there is no token of AWS IAM for this connection now ({type(error).__name__})",
                where=self._place,
                way_out="look at its extra aws_conn_id, and at the rights of that role (rds-db:connect)",
            ) from None
        return str(token)


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
                way_out="take the extra away, and name a program that prints the token in "
                "source.password.command; or use a password",
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


def _address(connection: Any, parameters: dict[str, str], secret: str | None) -> str:
    host, port = connection.host or "", connection.port
    if host.startswith("/"):  # the folder of a socket
        parameters, host = {"host": host, **parameters}, ""
        if port:
            parameters, port = {"port": str(port), **parameters}, None
    hosts = ",".join(_host(each.strip(), port) for each in host.split(","))
    user = quote(connection.login or "", safe="")
    password = f":{quote(secret, safe='')}" if secret else ""
    who = f"{user}{password}@" if user or password else ""
    query = f"?{urlencode(parameters, quote_via=quote)}" if parameters else ""
    return f"postgresql://{who}{hosts}/{quote(connection.schema or '', safe='')}{query}"


def _host(host: str, port: int | None) -> str:
    if host.count(":") > 1 and not host.startswith("["):
        host = f"[{host}]"  # an address of IPv6
    has_port = ":" in host.rpartition("]")[2]
    return host if has_port or port is None else f"{host}:{port}"
