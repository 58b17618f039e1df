"""The second half of the launcher: make the environment, then run the command in it.

``test`` and ``check`` run here, because they need the checkout; all other commands are slotlake's own.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from slotlake.infra.launch.environment import Environment, ready_environment
from slotlake.infra.launch.errors import LaunchError
from slotlake.infra.launch.folders import CHECKOUT, home
from slotlake.infra.launch.kernels import provide

_SETUP_ERROR = 10  # the same as slotlake.decoder.errors.SetupError.exit_code, which cannot be imported yet
_INTERRUPTED = 130
_CHECK_DECODER = ["check", "decoder"]  # its environment cannot compile the kernels of spark/
_HELP_OPTIONS = {"--help", "-h", "--version"}
_TEST_PROCESSES = 2  # each has a Spark and several PostgreSQL servers of its own


def main(arguments: list[str]) -> int:
    """Run the command; return only for ``check``, and if the environment cannot be made."""
    try:
        cache = home()
        environment = ready_environment(cache, _lock_file(arguments))
    except (LaunchError, OSError) as error:
        print(f"slotlake: {error}", file=sys.stderr)
        return _SETUP_ERROR
    variables = run_variables(environment, cache)
    if not set(arguments) & _HELP_OPTIONS and arguments != _CHECK_DECODER:
        provide(environment.python, variables, cache)
    if arguments[:1] == ["check"] and not set(arguments[1:2]) & _HELP_OPTIONS:
        from slotlake.infra.launch import check

        return check.run(environment.python, variables, cache, arguments[1:])
    if arguments[:2] == ["test", "--long"]:
        from slotlake.infra.launch import long_form

        variables["PYTHONPATH"] += f"{os.pathsep}{CHECKOUT}"
        return long_form.run(environment.python, variables, cache, arguments[2:])
    if arguments[:1] == ["test"] and not set(arguments[1:2]) & _HELP_OPTIONS:
        os.chdir(CHECKOUT)
        variables["PYTHONPATH"] += f"{os.pathsep}{CHECKOUT}"  # tests start modules of tests/ in processes
        arguments = ["-P", "-m", "pytest", *_in_parallel(arguments[1:]), *arguments[1:]]
    else:
        arguments = ["-P", "-m", "slotlake", *arguments]
        # Ctrl-C while Python begins would be a traceback: it waits for `slotlake.__main__`.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    sys.stdout.flush()
    return os.execve(environment.python, [str(environment.python), *arguments], variables)  # noqa: S606


def _lock_file(arguments: list[str]) -> str:
    """Return the lock file of an environment of its own, or an empty text for the usual one."""
    if arguments != _CHECK_DECODER:
        return ""
    from slotlake.infra.launch import check

    return check.decoder_requirements()


def _in_parallel(arguments: list[str]) -> list[str]:
    """Return the options for a run of all tests: two processes, and each file's tests in one of them.

    In the order of their names: the last files are short ones.  xdist would begin with those of most tests,
    and end with long tests that are alone in their files, in one process while the other waits.
    """
    if not all(argument.startswith("-") for argument in arguments):
        return []
    processes = str(min(_TEST_PROCESSES, os.cpu_count() or 1))
    return ["-n", processes, "--dist", "loadfile", "--no-loadscope-reorder"]


def run_variables(environment: Environment, cache: Path) -> dict[str, str]:
    """Return the caller's variables, changed so that they mean this environment and no other Python's."""
    variables = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONHOME", "__PYVENV_LAUNCHER__")
    }
    return {
        **variables,
        "PYTHONPATH": str(CHECKOUT / "src"),
        "PYTHONNOUSERSITE": "1",
        "VIRTUAL_ENV": str(environment.folder),
        "PATH": f"{environment.folder / 'bin'}{os.pathsep}{variables.get('PATH', os.defpath)}",
        # Compiled kernels are kept here: the checkout may be read-only or another user's.
        "NUMBA_CACHE_DIR": variables.get("NUMBA_CACHE_DIR") or str(cache / "numba"),
    }


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("\nslotlake: interrupted", file=sys.stderr)
        sys.exit(_INTERRUPTED)
