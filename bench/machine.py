"""What the figures were taken on: a figure without its machine and commit says nothing."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Machine:
    """Attributes: ``cores`` that this process may use; ``load``: of the minute before the first figure."""

    cpu: str
    cores: int
    memory_gib: float
    system: str
    python: str
    postgres: str
    commit: str
    taken: str
    load: float

    @classmethod
    def this(cls) -> Machine:
        """The machine that this process runs on."""
        return cls(
            cpu=_cpu(),
            cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            memory_gib=round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
            system=f"{platform.system()} {platform.machine()}",
            python=platform.python_version(),
            postgres=_postgres(),
            commit=_commit(),
            taken=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            load=round(os.getloadavg()[0], 1),
        )

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)

    def text(self) -> str:
        """Two lines for people."""
        return (
            f"{self.cpu}, {self.cores} cores, {self.memory_gib} GiB, {self.system}, load {self.load}\n"
            f"Python {self.python}, PostgreSQL {self.postgres}, commit {self.commit}, {self.taken}"
        )


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or "unknown CPU"


def _postgres() -> str:
    from slotlake.infra.local.postgres_binaries import binaries, server_user

    version = _output([str(binaries(18, server_user()).bin / "postgres"), "--version"])
    return version.rpartition(" ")[2] if version else "unknown"


def _commit() -> str:
    commit = _output(["git", "-C", str(_ROOT), "rev-parse", "--short=10", "HEAD"])
    if not commit:
        return "unknown"
    changed = _output(["git", "-C", str(_ROOT), "status", "--porcelain", "--untracked-files=no"])
    return f"{commit} and uncommitted changes" if changed else commit


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
