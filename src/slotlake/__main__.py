"""``python -m slotlake``: the command, where its script is not on PATH."""

from __future__ import annotations

import os
import signal
import sys


def _end_at_once(number: int, frame: object) -> None:
    os.write(2, b"slotlake: interrupted; you can safely run the same command again\n")
    os._exit(128 + number)


def main() -> int:
    """Run the command; Ctrl-C while its modules are loaded is no traceback either."""
    signal.signal(signal.SIGINT, _end_at_once)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # as the launcher leaves it
    from slotlake.infra.cli.main import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
