"""Requests to a REST catalog: who we are, how long an answer may take, and what went wrong, in words.

One session per lake that is open: the server's configuration is read once, a token is kept until it ends.

Nothing secret stands in any error: neither an address's password nor what a server answers to a login.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final
from urllib.parse import quote

from pyiceberg.catalog.rest import DEFAULT_ENDPOINTS, VIEW_ENDPOINTS, RestCatalog
from pyiceberg.exceptions import (
    ForbiddenError,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    OAuthError,
    RESTError,
    UnauthorizedError,
    ValidationError,
)
from requests import ConnectionError as RequestsConnectionError
from requests import PreparedRequest, RequestException, Response, Session, Timeout
from requests.adapters import HTTPAdapter

from slotlake.decoder.errors import LakeError
from slotlake.spark.catalog.base import UnansweredError
from slotlake.spark.catalog.rest.tokens import TOKENS, Login, NoTokenError, Tokens
from slotlake.spark.lake import ANSWER_SECONDS, LakeSettings
from slotlake.spark.limits import CONNECT_SECONDS
from slotlake.spark.names import LakeName
from slotlake.spark.storage.file_io import FILE_IO
from slotlake.spark.storage.keys.chain import current_keys, region_with_instance
from slotlake.spark.storage.keys.plain_requests import Request
from slotlake.spark.storage.keys.signing import Keys, Scope, signed
from slotlake.spark.tables.metadata import Metadata

TOGETHER: Final = "transactions/commit"
CONFLICT, MISSING, OK_BELOW, SERVERS_FAULT = 409, 404, 300, 500
_UNKNOWN, _FORBIDDEN, _EXPIRED = 401, 403, 419
DENIED = frozenset({_UNKNOWN, _FORBIDDEN, _EXPIRED})
_LACKING = frozenset({404, 405, 501})
_OURS: Final = "slotlake.rest"


@dataclass(frozen=True)
class Answered:
    """A table as the server says it is now.

    Attributes:
        config: what it says about the table's storage.
        lends: it lends keys for parts of the storage.
    """

    location: str
    metadata: Metadata
    size: int
    config: Mapping[str, str]
    lends: bool = False


class RestServer(RestCatalog):
    """pyiceberg's catalog, whose requests would wait for ever for a server that says nothing."""

    def _create_session(self) -> Session:
        session = super()._create_session()
        if is_signed(self.properties[_OURS]):
            session.mount(self.uri, SigningAdapter(self.properties[_OURS]))
        send = session.request
        # requests asks for a limit with each request, and pyiceberg gives none.
        limits = (CONNECT_SECONDS, ANSWER_SECONDS)

        def limited(method: str, url: str, **options: Any) -> Response:
            given = {"timeout": limits, **options}
            try:
                answer = send(method, url, **given)
            except RequestsConnectionError as error:
                # A server ends connections that nobody has used for a while, perhaps just now.
                if isinstance(error, Timeout) or method.upper() not in ("GET", "HEAD"):
                    raise
                answer = send(method, url, **given)
            if answer.status_code in (_UNKNOWN, _EXPIRED) and _renewed(session):
                answer = send(method, url, **given)
            return answer

        session.request = limited  # type: ignore[assignment,method-assign]
        return session

    @cached_property
    def changes_together(self) -> bool:
        """Whether the server can change several tables with one request.

        The server's list of endpoints says so; a server without a list gets a request that changes nothing.
        """
        listed = self._supported_endpoints  # pyiceberg asks for them, but has no way to say them
        if listed >= DEFAULT_ENDPOINTS and listed <= DEFAULT_ENDPOINTS | VIEW_ENDPOINTS:
            return not lacks(self.post(TOGETHER, {"table-changes": []}))
        return any(e.http_method.value == "POST" and e.path.endswith(TOGETHER) for e in listed)

    def get(self, path: str) -> Response:
        """Send a GET; pyiceberg gives no raw metadata.

        Args:
            path: within the catalog.
        """
        answer: Response = self._session.get(self.url(path, prefixed=True))
        return answer

    def post(self, path: str, body: dict[str, Any]) -> Response:
        """Send a POST; pyiceberg has no call of its own for several tables.

        Args:
            path: within the catalog.
        """
        answer: Response = self._session.post(self.url(path, prefixed=True), json=body)
        return answer


def table_path(name: LakeName) -> str:
    """Return where a table is, within the catalog."""
    return f"namespaces/{quote(name.namespace, safe='')}/tables/{quote(name.table, safe='')}"


def _renewed(session: Session) -> bool:
    """Whether there is another token to try."""
    manager = getattr(session.auth, "auth_manager", None)
    return isinstance(manager, Tokens) and manager.renew()


def server_of(lake: LakeSettings) -> RestServer:
    """Return the session with a lake's server; who needs it first logs in.

    Raises:
        LakeError: the server cannot be reached, or refuses.
    """
    session = lake.memory.of(_Session)
    with session.lock:
        if session.server is None:
            with explained(lake):
                session.server = RestServer(lake.catalog, **_properties(lake))
        return session.server


@dataclass
class _Session:
    """The session with the server of one lake, once somebody needed it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    server: RestServer | None = None

    def close(self) -> None:
        if self.server is not None:
            self.server.close()


def _properties(lake: LakeSettings) -> dict[str, Any]:
    properties: dict[str, Any] = {**lake.rest, **FILE_IO, "uri": lake.uri, _OURS: lake.rest}
    properties.pop(ENABLED, None)  # pyiceberg would sign with boto3
    if "credential" in properties:
        login = Login({**lake.rest, "uri": lake.uri})
        properties["auth"] = {"type": "custom", "impl": TOKENS, "custom": {"login": login}}
    return properties


@contextmanager
def explained(lake: LakeSettings) -> Iterator[None]:
    """Turn what pyiceberg and requests raise into a LakeError without anything secret.

    Raises:
        LakeError: the catalog cannot be reached, or refuses.
        UnansweredError: it has not answered in time.
    """
    try:
        yield
    except (NoSuchTableError, NoSuchNamespaceError, NamespaceAlreadyExistsError):
        raise
    except Timeout:
        raise unanswered(lake) from None
    except RequestException as error:
        raise LakeError(
            f"the catalog cannot be reached: {type(error).__name__}",
            where=lake.place,
            way_out="check that lake.uri is right and that the server runs",
        ) from None
    except NoTokenError as error:
        raise LakeError(str(error), where=error.place or lake.place, way_out=error.way_out) from None
    except (UnauthorizedError, ForbiddenError, OAuthError) as error:
        raise denied(lake, _FORBIDDEN if isinstance(error, ForbiddenError) else _UNKNOWN) from None
    except (RESTError, ValidationError, NotImplementedError, ValueError) as error:
        raise LakeError(
            f"the catalog refused: {type(error).__name__}",
            where=lake.place,
            way_out="check that lake.rest has what this server requires (token, credential, warehouse …), "
            "and that this user may read and write there",
        ) from None


def unanswered(lake: LakeSettings) -> UnansweredError:
    """Return the error of a server that says nothing."""
    return UnansweredError(
        f"the REST catalog has not answered for {ANSWER_SECONDS} s",
        where=lake.place,
        way_out="check the server, then run again: it completes what is missing",
    )


def denied(lake: LakeSettings, status: int) -> LakeError:
    """Return the error of a server that does not let us in.

    Args:
        status: the status of its answer: 401 and 419 say that it does not know us, 403 that we may not.
    """
    if status == _FORBIDDEN:
        return LakeError(
            "the REST catalog knows this user and does not allow this (403)",
            where=lake.place,
            way_out="let the catalog's administrator allow this user to read, make, change and drop tables "
            f"and namespaces there; the user is that of {_key(lake)}",
        )
    return LakeError(
        f"the REST catalog does not accept this user's login ({status})",
        where=lake.place,
        way_out=f"correct {_key(lake)} in the pipeline file; a token ends at some time, a credential "
        "(lake.rest.credential) gets new ones",
    )


def _key(lake: LakeSettings) -> str:
    """The key of the pipeline file that says who we are."""
    if is_signed(lake.rest):
        return "lake.rest: rest.signing-name, rest.signing-region and the keys that requests are signed with"
    keys = [key for key in ("credential", "token") if key in lake.rest]
    keys += [key for key in lake.rest if key.lower() == "header.authorization"]
    return f"lake.rest.{keys[0]}" if keys else "lake.rest (it has neither token nor credential)"


def error_type(answer: Response) -> str:
    """The server's name of the error; its words may hold anything."""
    try:
        return str(answer.json()["error"]["type"])[:80]
    except (ValueError, KeyError, TypeError):
        return ""


def lacks(answer: Response) -> bool:
    """Return whether the server has no such request; a missing table is something else."""
    return answer.status_code in _LACKING and not error_type(answer).startswith("NoSuch")


# Requests to a REST catalog that AWS serves (S3 Tables, Glue's Iceberg endpoint): signed, not by a token.
#
# The properties have the names that Iceberg's client in Spark knows: ``rest.sigv4-enabled``,
# ``rest.signing-name``, ``rest.signing-region``, and ``rest.access-key-id`` with ``rest.secret-access-key``
# where the keys are not those of the machine.

ENABLED: Final = "rest.sigv4-enabled"
_DEFAULT_SERVICE: Final = "execute-api"  # as Iceberg's client
_DEFAULT_REGION: Final = "us-east-1"


def is_signed(properties: Mapping[str, str]) -> bool:
    """Return whether requests are to be signed.

    Args:
        properties: ``lake.rest``.
    """
    return properties.get(ENABLED, "").lower() == "true"


class SigningAdapter(HTTPAdapter):
    """Signs each request just before it is sent.

    Args:
        properties: ``lake.rest``.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        super().__init__()
        self._properties = properties

    def send(self, request: PreparedRequest, *args: Any, **options: Any) -> Response:
        """Sign the request and send it."""
        body = request.body or b""
        plain = Request(
            request.method or "GET",
            request.url or "",
            {},
            body.encode() if isinstance(body, str) else bytes(body),
        )
        if "Authorization" in request.headers:  # of a login besides; as Iceberg's client
            request.headers["Original-Authorization"] = request.headers.pop("Authorization")
        request.headers.update(signed(plain, self._keys(), self._scope()).headers)
        return super().send(request, *args, **options)

    def _keys(self) -> Keys:
        names = ("rest.access-key-id", "rest.secret-access-key", "rest.session-token")
        key, secret, token = (self._properties.get(name, "") for name in names)
        return Keys(key, secret, token, None, "lake.rest") if key and secret else current_keys()

    def _scope(self) -> Scope:
        region = self._properties.get("rest.signing-region") or region_with_instance() or _DEFAULT_REGION
        return Scope(self._properties.get("rest.signing-name", _DEFAULT_SERVICE), region)
