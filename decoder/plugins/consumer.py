"""The interface of a consumer: PostgreSQL's output plugin API for programs that read the stream.

A consumer is any object with these methods, named as the callbacks of PostgreSQL's output plugins
(manual, "Logical Decoding Output Plugins").  ``begin``, ``change`` and ``commit`` are mandatory.  The
stream and prepare families are capabilities: a consumer implements no callback of a family, or at least all
required ones (logical.c, StartupDecodingContext and the callback wrappers); `capabilities_of` checks that
before anything is read.

    startup(startup)                  once, first
    begin(transaction)                * per transaction, in commit order
    change(transaction, change)       *
    truncate(transaction, truncate)   without it, truncations are ignored
    message(transaction, message)     transaction is None outside of transactions; without it, ignored
    commit(transaction)               *
    filter_by_origin(origin)          True: transactions from this origin are not shown
    shutdown()                        once, last, also after an error

    stream_start(transaction)                 +  a block of a transaction that is still open
    stream_change(transaction, change, xid)   +  xid: the subtransaction's
    stream_stop(transaction)                  +
    stream_abort(transaction, xid)            +  drops the changes of xid; all, if it is the transaction's own
    stream_commit(transaction)                +
    stream_message(transaction, message, xid), stream_truncate(transaction, truncate, xid)
    stream_prepare(transaction)               required for a consumer with both families

    begin_prepare(transaction)        +  instead of begin
    prepare(transaction)              +  instead of commit; one of the next two follows
    commit_prepared(transaction)      +
    rollback_prepared(transaction)    +
    filter_prepare(xid, gid)          True: show this one as an ordinary transaction when it commits

(* mandatory, + required in its family)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from slotlake.decoder.errors import ConsumerError
from slotlake.decoder.plugins.model import Change, Message, Startup, Transaction, Truncate

MANDATORY = ("begin", "change", "commit")
OPTIONAL = ("startup", "truncate", "message", "filter_by_origin", "shutdown")
STREAM_REQUIRED = ("stream_start", "stream_stop", "stream_abort", "stream_commit", "stream_change")
STREAM_OPTIONAL = ("stream_message", "stream_truncate")
PREPARE_REQUIRED = ("begin_prepare", "prepare", "commit_prepared", "rollback_prepared")
PREPARE_OPTIONAL = ("filter_prepare", "stream_prepare")


class Consumer(Protocol):
    """The callbacks that every consumer has; a type for parameters."""

    def begin(self, transaction: Transaction, /) -> None:
        """A committed transaction starts."""

    def change(self, transaction: Transaction, change: Change, /) -> None:
        """One row was changed."""

    def commit(self, transaction: Transaction, /) -> None:
        """The transaction is complete."""


class FullConsumer:
    """Base for a consumer that needs only some of the optional callbacks; it has no family."""

    def startup(self, startup: Startup, /) -> None:
        """Reading is about to start."""

    def begin(self, transaction: Transaction, /) -> None:
        """A committed transaction starts."""

    def change(self, transaction: Transaction, change: Change, /) -> None:
        """One row was changed."""

    def truncate(self, transaction: Transaction, truncate: Truncate, /) -> None:
        """Tables were emptied."""

    def message(self, transaction: Transaction | None, message: Message, /) -> None:
        """A logical message; it is outside of any transaction if ``transaction`` is None."""

    def commit(self, transaction: Transaction, /) -> None:
        """The transaction is complete."""

    def filter_by_origin(self, origin: str | None, /) -> bool:
        """True to leave out transactions from this origin (None: made on the server itself)."""
        return False

    def shutdown(self) -> None:
        """Reading is over."""


class StreamConsumer(Consumer, Protocol):
    """A consumer that accepts blocks of transactions that are still open."""

    def stream_start(self, transaction: Transaction, /) -> None:
        """A block of this transaction starts."""

    def stream_stop(self, transaction: Transaction, /) -> None:
        """The block ends; others may follow."""

    def stream_abort(self, transaction: Transaction, xid: int | None, /) -> None:
        """The changes of (sub)transaction ``xid`` are rolled back."""

    def stream_commit(self, transaction: Transaction, /) -> None:
        """The transaction with all its blocks is committed."""

    def stream_change(self, transaction: Transaction, change: Change | None, xid: int | None, /) -> None:
        """Take a row that (sub)transaction ``xid`` changed.

        Args:
            change: the row; None from test_decoding, which does not show it.
            xid: id of the (sub)transaction; None if the plugin does not send it.
        """


class PrepareConsumer(Consumer, Protocol):
    """A consumer that accepts transactions when they are prepared."""

    def begin_prepare(self, transaction: Transaction, /) -> None:
        """A prepared transaction starts."""

    def prepare(self, transaction: Transaction, /) -> None:
        """It is complete; its outcome comes later."""

    def commit_prepared(self, transaction: Transaction, /) -> None:
        """The prepared transaction is committed."""

    def rollback_prepared(self, transaction: Transaction, /) -> None:
        """The prepared transaction is rolled back."""


@dataclass(frozen=True)
class Capabilities:
    """Which callbacks a consumer has, and therefore which families."""

    callbacks: frozenset[str]

    @property
    def streaming(self) -> bool:
        """True if it accepts transactions in blocks, before they end."""
        return "stream_start" in self.callbacks

    @property
    def two_phase(self) -> bool:
        """True if it accepts prepared transactions before their outcome."""
        return "begin_prepare" in self.callbacks


def capabilities_of(consumer: object) -> Capabilities:
    """Find out which callbacks a consumer implements.

    Raises:
        ConsumerError: a mandatory callback, or a required one of its family, is missing; the error names it.
    """
    callbacks = (
        *MANDATORY,
        *OPTIONAL,
        *STREAM_REQUIRED,
        *STREAM_OPTIONAL,
        *PREPARE_REQUIRED,
        *PREPARE_OPTIONAL,
    )
    implemented = frozenset(name for name in callbacks if callable(getattr(consumer, name, None)))
    _require(consumer, implemented, MANDATORY, "a consumer")
    if implemented & {*STREAM_REQUIRED, *STREAM_OPTIONAL}:
        _require(consumer, implemented, STREAM_REQUIRED, "a consumer of streamed transactions")
    if implemented & {*PREPARE_REQUIRED, *PREPARE_OPTIONAL}:
        _require(consumer, implemented, PREPARE_REQUIRED, "a consumer of prepared transactions")
        if "stream_start" in implemented:
            _require(
                consumer, implemented, ("stream_prepare",), "a consumer of streamed and prepared transactions"
            )
        elif "stream_prepare" in implemented:
            _require(consumer, implemented, STREAM_REQUIRED, "a consumer with stream_prepare")
    return Capabilities(implemented)


def _require(consumer: object, has: frozenset[str], required: tuple[str, ...], who: str) -> None:
    missing = [name for name in required if name not in has]
    if missing:
        raise ConsumerError(
            f"{who} requires the callback{'s' if len(missing) > 1 else ''} {', '.join(missing)}",
            where=f"consumer {type(consumer).__name__}",
            way_out="implement it, or leave out the whole family; docs/plugins.md lists all callbacks",
        )
