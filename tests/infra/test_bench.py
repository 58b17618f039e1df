"""`slotlake bench`: its arithmetic, what it prints, what it refuses; and each benchmark once, small."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from slotlake.bench import BENCHES, run
from slotlake.bench.figures import Figure, in_turns, rates
from slotlake.bench.machine import Machine
from slotlake.bench.page import BEGIN, END, PAGE, with_figures
from slotlake.bench.requests import Forwarder, Request, counted, one_after_another
from slotlake.bench.show import document, print_table
from slotlake.bench.workload import ROWS_VARIABLE, RUNS_VARIABLE, rows_asked, runs_asked
from slotlake.decoder.errors import PipelineFileError
from slotlake.infra.cli.main import main
from slotlake.infra.progress import silent

ROOT = Path(__file__).resolve().parents[2]
MACHINE = Machine("a CPU", 2, 23.5, "Linux", "3.11.7", "18.4", "abc", "2026-11-21 10:00 UTC", 0.3)


def figure(**more: Any) -> Figure:
    given = {"what": "work", "peer": "peer", "unit": "rows/s", "ours": (100.0,), "theirs": (50.0,), **more}
    return Figure(**given)


def test_a_ratio_reads_as_fast_as_the_peer_for_rates_and_for_times() -> None:
    assert figure().ratio == 2.0
    assert figure(unit="s", better="less").ratio == 0.5


def test_the_ratio_is_the_median_of_the_pairs() -> None:
    # A machine that slows down threefold half-way meets both of a pair: the ratio stays.
    assert figure(ours=(300.0, 100.0, 100.0), theirs=(150.0, 50.0, 50.0)).ratio == 2.0
    assert figure(ours=(10.0, 20.0, 90.0), theirs=(10.0, 10.0, 10.0)).ratio == 2.0


@pytest.mark.parametrize(("wanted", "reached"), [(None, None), (2.0, True), (2.1, False)])
def test_what_is_wanted(wanted: float | None, reached: bool | None) -> None:
    assert figure(wanted=wanted).reached is reached


def test_runs_are_taken_in_turns() -> None:
    seen: list[str] = []

    def taken(who: str, seconds: float) -> float:
        seen.append(who)
        return seconds

    pairs = in_turns(lambda: taken("ours", 2.0), lambda: taken("theirs", 4.0), 3)
    assert seen == ["ours", "theirs"] * 3
    assert rates(8.0, pairs) == ((4.0,) * 3, (2.0,) * 3)


def test_requests_that_are_under_way_together_are_no_chain() -> None:
    # Two side by side, then one that waits for the longer of them, and one that begins while it is under way.
    times = [(0.0, 1.0), (0.0, 2.0), (2.0, 4.0), (3.0, 5.0)]
    requests = [Request("GET", f"/lake/t/metadata/{i}.avro", "Spark", *each) for i, each in enumerate(times)]
    assert one_after_another(requests) == 2
    assert one_after_another([*requests, Request("PUT", "/lake/x.parquet", "slotlake", 5.0, 6.0)]) == 3
    assert one_after_another([]) == 0
    assert counted(requests[:2]) == {"Spark: GET manifest": 2}


def test_a_forwarder_notes_requests_and_changes_nothing() -> None:
    class Answering(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with Forwarder(server.server_address[1]) as way:
            connection = http.client.HTTPConnection("127.0.0.1", way.port)
            body = bytes(200_000)
            for name in ("snap-1.avro", "x.puffin"):
                connection.request("PUT", f"/lake/t/{name}", body, {"User-Agent": "aws-sdk-java/2"})
                assert connection.getresponse().read() == body
            requests = way.take()
            assert list(map(str, requests)) == ["Spark: PUT list of manifests", "Spark: PUT vectors"]
            assert one_after_another(requests) == 2
            assert way.take() == []
            connection.close()
    finally:
        server.shutdown()
        server.server_close()


def test_the_table_shows_ratio_both_figures_and_the_machine() -> None:
    with tempfile.TemporaryFile("w+") as file:
        found = {"some_bench": [figure(wanted=3.0, aim=5.0, parts={"s, alone": 1.25}, note="as is")]}
        print_table(MACHINE, found, Console(file=file))
        file.seek(0)
        text = file.read()
    for piece in (
        "some_bench",
        "100.00 rows/s",
        "50.00 rows/s",
        "2.00 (2.00 to 2.00)",
        "3.00 missed",
        "5.00",
    ):
        assert piece in text
    for piece in (
        "a CPU",
        "23.5 GiB",
        "Python 3.11.7",
        "PostgreSQL 18.4",
        "commit abc",
        "1.25 s, alone; as is",
    ):
        assert piece in text


def test_the_document_for_machines_has_every_value() -> None:
    told = json.loads(
        json.dumps(document(MACHINE, {"some_bench": [figure(ours=(1.0, 3.0), theirs=(1.0, 1.0))]}))
    )
    assert told["machine"]["commit"] == "abc"
    [found] = told["figures"]["some_bench"]
    assert (found["ours"], found["ratios"], found["ratio"]) == ([1.0, 3.0], [1.0, 3.0], 2.0)


def test_a_run_takes_the_place_of_the_one_before_on_the_page() -> None:
    told = json.loads(
        json.dumps(document(MACHINE, {"some_bench": [figure(wanted=3.0, parts={"s, alone": 1.25})]}))
    )
    page = with_figures(f"before\n{BEGIN}\nan old run\n{END}\nafter\n", told)
    assert page.startswith(f"before\n{BEGIN}\na CPU, 2 cores")
    assert page.endswith(f"\n{END}\nafter\n")
    assert "an old run" not in page
    item = "- work: **2.00** (2.00 to 2.00); ours 100.00 rows/s; peer 50.00 rows/s. Wanted: 3.00, **missed**."
    assert f"`some_bench`:\n\n{item} Medians: 1.25 s,\n  alone.\n{END}" in page
    assert max(len(line) for line in page.splitlines()) <= 120


def test_the_page_of_the_docs_has_its_marks() -> None:
    text = PAGE.read_text()
    assert text.index(BEGIN) < text.index(END)


def test_this_machine_says_what_it_is() -> None:
    machine = Machine.this()
    assert machine.cores >= 1
    assert machine.memory_gib > 0
    assert machine.postgres.startswith("18")


def test_an_unknown_name_is_one_clear_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "one_row_snyc"]) == 2
    said = capsys.readouterr().err
    assert "there is no benchmark 'one_row_snyc' (did you mean one_row_sync_s?)" in said
    assert "pull_vs_pg_recvlogical" in said


def test_a_file_that_cannot_be_written_is_said_before_minutes_have_passed(tmp_path: Path) -> None:
    with pytest.raises(PipelineFileError, match="cannot be written"):
        run(["decode_rows_per_s"], tmp_path / "missing" / "figures.json", silent)


def test_every_benchmark_is_where_it_is_said_to_be() -> None:
    assert all(callable(getattr(import_module(module), name)) for name, module in BENCHES.items())


@pytest.mark.parametrize("text", ["many", "12", "-5000", "1e6"])
def test_a_number_of_rows_is_checked(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(ROWS_VARIABLE, text)
    with pytest.raises(PipelineFileError, match=ROWS_VARIABLE):
        rows_asked(5)


def test_the_usual_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ROWS_VARIABLE, raising=False)
    assert rows_asked(5) == 5
    monkeypatch.setenv(ROWS_VARIABLE, "2000")
    assert rows_asked(5) == 2000


@pytest.mark.parametrize("text", ["none", "0", "-1"])
def test_a_number_of_runs_is_checked(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(RUNS_VARIABLE, text)
    with pytest.raises(PipelineFileError, match="not a number of runs"):
        runs_asked(3)


class _Command:
    """The command in a process of its own, small, with its own temporary folder."""

    def __init__(self) -> None:
        self.scratch = Path(tempfile.mkdtemp(prefix="slotlake-bench-test-"))
        self.scratch.chmod(0o755)  # the server's user must get in

    def __call__(self, *arguments: str, rows: int = 5000) -> subprocess.Popen[str]:
        own = {ROWS_VARIABLE: str(rows), RUNS_VARIABLE: "1", "TMPDIR": str(self.scratch)}
        return subprocess.Popen(
            [sys.executable, "-m", "slotlake", "bench", *arguments],
            cwd=ROOT,
            env={**os.environ, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def command() -> Iterator[_Command]:
    start = _Command()
    # A run that was started in the background of a shell ignores Ctrl-C, and so would its children.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield start
    signal.signal(signal.SIGINT, before)
    shutil.rmtree(start.scratch)


# Those that take long: most start a Spark of their own.
LONGER = {
    "idle_cpu_percent",
    "dag_parse_s",
    "ten_thousand_points_vs_few",
    "merge_1m_vs_plain_merge",
    "merge_100k_vs_plain_merge",
    "merge_unclustered_vs_plain_merge",
    "fold_vs_spark_window",
    "ten_of_a_thousand_vs_ten",
    "many_tables",
    "one_transaction_mib",
    "one_row_sync_s",
    "lag_s",
    "lag_scheduled_s",
    "upkept_vs_fresh",
    "last_update_vs_first",
    "s3_vs_folder",
    "first_pipeline_s",
    "query_s",
    "copy_vs_copy_binary",
    "merge_1k_vs_plain_merge",
    "direct_vs_merge",
    "tpcc_vs_merge",
    "verify_by_executors",
    "verify_load_percent",
    "verify_connections",
    "two_workers_vs_one",
}
TRIED = [name for name in BENCHES if name not in LONGER or os.environ.get("SLOTLAKE_TEST_LONG")]


def ours_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("slotlake-"))


@pytest.mark.server
@pytest.mark.slow
def test_each_benchmark_runs_and_leaves_nothing(command: _Command, tmp_path: Path) -> None:
    running = command(*TRIED, "--json", str(tmp_path / "figures.json"))
    out, said = running.communicate(timeout=580)
    assert running.returncode == 0, said
    told = json.loads((tmp_path / "figures.json").read_text())
    assert list(told["figures"]) == TRIED
    assert all(figure["ratio"] > 0 for figures in told["figures"].values() for figure in figures)
    assert all(name in out for name in TRIED)
    assert ours_in(command.scratch) == []


@pytest.mark.server
@pytest.mark.parametrize("number", [2, 15], ids=["Ctrl-C", "asked to end"])
def test_an_interrupted_benchmark_leaves_nothing(command: _Command, number: int) -> None:
    running = command("decode_rows_per_s", rows=500_000)  # it does not end by itself meanwhile
    assert running.stderr is not None
    assert running.stderr.readline() == "decode_rows_per_s: making the backlog\n"
    assert ours_in(command.scratch) != []
    running.send_signal(number)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 128 + number
    assert "Traceback" not in said
    assert ours_in(command.scratch) == []
