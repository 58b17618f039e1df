"""Tokens of a REST catalog, by OAuth2 client credentials.

They are renewed before they end, and when the server does not accept one.  pyiceberg's own manager fetches
one and keeps it, or waits for the token's server without a limit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Final

import requests
from pyiceberg.catalog.rest.auth import AuthManager

from slotlake.spark.limits import CONNECT_SECONDS, SILENT_SECONDS

TOKENS: Final = "slotlake.spark.catalog.rest.tokens.Tokens"
_LIFE_SECONDS = 3600.0  # of a token whose server does not say
_MARGIN_SECONDS, _MARGIN_SHARE = 60.0, 0.2
_REFUSED_FROM, _SERVERS_FAULT = 400, 500


class NoTokenError(Exception):
    """There is no token; ``place`` and ``way_out`` as those of the project's errors."""

    def __init__(self, what: str, place: str, way_out: str) -> None:
        super().__init__(what)
        self.place = place
        self.way_out = way_out


class Tokens(AuthManager):
    """The header of each request; pyiceberg makes several of one session, which have the same token."""

    def __init__(self, login: Login) -> None:
        self._login = login

    def auth_header(self) -> str:
        """Return the header; a token that is about to end is renewed first.

        Raises:
            NoTokenError: the server gives none.
        """
        return f"Bearer {self._login.token()}"

    def renew(self) -> bool:
        """Fetch another token, because the catalog did not accept this one; return whether there is one.

        Raises:
            NoTokenError: the server gives none.
        """
        self._login.renew()
        return True


class Login:
    """A token, and how to get another.

    Args:
        properties: ``lake.rest`` with ``credential``, and the server's ``uri``.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._client, _, self._secret = properties["credential"].rpartition(":")
        own = properties["uri"].rstrip("/") + "/v1/oauth/tokens"
        self._url = properties.get("oauth2-server-uri") or own
        optional = {key: properties[key] for key in ("audience", "resource") if key in properties}
        self._form = {"scope": properties.get("scope", "catalog"), **optional}
        self._token = ""
        self._renew_at = 0.0
        self._lock = threading.Lock()

    def token(self) -> str:
        with self._lock:
            if time.monotonic() >= self._renew_at:
                self._fetch()
            return self._token

    def renew(self) -> None:
        with self._lock:
            self._fetch()

    def _fetch(self) -> None:
        form = {"grant_type": "client_credentials", "client_secret": self._secret, **self._form}
        form |= {"client_id": self._client} if self._client else {}
        try:
            answer = requests.post(self._url, data=form, timeout=(CONNECT_SECONDS, SILENT_SECONDS))
        except requests.RequestException as error:
            raise NoTokenError(
                f"the server that gives tokens cannot be reached: {type(error).__name__}",
                _shown(self._url),
                "check lake.rest.oauth2-server-uri, and that this server runs",
            ) from None
        if answer.status_code >= _REFUSED_FROM:
            raise self._refused(answer.status_code)
        try:
            content = answer.json()
            self._token, life = str(content["access_token"]), float(content.get("expires_in", _LIFE_SECONDS))
        except (ValueError, KeyError, TypeError):
            raise NoTokenError(
                "the server that gives tokens answered with something else",
                _shown(self._url),
                "check lake.rest.oauth2-server-uri: it must be the address that gives tokens",
            ) from None
        self._renew_at = time.monotonic() + life - min(_MARGIN_SECONDS, life * _MARGIN_SHARE)

    def _refused(self, status: int) -> NoTokenError:
        if status >= _SERVERS_FAULT:
            return NoTokenError(
                f"the server that gives tokens failed ({status})", _shown(self._url), "run again later"
            )
        return NoTokenError(
            f"the server that gives tokens refuses this credential ({status})",
            _shown(self._url),
            "correct lake.rest.credential (client:secret) and lake.rest.scope; where another server gives "
            "the tokens, set lake.rest.oauth2-server-uri",
        )


def _shown(url: str) -> str:
    """An address without a password and without a query."""
    head, _, rest = url.partition("?")[0].rpartition("@")
    return rest if not head else f"{head.partition('//')[0]}//{rest}"
