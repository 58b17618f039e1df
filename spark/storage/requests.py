"""Requests to an object store: made again with limits after failures that pass, and named when given up.

obstore makes a request again by itself, except one that could do its work twice: a conditional PUT and the
removal of several objects, after a connection that broke.  Here these are made again too, because both can be
judged afterwards: the object that is there already is compared, and what is gone need not be removed.

Invariant: a file that is missing is a `FileNotFoundError` and one that is there already a `FileExistsError`;
everything else is an error of the lake which says whether waiting can help.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from slotlake.spark.storage.base import StoreRefusedError, StoreUnavailableError
from slotlake.spark.storage.keys.signing import Keys
from slotlake.spark.storage.location import Location

T = TypeVar("T")
CONNECT_SECONDS: Final = 5
REQUEST_SECONDS: Final = 30
RETRY_SECONDS: Final = 120
_TRIES_MAX: Final = 12
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.1, 10.0
# What a server says, and what a connection died of, out of the Debug text that obstore's errors are.
_ANSWER: Final = re.compile(r"<Code>([^<]+)</Code>.{0,20}?<Message>([^<]*)</Message>", re.DOTALL)
_STATUS: Final = re.compile(r"status code: (\d{3}[^:,\n]*)")
_RETRIES: Final = re.compile(r"\bretries: (\d+)")
_CAUSE: Final = re.compile(r'message: "([^"]+)"|\b(TimedOut|UnexpectedEof|IncompleteMessage)\b')
_WORDS: Final = {
    "TimedOut": "no answer in time",
    "UnexpectedEof": "the connection ended in the middle of the answer",
    "IncompleteMessage": "the connection ended in the middle of the answer",
}
_SECRET: Final = re.compile(r"(?i)(signature|credential|token)=[^&\s\"]+")
# Of these a store says 400 or 403; all others of the kind stay as they are, however often one asks.
_PASSING_CODES: Final = ("RequestTimeout", "SlowDown", "OperationAborted", "Throttling")
_REFUSING_CODES: Final = (
    *("AccessDenied", "AccountProblem", "AllAccessDisabled", "AuthorizationHeaderMalformed", "ExpiredToken"),
    *("InvalidAccessKeyId", "InvalidToken", "RequestTimeTooSkewed", "SignatureDoesNotMatch"),
    *("TokenRefreshRequired", "UnauthorizedAccess"),
)
_REFUSED: Final = (
    "see that the keys are right and not expired, that they may do this, and that the clock is right "
    "(lake.storage; without keys there, those of this machine: docs/storage.md); then run the same command "
    "again"
)
_NOT_MADE: Final = (
    "leave out the setting of lake.storage that this store does not know (encryption, kms_key), or take "
    "another store"
)
_AWAY: Final = (
    "see that the store answers at this address (lake.storage: endpoint, region), then run the same command "
    "again: nothing unfinished was published"
)


@dataclass(frozen=True)
class Endpoint:
    """What errors call a store.

    Attributes:
        name: its address, or whose it is.
        keys: gives the keys of its requests; None if slotlake does not know them.
    """

    name: str
    keys: Callable[[], Keys] | None = None

    def ask(self, operation: str, location: Location, request: Callable[[], T]) -> T:
        """Make a request, again after failures that a further try can mend.

        Args:
            operation: what is done, for the error: ``write an object``, ``read an object``, ….
            request: asks obstore; its work may be done twice.

        Raises:
            FileNotFoundError: there is no such object, or no such bucket.
            FileExistsError: it was to be new, and is there.
            StoreRefusedError: the keys do not allow it, or there are none.
            StoreUnavailableError: it failed as often as it may.
        """
        begun, tries, pause = time.monotonic(), 0, _PAUSE_SECONDS
        while True:
            origin = "" if self.keys is None else self.keys().origin
            try:
                return request()
            except (BaseError, FileNotFoundError) as error:
                tries += 1 + (_retries(error) or 0)
                seconds = time.monotonic() - begun
                again = _passes(error) and tries < _TRIES_MAX and seconds < RETRY_SECONDS
                if not again:
                    raise self._named(error, operation, location, tries, seconds, origin) from error
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  so that not all come back at once
            pause = min(pause * 2, _PAUSE_SECONDS_MAX)

    def _named(
        self, error: Exception, operation: str, location: Location, tries: int, seconds: float, origin: str
    ) -> Exception:
        if isinstance(error, AlreadyExistsError | PreconditionError):
            return FileExistsError(17, "the object is there already", location)
        if isinstance(error, FileNotFoundError):
            return FileNotFoundError(2, f"{self.name} has no such object, or no such bucket", location)
        if _refuses(error):
            whose = f" with the keys of {origin}" if origin else ""
            return StoreRefusedError(
                f"the object store {self.name} refused to {operation}{whose}: {said(error)}",
                where=location,
                way_out=_REFUSED,
            )
        counted = f"{tries} times in " if _retries(error) is not None else ""  # else obstore does not say it
        times = f"; tried {counted or 'for '}{seconds:.0f} s" if tries > 1 or not counted else ""
        return StoreUnavailableError(
            f"the object store {self.name} failed to {operation}: {said(error)}{times}",
            where=location,
            way_out=_NOT_MADE if said(error).startswith("NotImplemented") else _AWAY,
        )


def limits(endpoint: str | None) -> dict[str, Any]:
    """Return obstore's own limits of a request.

    Args:
        endpoint: the store's address, if it is given.
    """
    return {
        "client_options": {
            "timeout": timedelta(seconds=REQUEST_SECONDS),
            "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
            "allow_http": (endpoint or "").startswith("http://"),
        },
        "retry_config": {
            "max_retries": _TRIES_MAX - 1,
            "retry_timeout": timedelta(seconds=RETRY_SECONDS),
            "backoff": {
                "init_backoff": timedelta(seconds=_PAUSE_SECONDS),
                "max_backoff": timedelta(seconds=_PAUSE_SECONDS_MAX),
                "base": 3,
            },
        },
    }


def said(error: BaseException) -> str:
    """Return the server's answer, or what the connection died of, without a signature or a key."""
    text = str(error)
    if answer := _ANSWER.search(text):
        return f"{answer[1]}: {answer[2]}"
    if status := _STATUS.search(text):
        return status[1].strip()
    if cause := _CAUSE.search(text):
        return cause[1] or _WORDS[cause[2]]
    line = text.strip().splitlines()[0] if text.strip() else type(error).__name__
    return _SECRET.sub(r"\1=***", line)[:300]


def _retries(error: Exception) -> int | None:
    """How often obstore made the request again; None if the answer's body failed, which it does not count."""
    counted = _RETRIES.search(str(error))
    return int(counted[1]) if counted else None


def _refuses(error: Exception) -> bool:
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return True
    answer = _ANSWER.search(str(error))
    return answer is not None and answer[1] in _REFUSING_CODES


def _passes(error: Exception) -> bool:
    """Whether a further try can mend a failure."""
    settled = (AlreadyExistsError, PreconditionError, FileNotFoundError, NotSupportedError, InvalidPathError)
    if isinstance(error, settled) or _refuses(error):
        return False
    answer, status = _ANSWER.search(str(error)), _STATUS.search(str(error))
    if answer is not None and answer[1] in _PASSING_CODES:
        return True
    return status is None or not status[1].startswith("4")
