"""Damaged streams into every reader: ``python -m tests.decoder.fuzz --streams 5000000 --seed 1``.

A damaged stream is either refused with a `ProtocolError`, by the plain and the columnar reader alike, or it
means the same to both.  One of protocol 2 to 4 goes through the assembler as well, to which the same applies,
also for what never comes out; a value that its column cannot hold is found when it comes out.  Anything else,
any other exception, a hang or memory without bound, is a find: it is made as small as it goes and written to
a file in the form of the corpus (tests/vectors/fuzz).

Many mutants are made of each generated stream.  Those that both readers should take are decoded together,
as one stream, since building Arrow tables costs a hundred times the walk.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import hashlib
import random
import re
import resource
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from decoder.buffer import MessageBuffer
from decoder.columnar import Decoder
from decoder.errors import ChangeLogError, ProtocolError
from decoder.lsn import format_lsn, parse_lsn
from decoder.relations import Relation
from decoder.transactions import Result, Transaction, reference_transactions
from tests.decoder.agreement import Stream, columnar, plain
from tests.decoder.assembling import assembled, scratch, without_names
from tests.decoder.damage import damaged
from tests.decoder.histories import Options, random_options, serve

CORPUS = Path(__file__).parents[1] / "vectors" / "fuzz"
_OF_VALUES = re.compile("in (a )?column ")  # found when a column is read
# File names tell small from capital letters where a file system does not.
_LETTERS = {tag: f"{'small-' if tag.islower() else ''}{tag}" for tag in "BCORYIUDTMSEcAbPKrp"}
_MUTANTS = 250  # of each generated stream
_OPEN_COMPARED = 4  # of the mutants that end inside a transaction every so many-th is compared by value
_STUCK_SECONDS = 60
_COLD_STREAMS = 20_000
_MEMORY_BYTES_MAX = 3 << 30


class FindError(AssertionError):
    """The readers disagree, or one broke."""


@dataclass
class Report:
    """What a run did.

    Attributes:
        streams: mutants read, by the plain and the columnar reader (protocol 1) or the assembler (2 to 4).
        reasons: refusals by message type and reason.
        finds: files written.
    """

    streams: int = 0
    plain_taken: int = 0
    assembled: int = 0
    assembled_taken: int = 0
    reasons: collections.Counter[tuple[str, str]] = field(default_factory=collections.Counter)
    smallest: dict[tuple[str, str], tuple[Options, Stream]] = field(default_factory=dict)
    finds: list[Path] = field(default_factory=list)


def write_case(path: Path, options: Options, stream: Stream, note: str = "") -> None:
    """A stream as a file of the corpus: the options, then a line a message."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = f"streaming={options.streaming} two_phase={options.two_phase} binary={options.binary} | {note}\n"
    path.write_text(head + "".join(f"{format_lsn(lsn)} {payload.hex()}\n" for lsn, payload in stream))


def read_case(path: Path) -> tuple[Options, Stream, str]:
    """The options, the stream, and the note."""
    head, *lines = path.read_text().splitlines()
    settings, _, note = head.partition(" | ")
    said = dict(part.split("=") for part in settings.split())
    options = Options(said["streaming"], said["two_phase"] == "True", said["binary"] == "True")  # type: ignore[arg-type]
    parts = (line.partition(" ") for line in lines)
    return options, [(parse_lsn(lsn), bytes.fromhex(payload)) for lsn, _, payload in parts], note


def judge(options: Options, stream: Stream) -> str:
    """Read a stream in every way; returns why it is refused, "" if it is taken.

    Raises:
        FindError: the ways differ, or one fails otherwise than it may.
    """
    if options.streaming == "off" and not options.two_phase:
        return _judge_plain(stream, binary=options.binary)
    return _judge_assembled(options, stream)[0]


def _refusal(read: Callable[[], object]) -> tuple[str, object]:
    try:
        return "", read()
    except ProtocolError as error:
        return f"{error.message_type}: {error.what}", None


def _judge_plain(stream: Stream, *, binary: bool) -> str:
    refused, meaning = _refusal(lambda: plain(stream, binary=binary))
    other, found = _refusal(lambda: columnar(stream, binary=binary))
    if bool(refused) != bool(other):
        raise FindError(f"plain: {refused or 'taken'}, columnar: {other or 'taken'}")
    if meaning != found:
        raise FindError("plain and columnar read other values")
    return refused


def _judge_assembled(options: Options, stream: Stream) -> tuple[str, str]:
    """Why the reference refuses the stream, and why the assembler does."""

    def through() -> list[Result]:
        with scratch() as folder:
            try:
                whole = assembled(stream, options=options.reader(), folder=Path(folder))
            except ChangeLogError as error:  # an outcome of what was prepared in another life
                raise ProtocolError(error.what, message_type="K") from None
            decoder, buffer = Decoder(binary=options.binary), MessageBuffer()
            for lsn, payload in whole:
                buffer.append(payload, lsn)
            decoder.decode(buffer, first_seq=0, first_txn=0, partial=True)
            return _nameless(reference_transactions(whole, binary=options.binary))

    refused, meaning = _refusal(lambda: _nameless(reference_transactions(stream, **options.reader())))
    other, found = _refusal(through)
    if other and not refused and not _OF_VALUES.search(other):
        raise FindError(f"the plain reader takes it, the assembler does not: {other}")
    if refused and not other:
        raise FindError(f"the assembler takes what the plain reader does not: {refused}")
    if not refused and not other and meaning != found:
        raise FindError("the plain reader and the assembler read other values")
    return refused, other


def _nameless(results: Iterable[Result]) -> list[Result]:
    """Without the names of transactions, which plain ones lack, and of user types.

    A type is named before it is used by a server, which a damaged stream need not keep to.
    """
    found: list[Result] = []
    for result in without_names(list(results)):
        if isinstance(result, Transaction):
            changes = (replace(c, relations=tuple(map(_untyped, c.relations))) for c in result.changes)
            result = replace(result, changes=tuple(changes))  # noqa: PLW2901
        found.append(result)
    return found


@lru_cache(1 << 12)
def _untyped(relation: Relation) -> Relation:
    return replace(relation, columns=tuple(replace(c, type_name="") for c in relation.columns))


class Fuzzer:
    """Makes mutants and judges them.

    Args:
        seed: gives the same run again.
        finds: where to write what is wrong.
    """

    def __init__(self, seed: int, finds: Path) -> None:
        self._draw, self._finds = random.Random(seed), finds
        self._buffer = MessageBuffer()
        self.report = Report()

    def round(self) -> None:
        """All mutants of one generated stream."""
        cold = self.report.streams < _COLD_STREAMS  # loops may still have to be compiled
        faulthandler.dump_traceback_later(_STUCK_SECONDS * (10 if cold else 1), exit=True)
        draw = self._draw
        options = Options("off", False, draw.random() < 0.3)
        options = random_options(draw) if draw.random() < 0.05 else options
        others = [serve(draw, options, draw.choice([6, 10, 16])).stream for _ in range(3)]
        base = max(others, key=len)
        if not base:
            return
        if options.streaming == "off" and not options.two_phase:
            self._plain_round(options, [damaged(draw, base, others) for _ in range(_MUTANTS)])
        else:
            for _ in range(_MUTANTS // 10):
                self._assembled(options, damaged(draw, base, others))
        faulthandler.cancel_dump_traceback_later()

    def _plain_round(self, options: Options, mutants: list[Stream]) -> None:
        binary, together = options.binary, []
        for stream in mutants:
            self.report.streams += 1
            refused, _ = self._guarded(options, stream, lambda s=stream: plain(s, binary=binary))
            if refused:
                self._note(options, stream, refused)
                other, _ = self._guarded(options, stream, lambda s=stream: self._decoded(s, binary))
                if other == "":
                    self._find(options, stream, f"plain: {refused}, columnar: taken")
            elif stream and stream[-1][1][:1] == b"C":
                self.report.plain_taken += 1
                together.append(stream)
            elif refused is not None:
                self.report.plain_taken += 1
                if self.report.plain_taken % _OPEN_COMPARED == 0:
                    self._judged(options, stream)
                elif self._guarded(options, stream, lambda s=stream: self._decoded(s, binary))[0]:
                    self._find(options, stream, "plain: taken, columnar: refused")
        whole = [message for stream in together for message in stream]
        refused, meaning = self._guarded(options, whole, lambda: plain(whole, binary=binary))
        other, found = self._guarded(options, whole, lambda: columnar(whole, binary=binary))
        if refused or other or meaning != found:
            for stream in together:
                self._judged(options, stream)

    def _decoded(self, stream: Stream, binary: bool) -> None:
        self._buffer.clear()
        for lsn, payload in stream:
            self._buffer.append(payload, lsn)
        Decoder(binary=binary).decode(self._buffer, first_seq=0, first_txn=0, partial=True)

    def _assembled(self, options: Options, stream: Stream) -> None:
        self.report.streams += 1
        self.report.assembled += 1
        try:
            refused, other = _judge_assembled(options, stream)
        except Exception as error:
            self._find(options, stream, f"{type(error).__name__}: {error}")
            return
        if refused:
            self._note(options, stream, refused)
        self.report.assembled_taken += not other

    def _guarded(
        self, options: Options, stream: Stream, read: Callable[[], object]
    ) -> tuple[str | None, object]:
        """Why it is refused ("" if it is not), or None after a find."""
        try:
            return _refusal(read)
        except Exception as error:
            self._find(options, stream, f"{type(error).__name__}: {error}")
            return None, None

    def _judged(self, options: Options, stream: Stream) -> None:
        try:
            judge(options, stream)
        except Exception as error:
            self._find(options, stream, f"{type(error).__name__}: {error}")

    def _note(self, options: Options, stream: Stream, refused: str) -> None:
        key = reason_of(refused)
        self.report.reasons[key] += 1
        known = self.report.smallest.get(key)
        if known is None or _size(stream) < _size(known[1]):
            self.report.smallest[key] = (options, stream)

    def _find(self, options: Options, stream: Stream, note: str) -> None:
        small = minimised(stream, lambda s: _finds(options, s))
        name = hashlib.sha256(b"".join(payload for _, payload in small)).hexdigest()[:12]
        path = self._finds / f"find-{name}.hex"
        if path not in self.report.finds:
            write_case(path, options, small, note.splitlines()[0][:300])
            self.report.finds.append(path)
            print(f"find: {note.splitlines()[0][:300]}\n  {path}", file=sys.stderr)


def _size(stream: Stream) -> tuple[int, int]:
    return len(stream), sum(len(payload) for _, payload in stream)


def _finds(options: Options, stream: Stream) -> bool:
    try:
        judge(options, stream)
    except Exception:
        return True
    return False


def minimised(stream: Stream, holds: Callable[[Stream], bool]) -> Stream:
    """The stream without the messages that do not matter."""
    if not holds(stream):
        return stream
    at = len(stream) - 1
    while at >= 0:
        shorter = stream[:at] + stream[at + 1 :]
        stream = shorter if holds(shorter) else stream
        at -= 1
    return stream


def write_corpus(report: Report, folder: Path) -> int:
    """One small stream for each refusal that was met; how many are new."""
    new = 0
    for (tag, what), (options, stream) in sorted(report.smallest.items()):
        name = re.sub(r"[^a-z0-9]+", "-", what.lower()).strip("-")[:60]
        path = folder / f"{_LETTERS.get(tag, 'other')}-{name}.hex"
        if not path.exists():
            small = minimised(stream, lambda s, o=options, k=(tag, what): _reason(o, s) == k)
            write_case(path, options, small, f"{tag}: {what}")
            new += 1
    return new


def reason_of(refused: str) -> tuple[str, str]:
    """Message type and reason, without what is different each time."""
    tag, _, what = refused.partition(": ")
    return tag if tag in _LETTERS else "?", re.sub(r"\(0x.*|b'.*|'.*|\d+", "#", what)


def _reason(options: Options, stream: Stream) -> tuple[str, str]:
    try:
        return reason_of(judge(options, stream))
    except Exception:
        return "", "find"


def run(seed: int, streams: int, seconds: float, finds: Path) -> Report:
    """Fuzz until so many streams were read or so much time has passed."""
    fuzzer, end = Fuzzer(seed, finds), time.monotonic() + seconds
    told = time.monotonic()
    while fuzzer.report.streams < streams and time.monotonic() < end:
        fuzzer.round()
        if time.monotonic() - told > 60:
            told = time.monotonic()
            print(f"{fuzzer.report.streams} streams, {len(fuzzer.report.finds)} finds", flush=True)
    return fuzzer.report


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=5_000_000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--finds", type=Path, default=Path("fuzz-finds"))
    parser.add_argument("--corpus", type=Path, help="write one small stream for each new refusal here")
    arguments = parser.parse_args()
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    resource.setrlimit(resource.RLIMIT_AS, (held + _MEMORY_BYTES_MAX, resource.RLIM_INFINITY))
    begun = time.monotonic()
    report = run(arguments.seed, arguments.streams, arguments.seconds, arguments.finds)
    took = time.monotonic() - begun
    rate = report.streams / took
    print(f"seed {arguments.seed}: {report.streams:,} damaged streams in {took:.0f} s, {rate:.0f}/s")
    print(f"taken by both readers {report.plain_taken:,}; refused for {len(report.reasons)} reasons")
    print(f"of them of protocol 2 to 4: {report.assembled:,}, taken {report.assembled_taken:,}")
    print(f"memory at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB")
    if arguments.corpus:
        print(f"new in the corpus: {write_corpus(report, arguments.corpus)}")
    print(f"finds: {[str(path) for path in report.finds]}")
    return 1 if report.finds else 0


if __name__ == "__main__":
    sys.exit(main())
