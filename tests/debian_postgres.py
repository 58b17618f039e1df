"""PostgreSQL from Debian's packages: what neither the wheel nor the archives have, with all programs.

``apt-get`` resolves and downloads the packages in a private folder, as an ordinary user, from the repository
that this machine's own sources name, with the suites trixie, sid and experimental.  They are unpacked, never
installed; patchelf (of the same packages) points the programs to the loader and libraries beside them, which
may be newer than the machine's.  The signatures are checked; the suites may be some days old.

Where this cannot be had, the test is skipped with the reason; what fails after the download fails the test.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pytest

from slotlake.infra.local.postgres import Version
from slotlake.infra.local.postgres_archives import installs
from slotlake.infra.local.postgres_binaries import CHOSEN, binaries, server_user

IN_DEBIAN_ONLY: Final[tuple[Version, ...]] = (19,)
_SUITES: Final = ("trixie", "sid", "experimental")
_REGRESS: Final = "src/test/regress"
_LIBRARIES: Final = "usr/lib/x86_64-linux-gnu"
_WANTED: Final = ("lib", "gcc-", "zlib1g", "patchelf", "postgresql-1", "postgresql-client-1")
_SECONDS_MAX: Final = 500


def debian_postgres(version: int) -> Path:
    """Return the `bin` folder of that major version; skip the test where Debian's packages cannot be had.

    The folder that SLOTLAKE_TEST_POSTGRES names comes first, if it is of that version.
    """
    chosen = binaries(18, server_user()) if os.environ.get(CHOSEN) else None
    if chosen is not None and chosen.version == version:
        return chosen.bin

    def make(incoming: Path) -> None:
        _unpack(_download(version, incoming / "apt"), incoming / "root", version)
        shutil.rmtree(incoming / "apt")

    return _programs(_made_once(f"debian-{version}", make) / "root", version)


def debian_regress(version: int) -> Path:
    """Return `src/test/regress` of that major version's source; skip the test where it cannot be had."""

    def make(incoming: Path) -> None:
        apt = incoming / "apt"
        conf = _conf(version, apt, "deb-src", ("bookworm", *_SUITES))
        _apt(conf, version, "update")
        _apt(conf, version, "source", "--download-only", "--tar-only", f"postgresql-{version}", cwd=apt)
        (archive,) = apt.glob("*.orig.tar.*")
        _run(
            "tar", "-xf", str(archive), "-C", str(incoming), "--strip-components=1",
            "--wildcards", f"*/{_REGRESS}/*",
        )  # fmt: skip
        shutil.rmtree(apt)

    return _made_once(f"source-{version}", make) / _REGRESS


def _made_once(name: str, make: Callable[[Path], None]) -> Path:
    """A folder that is made where the servers' programs are, and then stays."""
    user = server_user()
    folder = user.shared_folder() if user.switch else installs()
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / name
    with (folder / "debian.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two tests at once: the second waits and has it
        if not target.exists():
            incoming = target.with_name(f"{name}.incoming")
            shutil.rmtree(incoming, ignore_errors=True)
            incoming.mkdir()
            make(incoming)
            incoming.rename(target)
    return target


def _programs(root: Path, version: int) -> Path:
    return root / "usr/lib/postgresql" / str(version) / "bin"


def _download(version: int, folder: Path) -> list[Path]:
    if platform.machine() != "x86_64" or shutil.which("apt-get") is None:
        pytest.skip(f"PostgreSQL {version} comes from Debian's packages, and this is no Debian on x86_64")
    packages = folder / "packages"
    packages.mkdir(parents=True)
    conf = _conf(version, folder, "deb", _SUITES)
    _apt(conf, version, "update")
    planned = _apt(conf, version, "install", "--print-uris", "-qq", "-y", f"postgresql-{version}", "patchelf")
    names = [line.split("' ")[1].split("_", 1)[0] for line in planned.splitlines() if line.startswith("'")]
    wanted = [name for name in names if name.startswith(_WANTED) and "perl" not in name]
    _apt(conf, version, "download", *wanted, cwd=packages)
    return sorted(packages.iterdir())


def _conf(version: int, folder: Path, kind: str, suites: Sequence[str]) -> Path:
    """The settings of an `apt-get` that has this folder and these suites alone, of packages or of sources."""
    (folder / "lists/partial").mkdir(parents=True)
    (folder / "cache/archives/partial").mkdir(parents=True)
    (folder / "status").touch()
    (folder / "sources.list").write_text("".join(_source(kind, suite) for suite in suites))
    (folder / "preferences").write_text(
        f"Package: src:postgresql-{version}\nPin: version *\nPin-Priority: 990\n"
    )
    conf = folder / "apt.conf"
    conf.write_text(
        f'Dir::State::status "{folder}/status";\nDir::State::lists "{folder}/lists";\n'
        f'Dir::Cache "{folder}/cache";\nDir::Etc::sourcelist "{folder}/sources.list";\n'
        f'Dir::Etc::sourceparts "-";\nDir::Etc::preferences "{folder}/preferences";\n'
        'Dir::Etc::preferencesparts "-";\nAPT::Sandbox::User "";\nAPT::Install-Recommends "false";\n'
        'Acquire::Check-Valid-Until "false";\nAcquire::Languages "none";\n'
        'Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";\n'
    )
    return conf


def _source(kind: str, suite: str) -> str:
    """One line of a list of sources: the machine's own Debian repository, with another suite."""
    asked = ["apt-get", "indextargets", "--format", "$(REPO_URI)"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.split()
    repository = next((uri for uri in found if uri.rstrip("/").endswith("/debian")), None)
    if repository is None:
        pytest.skip("apt's sources name no repository of Debian")
    keys = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
    signed = f" [signed-by={keys}]" if keys.exists() else ""
    return f"{kind}{signed} {repository} {suite} main\n"


def _apt(conf: Path, version: int, *words: str, cwd: Path | None = None) -> str:
    done = subprocess.run(
        ["apt-get", "-c", str(conf), *words], capture_output=True, text=True, check=False,
        timeout=_SECONDS_MAX, cwd=cwd, env={**os.environ, "LC_ALL": "C"},
    )  # fmt: skip
    if done.returncode != 0:
        pytest.skip(f"Debian's packages of PostgreSQL {version} cannot be had: {done.stderr.strip()[-300:]}")
    return done.stdout


def _unpack(packages: list[Path], root: Path, version: int) -> None:
    for package in packages:
        _run("dpkg-deb", "-x", str(package), str(root))
    for folder in (root.parent, root, *(path for path in root.rglob("*") if path.is_dir())):
        folder.chmod(0o755)
    loader, libraries = root / _LIBRARIES / "ld-linux-x86-64.so.2", root / _LIBRARIES
    for program in sorted(_programs(root, version).iterdir()):
        with program.open("rb") as opened:
            if opened.read(4) != b"\x7fELF":
                continue
        _run(
            str(loader), "--library-path", str(libraries), str(root / "usr/bin/patchelf"),
            "--set-interpreter", str(_final(loader)), "--force-rpath", "--set-rpath", str(_final(libraries)),
            str(program),
        )  # fmt: skip


def _final(path: Path) -> Path:
    """Where it is once the folder has its name."""
    return Path(str(path).replace(".incoming/", "/", 1))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS_MAX)
    assert done.returncode == 0, f"{command}: {done.stderr}"
