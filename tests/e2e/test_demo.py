"""`slotlake demo` as a person runs it: to its end, and cut off in the middle."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slotlake.decoder.errors import SetupError
from slotlake.infra.demo.bank import SUMS, Point
from slotlake.infra.demo.demo import Demo, run_demo
from slotlake.infra.demo.page import Outcome, page
from slotlake.infra.local.airflow_client import AirflowClient

ROOT = Path(__file__).resolve().parents[2]
IN_THE_LONG_FORM = pytest.mark.skipif(
    not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it"
)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "demo"
    yield place
    demo = _demo(place)
    demo.stop()
    demo.forget_servers()


def _demo(folder: Path) -> Demo:
    return Demo(folder, scale=1, transactions=1, keep=False)


def _start(folder: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "slotlake", "demo", "--scale=1", f"--dir={folder}", *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _processes_of(folder: Path) -> list[str]:
    """Command lines of running processes that name the demo's folders."""
    demo = _demo(folder)
    places = [str(folder), str(demo.postgres.folder), str(demo.airflow.metadata.folder)]
    found = [f"a member of Airflow's session: {pid}" for pid in demo.airflow.members()]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
            except OSError:
                continue
            if any(place in line for place in places):
                found.append(line)
    return found


@pytest.mark.airflow
@pytest.mark.slow
@pytest.mark.parametrize(
    "where", ["folder", pytest.param("s3", marks=IN_THE_LONG_FORM)], ids=lambda where: f"in {where}"
)
def test_the_demo_proves_what_it_says_and_leaves_nothing_running(folder: Path, where: str) -> None:
    demo = _start(folder, "--transactions=2000", *(["--s3"] if where == "s3" else []))
    out, err = demo.communicate(timeout=550)
    assert demo.returncode == 0, err
    assert "source and lake are equal at" in out
    assert "the sums are equal at all" in out
    assert "DIFFER" not in out
    assert "public.pgbench_history                 2,000           2,000  equal" in out
    assert "cdc_sync" in err
    assert _processes_of(folder) == []
    password = (folder / "demo.yaml").read_text().split("slotlake:")[1].split("@")[0]
    assert password not in out + err
    objects = {path.suffix for path in (folder / "s3").rglob("*") if path.is_file()}
    in_folder = {path.suffix for path in (folder / "warehouse").rglob("*") if path.is_file()}
    lake = {".parquet", ".avro", ".json"}
    assert lake <= (objects if where == "s3" else in_folder)
    assert not lake & (in_folder if where == "s3" else objects)
    if where == "s3":  # the store ended with the demo
        return
    read = subprocess.run(
        [sys.executable, folder / "read.py"], capture_output=True, text=True, check=True, cwd=folder
    )
    assert "2000" in read.stdout


@pytest.mark.airflow
@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "seconds", "code"),
    [
        (signal.SIGINT, 6.0, 130),
        pytest.param(signal.SIGTERM, 30.0, 130, marks=IN_THE_LONG_FORM),
        pytest.param(signal.SIGKILL, 20.0, -signal.SIGKILL, marks=IN_THE_LONG_FORM),
    ],
)
def test_a_demo_that_is_cut_off_leaves_nothing_running(
    folder: Path, number: signal.Signals, seconds: float, code: int
) -> None:
    demo = _start(folder)
    time.sleep(seconds)
    assert demo.poll() is None
    assert _processes_of(folder)
    demo.send_signal(number)
    _, err = demo.communicate(timeout=120)
    assert demo.returncode == code
    assert "Traceback" not in err
    give_up = time.monotonic() + (60.0 if number == signal.SIGKILL else 0.0)
    while (left := _processes_of(folder)) and time.monotonic() < give_up:
        time.sleep(0.5)
    assert left == []


@pytest.mark.airflow
@pytest.mark.slow
@IN_THE_LONG_FORM
def test_what_a_kept_demo_prints_works_as_it_stands(folder: Path, tmp_path: Path) -> None:
    demo = _start(folder, "--transactions=2000", "--keep")
    out, err = demo.communicate(timeout=550)
    assert demo.returncode == 0, err
    lines = re.findall(r"^  (\w[\w ]*?)  +(\S.*)$", out.partition("what you can do now\n")[2], re.MULTILINE)
    printed = dict(lines)
    url, _, login = printed.pop("Airflow").partition("  ")
    user, password = re.fullmatch(r"user (\w+), password (\S+)", login).groups()  # type: ignore[union-attr]
    assert printed.pop("the page").split()[0] == f"{url}/plugin/slotlake"
    assert printed.pop("all files") == str(folder)
    client = AirflowClient(url, user, password)
    give_up = time.monotonic() + 120
    while "public.pgbench_history" not in (page := _page_of(client, "/slotlake/pipeline/demo")):
        assert time.monotonic() < give_up, page
        time.sleep(1)
    stop = printed.pop("stop")
    said = {name: _run(command) for name, command in printed.items()}
    assert list(said) == ["write more", "status", "live", "verify", *READ]
    assert "4000" in said["write more"].replace("/", " ")
    assert "ready" in said["status"]
    assert "equal" in said["verify"]
    assert int(re.findall(r"\d+", said["query"])[0]) >= 2000
    assert re.findall(r"\d+", said["at a point"])[0] == "0"
    assert (folder / "report.html").stat().st_size > 10_000
    assert "stopped the demo" in _run(stop)
    assert _processes_of(folder) == []


READ = ("query", "at a point", "as one file", "other readers")


def _run(command: str) -> str:
    """Run a line as a person does who copies it from the terminal where the demo was started."""
    done = subprocess.run(
        command, check=False, shell=True, capture_output=True, text=True, cwd=ROOT, timeout=300
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def _page_of(client: AirflowClient, path: str) -> str:
    client.call("GET", "/version")
    headers = {"Authorization": f"Bearer {client._token}"}
    return client._send("GET", path, None, headers, 30.0).decode()


def test_a_folder_with_anything_else_in_it_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("ten years")
    with pytest.raises(SetupError, match="not empty"):
        run_demo(scale=1, transactions=1, keep=False, folder=tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "ten years"


def _outcome(folder: Path) -> Outcome:
    sums = dict.fromkeys(SUMS, 7)
    table = {"equal": True, "source_rows": 1000, "lake_rows": 1000, "differences": 0}
    return Outcome(
        folder=folder,
        pipeline_file=folder / "demo.yaml",
        left_running=False,
        in_s3=False,
        airflow_url="http://127.0.0.1:1",
        airflow_password="unused",
        write_more="pgbench",
        scale=1,
        rate=100.0,
        schedule_seconds=10,
        written=500,
        copied={"rows": 1000, "seconds": 2.0},
        sync_seconds=4.0,
        verified={"equal": True, "lsn": "0/99", "tables": {"public.pgbench_tellers": table}},
        points=[
            Point("0/10", "copy", 0, 1000, None, dict.fromkeys(SUMS, 0)),
            Point("0/99", "batch", 500, 2000, 3.5, sums),
        ],
        seconds=60.0,
    )


def test_the_page_tells_figures_and_how_to_go_on(tmp_path: Path) -> None:
    text = page(_outcome(tmp_path))
    for part in (
        "equal at all 2 consistency points",
        "500 rows/s",
        "median 3.5 s",
        "2,000 changes",
        "read.py",
    ):
        assert part in text, text


def test_a_point_that_does_not_hold_and_a_difference_are_failures(tmp_path: Path) -> None:
    good = _outcome(tmp_path)
    assert good.good
    broken = replace(good.points[1], sums={**good.points[1].sums, "public.pgbench_tellers": 8})
    worse = replace(good, points=[good.points[0], broken])
    assert not worse.good
    assert "DIFFERENT: public.pgbench_accounts 7, public.pgbench_tellers 8" in page(worse)
    in_s3 = page(replace(good, in_s3=True))
    assert "demo --keep" in in_s3
    assert " query " not in in_s3
    assert " query " in page(replace(good, in_s3=True, left_running=True))
    different = replace(good, verified={**good.verified, "equal": False})
    assert not different.good
    assert "DIFFERENT" in page(different)
