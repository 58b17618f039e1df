"""A network that can be bad: a proxy in a process of its own, before one server.

    python -m tests.proof.network PORT

It listens at an address that it prints, and reads a command from each line of its standard input: ``slow
SECONDS`` passes on each piece of data so much later, ``hole`` takes data and passes on none, ``cut`` ends
all connections at once, as a reset does, ``whole`` ends the other two.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

_PIECE: Final = 1 << 16
# SO_LINGER of no time: close() sends a reset.
_RESET: Final = struct.pack("ii", 1, 0)


@dataclass
class Network:
    """The proxy, as whoever started it sees it.

    Attributes:
        port: where it listens, on 127.0.0.1.
    """

    process: subprocess.Popen[str]
    port: int

    def be(self, command: str) -> None:
        """Give it a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()


@contextmanager
def network(port: int) -> Iterator[Network]:
    """Run a proxy before a server's port."""
    command = [sys.executable, "-P", "-m", __name__, str(port)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        try:
            yield Network(process, int(process.stdout.readline()))
        finally:
            process.kill()


class _Proxy:
    def __init__(self, port: int) -> None:
        self._port = port
        self._delay = 0.0
        self._open = asyncio.Event()
        self._open.set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def run(self) -> None:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            self._obey(*line.split())

    def _obey(self, command: str, argument: str = "0") -> None:
        self._delay = float(argument)
        if command == "hole":
            self._open.clear()
        else:
            self._open.set()
        if command == "cut":
            for writer in self._writers:
                sock: socket.socket = writer.get_extra_info("socket")
                with suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, back}
        await asyncio.gather(self._pass(reader, back), self._pass(there, writer))
        self._writers -= {writer, back}

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await reader.read(_PIECE):
                await asyncio.sleep(self._delay)
                await self._open.wait()
                writer.write(piece)
                await writer.drain()
        with suppress(OSError):
            writer.close()


if __name__ == "__main__":
    asyncio.run(_Proxy(int(sys.argv[1])).run())
