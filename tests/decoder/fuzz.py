"""Damaged streams into every reader: ``python -m tests.decoder.fuzz --streams 5000000 --seed 1``.

A damaged stream is either refused with a `ProtocolError`, by the plain and the compiled reader alike, or it
means the same to both.  One of protocol 2 to 4 goes through the assembler, to which the same applies, also
for what never comes out; what comes out is read both ways again.  So are replication frames and binary COPY
in both of its uses; the plugins' readers, of which there is one each, refuse with a place or read.  Anything
else, any other exception, a hang or memory without bound, is a find: it is made as small as it goes and
written to a file in the form of the corpus (tests/vectors/fuzz).

All compiled loops run between guard pages (`guarded`), and what is refused ends with the message that is at
fault: one byte read or written too far ends the process.  The stream at work then stands in
``<finds>/at-work-<seed>``; ``--crashed FILE`` makes a file of the corpus of it.

Many mutants are made of each generated stream.  Those that both readers should take are decoded together,
as one stream, since building Arrow tables costs a hundred times the walk.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import mmap
import pickle
import random
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from tests.decoder import fuzz_frames, fuzz_plugins
from tests.decoder.agreement import Stream, columnar, plain
from tests.decoder.damage import damaged
from tests.decoder.fuzz_cases import Asked, minimised, write_case
from tests.decoder.fuzz_judges import comes_out, decoded, judge, refusal, upto
from tests.decoder.fuzz_report import Report, write_corpus
from tests.decoder.guarded import GuardedKernel, guarded_kernels
from tests.decoder.histories import Options, random_options, serve
from tests.decoder.lean import lean

T = TypeVar("T")
# Of all streams; a round is of the kind that lags behind its share most.
SHARES = {"plain": 0.26, "assembled": 0.34, "framed": 0.12, "copied": 0.08, "changes": 0.08, "plugged": 0.12}
_MUTANTS = 250  # of each generated stream
_OPEN_COMPARED = 4  # of the mutants that end inside a transaction every so many-th is compared by value
_CUT = 0.02  # of the streams for the assembler: what waits goes to disk
_STUCK_SECONDS = 60
_COLD_STREAMS = 20_000
_MEMORY_BYTES_MAX = 3 << 30
_AT_WORK_BYTES = 1 << 20


class Fuzzer:
    """Makes mutants and judges them.

    Args:
        seed: gives the same run again.
        finds: where to write what is wrong.
    """

    def __init__(self, seed: int, finds: Path) -> None:
        self._draw, self._finds = random.Random(seed), finds
        self._at_work = _AtWork(finds / f"at-work-{seed}")
        self.report = Report()

    def round(self) -> None:
        """All mutants of one generated stream."""
        cold = self.report.total < _COLD_STREAMS  # loops may still have to be compiled
        faulthandler.dump_traceback_later(_STUCK_SECONDS * (10 if cold else 1), exit=True)
        streams, total = self.report.streams, self.report.total
        kind = max(SHARES, key=lambda each: SHARES[each] * (total + _MUTANTS) - streams[each])
        if kind in ("plain", "assembled"):
            self._of_messages(kind)
        else:
            self._of_frames(kind)
        faulthandler.cancel_dump_traceback_later()

    def _of_messages(self, kind: str) -> None:
        draw = self._draw
        options = Options("off", False, draw.random() < 0.3)
        while kind == "assembled" and options.streaming == "off" and not options.two_phase:
            options = random_options(draw)
        others = [serve(draw, options, draw.choice([6, 10, 16])).stream for _ in range(3)]
        base = max(others, key=len)
        if not base:
            return
        mutants = [damaged(draw, base, others) for _ in range(_MUTANTS)]
        if kind == "plain":
            self._plain_round(options, mutants)
        else:
            self._assembled_round(options, mutants)

    def _of_frames(self, kind: str) -> None:
        draw, make = self._draw, _MAKERS[kind]
        asked, base = make(draw)
        others = [make(draw)[1] for _ in range(2)]
        if not base:
            return
        for _ in range(_MUTANTS):
            stream = damaged(draw, base, [base, *others])
            refused = self._judged(asked, stream)
            self.report.note(kind, asked, stream, refused)

    # Protocol 1: one refusal, or one meaning.

    def _plain_round(self, options: Options, mutants: list[Stream]) -> None:
        binary, together = options.binary, []
        for mutant in mutants:
            found = self._guarded(options, mutant, partial(upto, mutant, partial(plain, binary=binary)))
            if found is None:
                self.report.note("plain", options, mutant, None)
                continue
            refused, _, stream = found
            self.report.note("plain", options, stream, refused)
            if refused:
                self._refused_too(options, stream, refused)
            elif stream and stream[-1][1][:1] == b"C":
                together.append(stream)
            elif self.report.taken["plain"] % _OPEN_COMPARED == 0:
                self._judged(options, stream)
            else:
                other = self._guarded(
                    options, stream, partial(refusal, partial(decoded, stream, binary=binary))
                )
                if other and other[0]:
                    self._find(options, stream, "plain: taken, columnar: refused")
        for stream in self._not_alike(options, together):
            self._judged(options, stream)

    def _refused_too(self, options: Options, stream: Stream, refused: str) -> None:
        other = self._guarded(
            options, stream, lambda: refusal(lambda: decoded(stream, binary=options.binary))
        )
        if other is not None and not other[0]:
            self._find(options, stream, f"plain: {refused}, columnar: taken")

    def _not_alike(self, options: Options, streams: list[Stream]) -> list[Stream]:
        """All of them, if decoded together they do not mean the same to both readers; else none."""
        whole, binary = [message for stream in streams for message in stream], options.binary
        asked = Options("off", False, binary)
        first = self._guarded(asked, whole, lambda: refusal(lambda: plain(whole, binary=binary)))
        second = self._guarded(asked, whole, lambda: refusal(lambda: columnar(whole, binary=binary)))
        return [] if first is not None and first == second and not first[0] else streams

    # Protocol 2 to 4.

    def _assembled_round(self, options: Options, mutants: list[Stream]) -> None:
        binary = options.binary
        together: list[tuple[Stream, Stream]] = []
        for mutant in mutants:
            cuts = None
            if self._draw.random() < _CUT:
                cuts = [self._draw.randrange(len(mutant) + 1) for _ in range(self._draw.randrange(1, 4))]
            found = self._guarded(options, mutant, partial(comes_out, options, mutant, cuts))
            refused, stream, whole = found if found is not None else (None, mutant, None)
            self.report.note("assembled", options, stream, refused)
            if not whole:
                continue
            values = self._guarded(options, stream, partial(refusal, partial(plain, whole, binary=binary)))
            if values is not None and not values[0]:
                together.append((stream, whole))
            elif values is not None:
                self._refused_too(Options("off", False, binary), whole, values[0])
        if self._not_alike(options, [whole for _, whole in together]):
            for stream, _ in together:
                self._judged(options, stream)

    # What is wrong.

    def _guarded(self, asked: Asked, stream: Stream, read: Callable[[], T]) -> T | None:
        """What it is read as, or None after a find."""
        self._at_work.note(asked, stream)
        try:
            return read()
        except Exception as error:  # noqa: BLE001 - any error is what the fuzzer looks for
            self._find(asked, stream, f"{type(error).__name__}: {error}")
            return None

    def _judged(self, asked: Asked, stream: Stream) -> str | None:
        return self._guarded(asked, stream, lambda: judge(asked, stream))

    def _find(self, asked: Asked, stream: Stream, note: str) -> None:
        small = minimised(stream, lambda s: _finds(asked, s))
        name = hashlib.sha256(b"".join(payload for _, payload in small)).hexdigest()[:12]
        path, note = self._finds / f"find-{name}.hex", (note.splitlines() or ["?"])[0][:300]
        if path not in self.report.finds:
            write_case(path, asked, small, note)
            self.report.finds.append(path)
            print(f"find: {note}\n  {path}", file=sys.stderr, flush=True)


_MAKERS: dict[str, Callable[[random.Random], tuple[Asked, Stream]]] = {
    "framed": fuzz_frames.framed,
    "copied": fuzz_frames.copied,
    "changes": fuzz_frames.copied_changes,
    "plugged": fuzz_plugins.plugged,
}


class _AtWork:
    """What is judged now, in a file that outlives the process."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb+") as file:
            file.truncate(_AT_WORK_BYTES)
            self._map = mmap.mmap(file.fileno(), _AT_WORK_BYTES)

    def note(self, asked: Asked, stream: Stream) -> None:
        content = pickle.dumps((asked, stream))
        if len(content) <= _AT_WORK_BYTES:
            self._map[: len(content)] = content


def _finds(asked: Asked, stream: Stream) -> bool:
    try:
        judge(asked, stream)
    except Exception:  # noqa: BLE001 - any error is what the fuzzer looks for
        return True
    return False


def run(seed: int, streams: int, seconds: float, finds: Path) -> Report:
    """Fuzz until so many streams were read or so much time has passed."""
    fuzzer, end = Fuzzer(seed, finds), time.monotonic() + seconds
    told = time.monotonic()
    with guarded_kernels(), lean():
        while fuzzer.report.total < streams and time.monotonic() < end:
            fuzzer.round()
            if time.monotonic() - told > 60:
                told = time.monotonic()
                print(fuzzer.report.line(), flush=True)
    return fuzzer.report


def case_of_crash(at_work: Path) -> Path:
    """What was judged when a process ended, as a file of the corpus."""
    asked, stream = pickle.loads(at_work.read_bytes())  # written by a run of this
    path = at_work.with_suffix(".hex")
    write_case(path, asked, stream, "the process ended")
    return path


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=5_000_000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--finds", type=Path, default=Path("fuzz-finds"))
    parser.add_argument("--corpus", type=Path, help="write one small stream for each new refusal here")
    parser.add_argument("--crashed", type=Path, help="what was judged when a run broke off, as a file")
    arguments = parser.parse_args()
    if arguments.crashed:
        print(case_of_crash(arguments.crashed))
        return 0
    faulthandler.enable()
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    resource.setrlimit(resource.RLIMIT_AS, (held + _MEMORY_BYTES_MAX, resource.RLIM_INFINITY))
    begun = time.monotonic()
    report = run(arguments.seed, arguments.streams, arguments.seconds, arguments.finds)
    took, peak = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"seed {arguments.seed}: {report.line()}")
    print(f"{took:.0f} s, {report.total / took:.0f}/s, {time.process_time():.0f} s of processor, {peak} MiB")
    print(f"refused for {len(report.reasons)} reasons")
    print(f"{GuardedKernel.calls:,} calls of compiled loops between guard pages")
    if arguments.corpus:
        print(f"new in the corpus: {write_corpus(report, arguments.corpus)}")
    print(f"finds: {len(report.finds)}")
    return 1 if report.finds else 0


if __name__ == "__main__":
    sys.exit(main())
