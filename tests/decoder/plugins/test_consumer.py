"""The interface: which callbacks are required, in which order they come, and what a failure says."""

from __future__ import annotations

from typing import Any

import pytest

from slotlake.decoder.errors import ChangeLogError, ConsumerError, ProtocolError
from slotlake.decoder.plugins.consumer import PREPARE_REQUIRED, STREAM_REQUIRED, FullConsumer, capabilities_of
from slotlake.decoder.plugins.delivery import Delivery
from slotlake.decoder.plugins.model import Change, Event, Message, Startup, Transaction
from slotlake.decoder.protocol.relations import Column, Relation

TABLE = Relation(7, "public", "t", "d", (Column("id", 23, -1, True, "int4"),))
STARTUP = Startup("pgoutput")


def with_callbacks(*names: str) -> Any:
    """A consumer of just these callbacks, which notes (name, arguments)."""

    def noting(name: str) -> Any:
        return lambda self, *arguments: self.calls.append((name, *arguments))

    return type("Consumer", (), {"calls": [], **{name: noting(name) for name in names}})()


MANDATORY = ("begin", "change", "commit")


def test_only_begin_change_and_commit_are_mandatory() -> None:
    capabilities = capabilities_of(with_callbacks(*MANDATORY))
    assert not capabilities.streaming
    assert not capabilities.two_phase
    for missing in MANDATORY:
        with pytest.raises(ConsumerError, match=f"requires the callback {missing}"):
            capabilities_of(with_callbacks(*(name for name in MANDATORY if name != missing)))
    with pytest.raises(ConsumerError, match="callbacks begin, change, commit"):
        capabilities_of(object())


@pytest.mark.parametrize("family", [STREAM_REQUIRED, PREPARE_REQUIRED])
def test_a_family_is_whole_or_absent(family: tuple[str, ...]) -> None:
    assert capabilities_of(with_callbacks(*MANDATORY, *family))
    for missing in family:
        rest = [name for name in family if name != missing]
        with pytest.raises(ConsumerError, match=rf"requires the callback {missing}\n"):
            capabilities_of(with_callbacks(*MANDATORY, *rest))
        others = "|".join(name for name in family if name != missing)
        with pytest.raises(ConsumerError, match=others):
            capabilities_of(with_callbacks(*MANDATORY, missing))


@pytest.mark.parametrize(
    "optional", ["stream_message", "stream_truncate", "filter_prepare", "stream_prepare"]
)
def test_an_optional_callback_of_a_family_needs_the_family(optional: str) -> None:
    with pytest.raises(ConsumerError, match="requires the callback"):
        capabilities_of(with_callbacks(*MANDATORY, optional))


def test_both_families_need_stream_prepare() -> None:
    both = (*MANDATORY, *STREAM_REQUIRED, *PREPARE_REQUIRED)
    with pytest.raises(ConsumerError, match="stream_prepare"):
        capabilities_of(with_callbacks(*both))
    capabilities = capabilities_of(with_callbacks(*both, "stream_prepare"))
    assert capabilities.streaming
    assert capabilities.two_phase


def row(xid: int, *, lsn: int = 0x15A3F20) -> Event:
    return Event("change", Transaction(xid), lsn, Change(lsn, TABLE, "insert", new=("1",)))


def whole(xid: int, origin: str | None = None) -> list[Event]:
    of = Transaction(xid, 100, origin=origin)
    return [Event("begin", of, 100), row(xid), Event("commit", of, 100)]


def test_startup_first_and_shutdown_last_also_after_a_failure() -> None:
    consumer = with_callbacks("startup", *MANDATORY, "shutdown")
    with Delivery(consumer, STARTUP) as delivery:
        delivery.take(whole(1))
    assert [call[0] for call in consumer.calls] == ["startup", "begin", "change", "commit", "shutdown"]
    consumer.calls.clear()
    with pytest.raises(ProtocolError), Delivery(consumer, STARTUP):
        raise ProtocolError("damaged")
    assert [call[0] for call in consumer.calls] == ["startup", "shutdown"]


def test_what_is_not_implemented_is_passed_over() -> None:
    consumer = with_callbacks(*MANDATORY)
    with Delivery(consumer, STARTUP) as delivery:
        delivery.take([Event("message", None, 5, Message(5, False, "p", b""))])
    assert consumer.calls == []


@pytest.mark.parametrize("callback", MANDATORY)
def test_a_failure_names_callback_transaction_and_position(callback: str) -> None:
    class Broken(FullConsumer):
        pass

    def fail(*_: Any) -> None:
        raise KeyError("row value 4711")

    setattr(Broken, callback, fail)
    with pytest.raises(ConsumerError) as raised, Delivery(Broken(), STARTUP) as delivery:
        delivery.take(whole(752))
    error = raised.value
    at = "0/15A3F20" if callback == "change" else "0/64"
    assert f"in callback {callback}, transaction 752, at {at}" in str(error)
    assert (error.callback, error.xid) == (callback, 752)
    assert isinstance(error.__cause__, KeyError)
    assert "4711" not in str(error)
    assert "test_consumer.py, line" in str(error)


def test_an_error_of_our_own_keeps_its_kind_and_gets_the_context() -> None:
    class Full(FullConsumer):
        def change(self, transaction: Transaction, change: Change, /) -> None:
            raise ChangeLogError("the disk is full", where="/data")

    with pytest.raises(ChangeLogError) as raised, Delivery(Full(), STARTUP) as delivery:
        delivery.take(whole(752))
    assert "where: /data; in callback change, transaction 752, at 0/15A3F20" in str(raised.value)


def test_the_failure_of_shutdown_does_not_hide_the_first() -> None:
    class Broken(FullConsumer):
        def change(self, transaction: Transaction, change: Change, /) -> None:
            raise ValueError

        def shutdown(self) -> None:
            raise OSError

    with pytest.raises(ConsumerError, match="in callback change"), Delivery(Broken(), STARTUP) as delivery:
        delivery.take(whole(1))
    with pytest.raises(ConsumerError, match="in callback shutdown"), Delivery(Broken(), STARTUP):
        pass


def test_nothing_is_shown_of_an_origin_that_is_filtered() -> None:
    class Own(FullConsumer):
        def __init__(self) -> None:
            self.asked: list[str | None] = []
            self.begun: list[int | None] = []
            self.rows = 0

        def filter_by_origin(self, origin: str | None, /) -> bool:
            self.asked.append(origin)
            return origin is not None

        def begin(self, transaction: Transaction, /) -> None:
            self.begun.append(transaction.xid)

        def change(self, transaction: Transaction, change: Change, /) -> None:
            self.rows += 1

    consumer = Own()
    with Delivery(consumer, STARTUP) as delivery:
        delivery.take([*whole(1), *whole(2, "elsewhere"), *whole(3), *whole(2)])
    assert (consumer.begun, consumer.rows) == ([1, 3, 2], 3)
    assert consumer.asked == [None, "elsewhere", None, None]


def prepared(xid: int, gid: str, outcome: str) -> list[Event]:
    of = Transaction(xid, 100, 110, 5, gid=gid)
    end = Transaction(xid, 200, 210, 9, gid=gid)
    assert outcome in ("commit_prepared", "rollback_prepared")
    final = Event("commit_prepared", end, 200) if outcome[0] == "c" else Event("rollback_prepared", end, 200)
    return [Event("begin_prepare", of, 100), row(xid), Event("prepare", of, 100), *whole(99), final]


def names(consumer: Any) -> list[tuple[str, int | None]]:
    return [(call[0], call[1].xid) for call in consumer.calls]


def test_prepared_transactions_come_whole_to_one_without_the_family() -> None:
    consumer = with_callbacks(*MANDATORY)
    with Delivery(consumer, STARTUP) as delivery:
        delivery.take(prepared(1, "a", "commit_prepared") + prepared(2, "b", "rollback_prepared"))
    between = [("begin", 99), ("change", 99), ("commit", 99)]
    assert names(consumer) == [*between, ("begin", 1), ("change", 1), ("commit", 1), *between]
    begun = next(call[1] for call in consumer.calls if call[1].xid == 1)
    assert (begun.commit_lsn, begun.end_lsn, begun.commit_time) == (200, 210, 9)


def test_filter_prepare_makes_an_ordinary_transaction_of_one() -> None:
    consumer = with_callbacks(*MANDATORY, *PREPARE_REQUIRED)
    consumer.filter_prepare = lambda xid, gid: "late" in gid
    with Delivery(consumer, STARTUP) as delivery:
        delivery.take(prepared(1, "late", "commit_prepared") + prepared(2, "now", "commit_prepared"))
    assert [name for name in names(consumer) if name[1] != 99] == [
        ("begin", 1), ("change", 1), ("commit", 1),
        ("begin_prepare", 2), ("change", 2), ("prepare", 2), ("commit_prepared", 2),
    ]  # fmt: skip
