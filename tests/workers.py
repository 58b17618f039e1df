"""Workers that share no disk: each program in a mount namespace of its own, with a host name of its own.

It sees the pipeline's folder, read-only as from a ConfigMap, and none of the files that another one wrote:
not /tmp, not the scratch folders of pipelines.  What it wrote itself goes with it.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from slotlake.infra.launch.folders import home
from tests.cluster import ROOT, needs_namespaces

__all__ = ["Worker", "ended", "needs_namespaces"]
_OUT_OF_THE_WAY: Final = Path("/mnt")
_EMPTY: Final = "mount -t tmpfs -o size=1g none {}"
_BACK: Final = "mkdir -p {here} && mount --bind {there} {here}"


class Worker:
    """A machine that runs programs; it forgets its files after each.

    Args:
        file: the pipeline file; its folder is seen where it is.
        environment: variables of its own.
        prelude: a statement that each command of slotlake begins with.
        name: of the host.
    """

    def __init__(
        self, file: Path, environment: Mapping[str, str], prelude: str = "pass", name: str = "worker"
    ) -> None:
        self.file, self.name = file, name
        self._environment, self._prelude = environment, prelude

    def step(self, step: str, *arguments: Any, failpoint: str = "") -> dict[str, Any]:
        """Run a step as a task of a DAG does, and return its report.

        Args:
            step: a function of `infra.airflow.steps`.
            arguments: that follow the pipeline file.
            failpoint: where the process is killed; then the report is empty.
        """
        code = (
            f"{self._prelude}; import json, sys; from slotlake.infra.airflow import steps; "
            "print(json.dumps(getattr(steps, sys.argv[1])(sys.argv[2], *json.loads(sys.argv[3]))))"
        )
        program = [sys.executable, "-P", "-c", code, step, str(self.file), json.dumps(arguments)]
        done = ended(self.popen(program, {"SLOTLAKE_FAILPOINT": failpoint}))
        assert done.returncode == (-9 if failpoint else 0), done.stderr
        return {} if failpoint else dict(json.loads(done.stdout.splitlines()[-1]))

    def run(self, *arguments: str, failpoint: str = "") -> subprocess.CompletedProcess[str]:
        """Run `slotlake COMMAND PIPELINE.yaml …` to its end.

        Args:
            arguments: the command, and what follows the pipeline file.
            failpoint: where the process is killed.
        """
        return ended(self.begin(*arguments, failpoint=failpoint))

    def begin(self, *arguments: str, failpoint: str = "") -> subprocess.Popen[str]:
        """Begin such a command.

        Args:
            arguments: the command, and what follows the pipeline file.
            failpoint: where the process is killed.
        """
        command, *rest = arguments
        code = f"{self._prelude}; import sys; from slotlake.infra.cli.main import main; sys.exit(main())"
        program = [sys.executable, "-P", "-c", code, command, str(self.file), *rest]
        return self.popen(program, {"SLOTLAKE_FAILPOINT": failpoint})

    def popen(
        self, program: Sequence[str], environment: Mapping[str, str], log: Path | None = None
    ) -> subprocess.Popen[str]:
        """Start a program in a namespace of its own.

        Args:
            program: with its arguments.
            environment: further variables.
            log: where its output goes; None: to who asks for it.
        """
        scratch = home() / "pipelines"
        scratch.mkdir(exist_ok=True)
        temporary = Path(tempfile.gettempdir())
        folder = self.file.parent
        hidden = [temporary, *([] if folder.is_relative_to(temporary) else [folder.parent])]
        # A checkout and an environment in /tmp are what a worker's machine has installed.
        seen = [folder, *(path for path in (ROOT, home()) if path.is_relative_to(temporary))]
        away = {_OUT_OF_THE_WAY / str(number): path for number, path in enumerate(seen)}
        lines = [
            f"hostname {shlex.quote(self.name)}",
            _EMPTY.format(_OUT_OF_THE_WAY),
            *(
                f"mkdir {there} && mount --bind {shlex.quote(str(here))} {there}"
                for there, here in away.items()
            ),
            *(_EMPTY.format(shlex.quote(str(path))) for path in hidden),
            *(_BACK.format(here=shlex.quote(str(here)), there=there) for there, here in away.items()),
            _EMPTY.format(shlex.quote(str(scratch))),
            f"mount -o remount,bind,ro {shlex.quote(str(folder))}",
            f"umount -R {_OUT_OF_THE_WAY}",
            "cd /",
            f"exec {shlex.join(program)}",
        ]
        own = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", **self._environment, **environment}
        with ExitStack() as files:
            output = subprocess.PIPE if log is None else files.enter_context(log.open("w"))
            return subprocess.Popen(
                ["unshare", "-m", "-u", "--propagation", "private", "sh", "-c", " && ".join(lines)],
                env={**os.environ, **own},
                stdout=output,
                stderr=output,
                text=True,
            )


def ended(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """Wait for the end of a program."""
    with process:
        output, errors = process.communicate(timeout=280)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)
