"""What there is to say to whom, as pure functions of what they have heard and of what is known now.

What is wrong is not judged here: items are the alarms of a look, the tables that verifications found
different, and steps that fail.  A note (`infra.notify.notified`) has three parts:

    now        what is wrong: key → an item
    failing    step → how often it has failed since it last worked
    receivers  name → ``notified`` (key → when, and what is said at its end), ``late`` (events that it has
               not heard of yet), ``tried`` (when), ``failed`` (whether it did not take that), ``claimed``
               (until when a process is sending)

Times are seconds since 1970.  Invariant: a receiver that takes its messages hears once of each beginning and
of each end, and again of what lasts after ``repeat``; one that takes none hears of it when it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from slotlake.decoder.errors import BusyError, SlotlakeError
from slotlake.infra.reports import Alarm

if TYPE_CHECKING:
    from slotlake.infra.config.notify import ReceiverSection

Note = dict[str, Any]
Item = dict[str, Any]
AGAIN_SECONDS: Final = 60.0  # until a receiver that did not answer is tried again
CLAIM_SECONDS: Final = 60.0
_FAILURES_MIN, _FAILING_SECONDS = 3, 60.0  # of errors that waiting may mend
_LATE_MAX = 20
_LINES_MAX = 10
_CHARACTERS_MAX = 400
_NO_PIPELINE = ("not initialised", "dropped")
# One of these works only after the others have.
_WORKED_BEFORE = {
    "sync": ("pull", "apply", "publish", "confirm"),
    "confirm": ("pull", "apply", "publish", "sync"),
}
_OF_AIRFLOW = "alarm/paused/"  # only the monitor's look knows


@dataclass(frozen=True)
class Looked:
    """A look at both sides.

    Attributes:
        status: the status report.
        more: alarms that are not in it; None: whether there are some is not known.
    """

    status: Mapping[str, Any]
    more: Sequence[Alarm] | None = None


@dataclass(frozen=True)
class Stepped:
    """A step has ended; ``error`` is None if it did its work."""

    step: str
    error: SlotlakeError | None = None


@dataclass(frozen=True)
class Recovered:
    """`recover` has repaired the pipeline; ``done``: what it did."""

    done: Sequence[str]


Fact = Looked | Stepped | Recovered


@dataclass(frozen=True)
class Message:
    """What one receiver is to hear.

    Attributes:
        keys: of the items that it says are wrong.
        over: of those that it says are over.
        level: ``broken``, ``warning`` or ``well``: of the worst that it says.
    """

    title: str
    lines: list[str]
    level: str
    keys: list[str] = field(default_factory=list)
    over: list[str] = field(default_factory=list)


def noted(note: Note, fact: Fact, names: Iterable[str], now: float) -> Note:
    """Return the note after a fact.

    Args:
        names: of the receivers, which all hear of events.
    """
    note = {"now": {}, "failing": {}, "receivers": {}, **deepcopy(note)}
    if isinstance(fact, Looked):
        _look(note, fact, now)
    elif isinstance(fact, Stepped):
        _step(note, fact, now)
    else:
        text = f"recovered: {'; '.join(fact.done) or 'nothing was left to do'}"
        note["failing"] = {}
        for name in names:
            late = receiver_of(note, name)["late"]
            late.append(_shortened(text))
            del late[:-_LATE_MAX]
    failures = {f"failure/{step}": _failure(step, entry) for step, entry in note["failing"].items()}
    lasting = {key: item for key, item in failures.items() if item is not None}
    rest = {key: item for key, item in note["now"].items() if not key.startswith("failure/")}
    note["now"] = rest | {
        key: {**item, "since": note["failing"][key[8:]]["since"]} for key, item in lasting.items()
    }
    return note


def receiver_of(note: Note, name: str) -> Note:
    """Return what the note has of a receiver; it gets an entry if it has none."""
    entry: Note = note["receivers"].setdefault(name, {})
    for key, value in {"notified": {}, "late": [], "tried": 0.0, "failed": False, "claimed": 0.0}.items():
        entry.setdefault(key, value)
    return entry


def message_for(
    note: Note, name: str, receiver: ReceiverSection, pipeline: str, repeat: float | None, now: float
) -> Message | None:
    """Return what a receiver is to hear now; None if there is nothing, or it is not to be tried now."""
    entry = receiver_of(note, name)
    if entry["claimed"] > now or (entry["failed"] and now - entry["tried"] < AGAIN_SECONDS):
        return None
    wanted = {key: item for key, item in note["now"].items() if _is_for(receiver, item)}
    new = {key: item for key, item in wanted.items() if key not in entry["notified"]}
    over = {key: each["end"] for key, each in entry["notified"].items() if key not in note["now"]}
    is_due = {key for key, each in entry["notified"].items() if repeat and now - each["at"] >= repeat}
    again = {key: item for key, item in wanted.items() if key in is_due}
    late = entry["late"] if receiver.kinds is None or "recovery" in receiver.kinds else []
    if not (new or over or again or late):
        return None
    lasting = len(wanted) - len(new) - len(again)
    lines = [
        *_listed(new.values(), _wrong),
        *_listed(again.values(), lambda item: _wrong(item, lasts=True)),
        *_listed(late, lambda text: [text]),
        *_listed(over.values(), lambda text: [f"over: {text}"]),
    ]
    if lasting:
        lines.append(f"{lasting:,} more that you have heard of {'last' if lasting > 1 else 'lasts'}")
    first = next(iter([*(i["what"] for i in (*new.values(), *again.values())), *late, *over.values()]))
    more = len(new) + len(again) + len(late) + len(over) - 1
    is_well = not wanted
    title = f"slotlake {pipeline}: {_shortened(first, 120)}{f', and {more:,} more' if more else ''}"
    said = (*new.values(), *again.values())
    level = "broken" if any(i["level"] == "broken" for i in said) else "warning" if said else "well"
    if is_well and over:
        lines.append("nothing else is wrong")
    return Message(title, lines, level, [*new, *again], [*over])


def with_message(note: Note, name: str, message: Message, now: float, *, taken: bool) -> Note:
    """Return the note after a receiver took a message, or did not."""
    note = deepcopy(note)
    entry = receiver_of(note, name)
    entry.update(tried=now, failed=not taken, claimed=0.0)
    if taken:
        entry["late"] = []
        for key in message.over:
            entry["notified"].pop(key, None)
        for key in message.keys:
            item = note["now"].get(key, {})
            entry["notified"][key] = {"at": now, "end": item.get("end", key.partition("/")[2])}
    return note


def essence(note: Note) -> object:
    """Return of a note what is worth writing it for: not what an alarm's numbers are at each look."""
    failing = {step: each["count"] for step, each in note.get("failing", {}).items()}
    receivers = {name: each for name, each in note.get("receivers", {}).items() if any(each.values())}
    return sorted(note.get("now", {})), failing, receivers


# -- what is wrong ----------------------------------------------------------------------------------------


def _look(note: Note, look: Looked, now: float) -> None:
    status = look.status
    if status["state"] in _NO_PIPELINE:
        note["failing"] = {}
    if str(status["state"]).endswith("unreachable"):  # what was wrong may be so still
        return
    items = dict(_items(status)) | {f"alarm/{a.kind}/{a.about}": _alarm(a) for a in look.more or ()}
    for key, item in note["now"].items():
        if key in items:
            items[key]["since"] = item["since"]
        elif key.startswith("failure/") or (look.more is None and key.startswith(_OF_AIRFLOW)):
            items[key] = item
    note["now"] = {key: {"since": now, **item} for key, item in items.items()}


def _items(status: Mapping[str, Any]) -> Iterable[tuple[str, Item]]:
    if status["state"] in _NO_PIPELINE:
        return
    seen: dict[str, int] = {}
    for each in status["alarms"]:
        alarm = Alarm(**each)
        key = f"alarm/{alarm.kind}/{alarm.about}"
        seen[key] = seen.get(key, 0) + 1
        yield key if seen[key] == 1 else f"{key}/{seen[key]}", _alarm(alarm, str(status["state"]))
    for table in (status.get("verification") or {}).get("different", ()):
        yield (
            f"verification/{table}",
            {
                "kind": "verification",
                "level": "broken",
                "what": f"table {table} differs from the source",
                "way_out": "slotlake verify lists the keys, slotlake backfill reads such rows again",
                "end": f"table {table} is equal to the source again",
            },
        )


def _alarm(alarm: Alarm, state: str = "") -> Item:
    is_aside = alarm.kind == "set aside"
    return {
        "kind": "set_aside" if is_aside else "alarm",
        "level": "broken" if alarm.kind == state else "warning",
        "what": alarm.what,
        "way_out": alarm.way_out,
        "end": f"table {alarm.about} is not set aside any more" if is_aside else _shortened(alarm.what),
    }


def _step(note: Note, stepped: Stepped, now: float) -> None:
    error, failing = stepped.error, note["failing"]
    if error is None:
        for step in (stepped.step, *_WORKED_BEFORE.get(stepped.step, ())):
            failing.pop(step, None)
        return
    if isinstance(error, BusyError):  # another run is at work
        return
    before = failing.get(stepped.step, {"count": 0, "since": now})
    failing[stepped.step] = {
        "count": before["count"] + 1,
        "since": before["since"],
        "last": now,
        "what": _shortened(error.what),
        "way_out": _shortened(error.way_out),
        "retryable": bool(error.retryable),
    }


def _failure(step: str, entry: Mapping[str, Any]) -> Item | None:
    """Return the item of a step that fails; None while it may mend itself."""
    lasted = entry["last"] - entry["since"]
    if entry["retryable"] and (entry["count"] < _FAILURES_MIN or lasted < _FAILING_SECONDS):
        return None
    times = "" if entry["count"] == 1 else f" ({entry['count']:,} times since {_moment(entry['since'])})"
    return {
        "kind": "failure",
        "level": "broken",
        "what": f"{step} fails{times}: {entry['what']}",
        "way_out": entry["way_out"],
        "end": f"{step} does not fail any more",
    }


# -- the words --------------------------------------------------------------------------------------------


def _is_for(receiver: ReceiverSection, item: Item) -> bool:
    return (receiver.level == "warning" or item["level"] == "broken") and (
        receiver.kinds is None or item["kind"] in receiver.kinds
    )


def _wrong(item: Item, *, lasts: bool = False) -> list[str]:
    since = f" (since {_moment(item['since'])})" if lasts else ""
    way_out = [f"  what to do: {_shortened(item['way_out'])}"] if item["way_out"] else []
    return [f"{_shortened(item['what'])}{since}", *way_out]


def _listed(entries: Iterable[Any], lines_of: Callable[[Any], list[str]]) -> list[str]:
    several = list(entries)
    lines = [line for each in several[:_LINES_MAX] for line in lines_of(each)]
    more = len(several) - _LINES_MAX
    return [*lines, *([f"and {more:,} more: slotlake status --all lists them"] if more > 0 else [])]


def _shortened(text: str, characters: int = _CHARACTERS_MAX) -> str:
    return text if len(text) <= characters else f"{text[: characters - 1]}…"


def _moment(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
