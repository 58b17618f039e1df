"""The standing puller: one long connection to the slot, from which the pipeline's runs get their batches.

`slotlake pull --follow` connects once (why: infra/opened/standing.py); runs ask it for a batch, and it
confirms for them, because the slot is its own as long as it lives.

Invariant: it decides nothing.  Which batch is next follows from the lake's position, which the run sends
along; if the stream is not at that position, the stream is begun again there.  When the puller does not run,
or ends, runs connect by themselves.

Both sides talk through a socket of this machine and this user, with a secret (multiprocessing.connection);
its address is in ``puller.json`` in the pipeline's state folder.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotlake.decoder.changelog.batches import Batch
from slotlake.decoder.errors import BusyError, SlotlakeError
from slotlake.decoder.server.reuse import sessions_go_on
from slotlake.infra.config.private_files import with_private_files
from slotlake.infra.opened.pipeline_locks import FOLLOWING
from slotlake.infra.opened.standing import StandingStream
from slotlake.infra.source.bell import Bell

if TYPE_CHECKING:
    from slotlake.infra.config.pipeline_file import PipelineFile
    from slotlake.infra.opened.open_pipeline import OpenPipeline

_PLACE = "puller.json"
_LOCK = "puller.lock"
_NAP_SECONDS = 0.02  # a server under load sends news of its WAL thousands of times a second


def batch(pipeline: OpenPipeline, position: int, until: int | None, *, whole: bool = False) -> Batch | None:
    """Get the batch that follows a position from the standing puller.

    Args:
        pipeline: the pipeline, with its state folder.
        position: LSN at which the batch starts.
        until: LSN at which it ends; None for where the source is now.
        whole: take all up to ``until``, however much that is.

    Returns:
        The batch; None if no standing puller runs.

    Raises:
        SlotlakeError: the error of the puller, as if it had happened here.
    """
    if not _place(pipeline.file).exists():
        return None
    answer = _ask(pipeline.file, {"do": "batch", "position": position, "until": until, "whole": whole})
    return None if answer is None else Batch(Path(answer["path"]), answer["manifest"])


def confirm(file: PipelineFile, position: int) -> bool:
    """Have the standing puller confirm a position; return False if none runs."""
    if not _place(file).exists():
        return False
    return _ask(file, {"do": "confirm", "position": position}) is not None


def stop(file: PipelineFile) -> bool:
    """End the standing puller; return False if none runs."""
    return _place(file).exists() and _ask(file, {"do": "stop"}) is not None


def process_id(file: PipelineFile) -> int | None:
    """The standing puller's process id; None if none runs."""
    lock = file.state_dir / _LOCK
    if not lock.exists() or not _place(file).exists():
        return None
    with lock.open("r+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return int(json.loads(_place(file).read_text())["pid"])
    return None


def elsewhere(pipeline: OpenPipeline) -> str | None:
    """Say who serves the pipeline on another machine; None if nobody does, or this machine.

    Raises:
        LockUnreachableError: the database of the lock does not answer.
    """
    if not pipeline.file.shares_state or process_id(pipeline.file) is not None:
        return None
    return pipeline.locks.shared(FOLLOWING).holder()


def _place(file: PipelineFile) -> Path:
    return file.state_dir / _PLACE


def _ask(file: PipelineFile, request: dict[str, Any]) -> dict[str, Any] | None:
    """Send one request and receive its answer; None if no puller is there."""
    try:
        address_file = json.loads(_place(file).read_text())
        channel = Client(address_file["address"], authkey=bytes.fromhex(address_file["secret"]))
    except (OSError, ValueError, KeyError, EOFError, AuthenticationError):
        return None
    with channel:
        try:
            channel.send(request)
            answer: dict[str, Any] = channel.recv()
        except (OSError, EOFError):
            return None
    if (error := answer.get("error")) is not None:
        raise error
    return answer


@with_private_files
def serve(
    pipeline: OpenPipeline,
    notify: Callable[[str], None],
    bell: Bell | None = None,
    began: Callable[[], None] = lambda: None,
) -> None:
    """Serve until stopped (by a signal, or by `stop`).

    Args:
        pipeline: the pipeline, whose lake has a position.
        notify: called with a line of text for each event.
        bell: rings when a transaction has ended that no batch has; None: nobody waits for that.
        began: called when the connection to the slot is open and requests are answered.

    Raises:
        BusyError: another standing puller serves this pipeline.
        SlotlakeError: the lake has no position, or the source cannot be read at the start.
    """
    pipeline.file.state_dir.mkdir(parents=True, exist_ok=True)
    with _only_one(pipeline) as require_lock, _listening(pipeline) as listener:
        server = _Server(pipeline, notify, bell, require_lock)
        try:
            began()
            server.serve(listener)
        finally:
            server.end()


class _Server:
    def __init__(
        self,
        pipeline: OpenPipeline,
        notify: Callable[[str], None],
        bell: Bell | None,
        require_lock: Callable[[], None],
    ) -> None:
        self._notify, self._bell, self._require_lock = notify, bell, require_lock
        self._stopped = self._rang = False
        self._stream = StandingStream(pipeline.pulling, notify)
        self._stream.at(pipeline.position())

    def serve(self, listener: Listener) -> None:
        handle = listener._listener._socket  # type: ignore[attr-defined]  # noqa: SLF001 - the only way to wait
        while not self._stopped:
            socket = self._stream.socket if self._bell is not None and self._stream.looks_ahead else None
            ready = wait([handle] if socket is None else [handle, socket], self._stream.wait_seconds)
            if handle in ready:
                with suppress(OSError, EOFError, AuthenticationError), listener.accept() as channel:
                    self._answer(channel)
                self._look_ahead()
            elif ready:
                self._look_ahead()
                time.sleep(_NAP_SECONDS)
            else:
                self._stream.keep_alive()

    def _look_ahead(self) -> None:
        """Receive what has arrived; ring once if a transaction has ended."""
        if self._bell is not None and self._stream.look_ahead() and not self._rang:
            self._rang = True
            self._bell.ring()

    def _answer(self, channel: Connection[Any, Any]) -> None:
        request = channel.recv()
        try:
            with sessions_go_on():
                answer = self._do(request)
        except SlotlakeError as error:
            self._notify(f"failed: {error.what}")
            answer = {"error": error}
        channel.send(answer)

    def _do(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "stop":
            self._stopped = True
            return {}
        if request["do"] == "confirm":
            self._stream.at(request["position"]).confirm(request["position"])
            return {}
        if self._bell is not None:
            self._rang = False
            self._bell.forget()  # the batch takes all that it rang for
        self._see_lock()
        batch = self._stream.batch(request["position"], request["until"], whole=request["whole"])
        if self._bell is None and not batch.empty:
            self._notify(f"{batch.name}: {batch.transactions} transactions, {batch.changes} changes")
        return {"path": str(batch.path), "manifest": dict(batch.manifest)}

    def _see_lock(self) -> None:
        """End if another machine may serve by now; the slot is free then, and who asked tries again."""
        try:
            self._require_lock()
        except BusyError:
            self._stopped = True
            raise

    def end(self) -> None:
        self._stream.end()


@contextmanager
def _only_one(pipeline: OpenPipeline) -> Iterator[Callable[[], None]]:
    """Be the only one; gives what raises `BusyError` once the lock against other machines is lost."""
    handle = os.open(pipeline.file.state_dir / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise BusyError(
            f"a standing puller serves pipeline {pipeline.name!r} already",
            where=str(pipeline.file.state_dir / _LOCK),
            way_out="end it first (`slotlake pull --stop`), or let it work",
        ) from None
    try:
        with ExitStack() as locks:
            shared = pipeline.locks.shared(FOLLOWING)
            if pipeline.file.shares_state:
                locks.enter_context(shared.taken(FOLLOWING, 0.0))
            yield shared.require
    finally:
        os.close(handle)


@contextmanager
def _listening(pipeline: OpenPipeline) -> Iterator[Listener]:
    """Open the socket, and write the file that says its address; a socket's path must be short."""
    secret, place = secrets.token_bytes(32), _place(pipeline.file)
    with tempfile.TemporaryDirectory(prefix="slotlake-") as folder:
        address = str(Path(folder) / "puller")
        with Listener(address, family="AF_UNIX", authkey=secret) as listener:
            content = {"address": address, "secret": secret.hex(), "pid": os.getpid()}
            handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(handle, "w") as file:
                json.dump(content, file)
            try:
                yield listener
            finally:
                place.unlink(missing_ok=True)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM end the process as Ctrl-C does, so that everything is closed."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
