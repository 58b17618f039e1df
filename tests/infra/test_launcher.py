"""The launcher, run for real on a small checkout of its own: same scripts, two tiny locked packages."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

CLI = """
import json, os, sys
import tiny
print(json.dumps({"arguments": sys.argv[1:], "cwd": os.getcwd(), "env": sys.prefix, "path": sys.path}))
sys.exit(7 if "fail" in sys.argv else 0)
"""
PYTEST = "import os, sys; print('pytest', *sys.argv[1:], os.getcwd()); sys.exit(5)"
TOOLS = ("sh", "env", "dirname", "readlink", "cat", "sleep", "touch", "mkdir", "python3")


def _wheel(folder: Path, name: str, files: dict[str, str]) -> str:
    """Write a wheel; returns its line for a lock file."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    about = f"{name}-1.0.dist-info"
    contents = {
        **files,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{file},{_record(text)},{len(text)}\n" for file, text in contents.items())
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in contents.items():
            archive.writestr(file, text)
        archive.writestr(f"{about}/RECORD", record + f"{about}/RECORD,,\n")
    return f"{name}==1.0 \\\n    --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


def _record(text: str) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
    return "sha256=" + digest.rstrip(b"=").decode()


class Checkout:
    """A small checkout, a home, a PATH with next to nothing, and a folder of wheels instead of a network."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "a checkout"
        self.home = folder / "home"
        self.bin = folder / "bin"
        self.wheels = folder / "wheels"
        for made in (self.root / "infra", self.home, self.bin, self.wheels):
            made.mkdir(parents=True)
        shutil.copy(ROOT / "slotlake", self.root)
        shutil.copytree(ROOT / "infra" / "launch", self.root / "infra" / "launch")
        (self.root / "infra" / "__init__.py").write_text("")
        package = self.root / "src" / "slotlake"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "__main__.py").write_text(CLI)
        (package / "infra").symlink_to("../../infra")
        (self.root / "infra" / "kernels.py").write_text("")
        lines = [
            _wheel(self.wheels, "setuptools", {"setuptools.py": ""}),
            _wheel(self.wheels, "tiny", {"tiny.py": ""}),
            _wheel(self.wheels, "pytest", {"pytest.py": PYTEST}),
        ]
        self.lock = self.root / "infra" / "requirements.txt"
        self.lock.write_text("# a comment\n" + "".join(lines))
        for name in TOOLS[:-1]:
            (self.bin / name).symlink_to(shutil.which(name) or "/bin/" + name)
        (self.bin / "python3").symlink_to(Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info[1]}")

    def program(self, name: str, text: str) -> None:
        """Put a shell script on the PATH."""
        path = self.bin / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def variables(self, **more: str) -> dict[str, str]:
        network = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels)}
        return {"PATH": str(self.bin), "HOME": str(self.home), **network, **more}

    def start(self, *arguments: str, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self.root / "slotlake"), *arguments],
            env=self.variables(**more),
            cwd=self.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **more: str) -> tuple[int, str, str]:
        with self.start(*arguments, **more) as process:
            out, err = process.communicate(timeout=100)
        assert "Traceback" not in err
        return process.returncode, out, err

    def environments(self) -> list[Path]:
        return sorted(path for path in (self.home / ".cache" / "slotlake").glob("env-*") if path.is_dir())


# An installer in uv's place: does as told, then unpacks all wheels.  (With pip a set-up takes seconds.)
UV = """
[ "$1" = --version ] && exit 0
echo called >> "{calls}"
{action}
shift 3
exec "$1" -c '
import glob, sysconfig, zipfile
for wheel in glob.glob("{wheels}/*.whl"):
    zipfile.ZipFile(wheel).extractall(sysconfig.get_path("purelib"))
'
"""


def _uv(checkout: Checkout, action: str = "") -> Path:
    calls = checkout.home / "calls"
    checkout.program("uv", UV.format(calls=calls, action=action, wheels=checkout.wheels))
    return calls


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.fixture
def quick(checkout: Checkout) -> Checkout:
    _uv(checkout)
    return checkout


def test_the_first_run_sets_up_and_all_later_ones_only_run(checkout: Checkout) -> None:
    code, out, err = checkout.run("status", "a b", "--json", PYTHONPATH="elsewhere", PYTHONHOME="nowhere")
    assert code == 0, err
    assert '"arguments": ["status", "a b", "--json"]' in out
    assert f'"cwd": "{checkout.home}"' in out
    assert "elsewhere" not in out
    assert "installing 3 packages with pip" in err
    assert checkout.run("fail") == (7, out.replace('"status", "a b", "--json"', '"fail"'), "")
    started = time.monotonic()
    checkout.run()
    assert time.monotonic() - started < 5  # 0.2 s on a quiet machine
    assert len(checkout.environments()) == 1


SYSTEM_PYTHON = Path("/usr/bin/python3")


@pytest.mark.skipif(not SYSTEM_PYTHON.exists(), reason="the system brings no Python")
def test_the_systems_own_python_will_do(quick: Checkout) -> None:
    """Often the oldest patch version there is; 3.11.2 on Debian 12."""
    if subprocess.run(
        [SYSTEM_PYTHON, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"], check=False
    ).returncode:
        pytest.skip("the system's Python is too old, and the README says so")
    code, out, err = quick.run("status", SLOTLAKE_PYTHON=str(SYSTEM_PYTHON))
    assert code == 0, err
    assert '"arguments": ["status"]' in out


def test_a_changed_lock_file_is_another_environment(quick: Checkout) -> None:
    quick.run()
    quick.lock.write_text(quick.lock.read_text() + "# changed\n")
    assert "making the environment" in quick.run()[2]
    assert len(quick.environments()) == 2


def test_tests_run_in_the_checkout_and_their_exit_code_is_the_launchers(quick: Checkout) -> None:
    code, out, _ = quick.run("test", "tests/x.py", "-q")
    assert (code, out) == (5, f"pytest tests/x.py -q {quick.root}\n")


def test_a_whole_run_takes_two_processes(quick: Checkout) -> None:
    count = min(2, os.cpu_count() or 2)
    _, out, _ = quick.run("test", "--durations=3")
    assert out == f"pytest -n {count} --dist loadfile --no-loadscope-reorder --durations=3 {quick.root}\n"


def test_a_link_to_the_launcher_works_from_anywhere(quick: Checkout, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").symlink_to(quick.root / "slotlake")
    done = subprocess.run(
        [str(tmp_path / "elsewhere")], env=quick.variables(), capture_output=True, cwd="/", check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_file_that_is_not_the_locked_one_is_refused(checkout: Checkout) -> None:
    _wheel(checkout.wheels, "tiny", {"tiny.py": "evil = True"})
    code, out, err = checkout.run()
    assert (code, out) == (10, "")
    assert "HASHES" in err
    assert "what to do:" in err
    assert not [path for path in checkout.environments() if (path / ".ready").exists()]


def _wait_for(path: Path) -> None:
    give_up = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < give_up, f"{path} did not come"
        time.sleep(0.05)


def test_uv_is_used_when_there_is_one_and_pip_when_it_fails(checkout: Checkout) -> None:
    _uv(checkout, "")
    assert "with uv" in checkout.run()[2]
    shutil.rmtree(checkout.environments()[0])
    _uv(checkout, "echo no route; exit 1")
    code, _, err = checkout.run()
    assert code == 0
    assert "uv failed:\n    no route" in err
    assert "with pip" in err


def test_two_at_once_make_one_environment(checkout: Checkout) -> None:
    calls = _uv(checkout, "sleep 1")
    first, second = checkout.start(), checkout.start()
    results = [process.communicate(timeout=60) for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], results
    assert calls.read_text() == "called\n" * 2  # once for what builds Spark, once for all
    assert sum("waiting for another slotlake" in err for _, err in results) == 1


def test_a_killed_set_up_is_waited_for_and_done_again(checkout: Checkout) -> None:
    calls = _uv(checkout, "echo $$ > pid; sleep 30 & wait")
    killed = checkout.start()
    _wait_for(checkout.home / "pid")
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    again = checkout.start()
    time.sleep(1)
    assert again.poll() is None, "the first one's installer still runs, and may still write"
    _uv(checkout, "")
    installer = int((checkout.home / "pid").read_text())
    for pid in (*_children(installer), installer):
        os.kill(pid, signal.SIGKILL)
    _, err = again.communicate(timeout=60)
    assert again.returncode == 0, err
    assert "waiting for another slotlake" in err
    assert "interrupted; starting again" in err
    assert len(calls.read_text().split()) == 3


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_ctrl_c_ends_the_set_up_with_a_line(checkout: Checkout) -> None:
    _uv(checkout, "touch there; sleep 30 & wait")
    process = subprocess.Popen(
        [str(checkout.root / "slotlake")],
        env=checkout.variables(),
        cwd=checkout.home,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a terminal sends Ctrl-C to all of the foreground group
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 (`&` ignores it)
    )
    _wait_for(checkout.home / "there")
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err.endswith("slotlake: interrupted\n")
    assert "Traceback" not in err


@pytest.mark.parametrize("home", [None, "/dev/null/home"])
def test_without_a_usable_home_the_checkout_holds_the_environment(quick: Checkout, home: str | None) -> None:
    variables = quick.variables()
    del variables["HOME"]
    if home:
        variables["HOME"] = home
    done = subprocess.run([str(quick.root / "slotlake")], env=variables, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    made = {path.name[:4] for path in (quick.root / ".slotlake").iterdir() if path.is_dir()}
    assert made == {"env-", "numb"}


def test_a_home_asked_for_that_cannot_be_written_is_an_error(checkout: Checkout) -> None:
    code, _, err = checkout.run(SLOTLAKE_HOME="/dev/null/x")
    assert code == 10
    assert "SLOTLAKE_HOME" in err


def test_a_python_that_fails_or_is_too_old_is_passed_over(quick: Checkout) -> None:
    real = (quick.bin / "python3").resolve()
    quick.program("python3", "echo 'not installed' >&2; exit 127")
    quick.program("python3.13", "echo; exit 0")
    (quick.bin / "python3.12").symlink_to(real)
    assert quick.run()[0] == 0


def test_without_any_python_one_clear_message(checkout: Checkout) -> None:
    checkout.program("python3", "exit 127")
    code, out, err = checkout.run()
    assert (code, out) == (10, "")
    assert "no Python 3.11 or newer" in err
    assert "what to do:" in err


def test_too_little_room_is_told_beforehand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from slotlake.infra.launch import environment
    from slotlake.infra.launch.errors import LaunchError

    monkeypatch.setattr(environment, "_BYTES_NEEDED", 10**18)
    with pytest.raises(LaunchError, match="too little room"):
        environment.ready_environment(tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_help_of_test_is_the_commands_and_options_are_pytests(quick: Checkout) -> None:
    assert '"arguments": ["test", "--help"]' in quick.run("test", "--help")[1]
    assert quick.run("test", "tests", "--help")[1].startswith("pytest tests --help")


def _with_loops(checkout: Checkout, text: str) -> None:
    (checkout.root / "decoder").mkdir(exist_ok=True)
    (checkout.root / "decoder" / "loops.py").write_text("one = 1")
    (checkout.root / "infra" / "kernels.py").write_text(text)


NOTED = "import sys, os; open(os.environ['HOME'] + '/compiled', 'a').write(' '.join(sys.argv[1:]) + '\\n')"


def test_loops_are_compiled_once_for_their_contents_wherever_they_lie(
    quick: Checkout, tmp_path: Path
) -> None:
    _with_loops(quick, NOTED)
    assert "compiling" in quick.run()[2]
    assert sorted((quick.home / "compiled").read_text().splitlines()) == ["0 2", "1 2"]
    shutil.copytree(quick.root, tmp_path / "a clone", symlinks=True)
    quick.root = tmp_path / "a clone"
    assert "compiling" not in quick.run()[2]
    (quick.root / "decoder" / "loops.py").write_text("two = 2")
    assert "compiling" not in quick.run("--help")[2]
    assert "compiling" in quick.run()[2]


def test_loops_that_cannot_be_compiled_cost_time_only(quick: Checkout) -> None:
    _with_loops(quick, "raise SystemExit('no compiler here')")
    for _ in range(2):
        code, _, err = quick.run()
        assert code == 0
        assert "at their first use, because this failed: no compiler here" in err
