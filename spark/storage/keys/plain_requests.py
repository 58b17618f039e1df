"""Small HTTP requests to what gives keys: a metadata service on the machine, AWS's token service."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from http.client import HTTPException
from typing import Final

_NO_PROXY: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_AS_SET: Final = urllib.request.build_opener()
OK_BELOW: Final = 300


@dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
        nearby: it stays on this machine or its host, and passes no proxy.
    """

    method: str
    address: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)
    seconds: float = 30.0
    nearby: bool = False

    def with_headers(self, headers: Mapping[str, str]) -> Request:
        """The same request with other headers."""
        return replace(self, headers=headers)


@dataclass(frozen=True)
class Answer:
    """A status and what came with it."""

    status: int
    body: bytes = field(repr=False)

    @property
    def ok(self) -> bool:
        """Whether it is what was asked for."""
        return self.status < OK_BELOW

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode(errors="replace")


def ask(request: Request) -> Answer:
    """Send a request; an answer of any status is one.

    Raises:
        OSError: nobody answers, or not whole.
    """
    sent = urllib.request.Request(  # noqa: S310  of AWS, or as the environment says
        request.address, method=request.method, headers=dict(request.headers), data=request.body or None
    )
    opener = _NO_PROXY if request.nearby else _AS_SET
    try:
        with opener.open(sent, timeout=request.seconds) as answer:
            return Answer(answer.status, answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.read())
    except urllib.error.URLError as error:
        raise OSError(str(error.reason)) from None
    except (HTTPException, ValueError) as error:
        raise OSError(f"{type(error).__name__}: {error}") from None
