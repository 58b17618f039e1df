"""Java's archive of Spark's classes: used, made whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slotlake.infra.local import class_archive, runtime
from slotlake.infra.local.class_archive import archive_options, can_have_archive, make_archive
from slotlake.infra.local.java import Java, find_java
from slotlake.infra.local.runtime import SparkRuntime, pyspark_folder

pytestmark = pytest.mark.server


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder without archives."""
    folder = tmp_path / "home"
    monkeypatch.setenv("SLOTLAKE_HOME", str(folder))
    monkeypatch.delenv("SLOTLAKE_PREPARED", raising=False)
    return folder


def test_spark_takes_its_classes_from_the_archive(spark_runtime: SparkRuntime, tmp_path: Path) -> None:
    if not can_have_archive(spark_runtime.java):
        pytest.skip("this machine's Java takes no archive")
    runtime._prepare()
    loaded = tmp_path / "classes.txt"
    variables = {**os.environ, "SPARK_SUBMIT_OPTS": ""}
    variables |= spark_runtime.environment()
    options = [*archive_options(spark_runtime.java, pyspark_folder()), f"-Xlog:class+load=info:file={loaded}"]
    variables["SPARK_SUBMIT_OPTS"] = " ".join(options)
    program = "from pyspark.sql import SparkSession\nSparkSession.builder.master('local[1]').getOrCreate()"
    subprocess.run([sys.executable, "-P", "-c", program], env=variables, check=True, capture_output=True)
    lines = loaded.read_text().splitlines()
    archived = [line for line in lines if "shared objects file" in line]
    of_spark = [line for line in archived if "org.apache.spark." in line]
    assert len(archived) > 0.8 * len(lines), (len(archived), len(lines))
    assert len(of_spark) > 1000, len(of_spark)


def test_a_truncated_archive_is_not_given_to_java(own_home: Path) -> None:
    java = Java(find_java().home, 17, bundled=False)
    base, top = (own_home / "java" / name for name in class_archive._names(java, pyspark_folder()))
    top.parent.mkdir(parents=True)
    top.write_bytes(b"no archive")
    assert archive_options(java, pyspark_folder()) == []
    base.write_bytes(bytes(8192))
    assert archive_options(java, pyspark_folder()) == []
    class_archive._sizes(top).write_text("8192 10")
    assert archive_options(java, pyspark_folder())[0].endswith(f"={base}:{top}")
    os.truncate(top, 9)
    assert archive_options(java, pyspark_folder()) == []


def test_a_prepared_one_needs_no_cache_folder(
    own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = Java(find_java().home, 17, bundled=False)
    base, top = (
        tmp_path / "prepared" / "java" / name for name in class_archive._names(java, pyspark_folder())
    )
    top.parent.mkdir(parents=True)
    base.write_bytes(b"base")
    top.write_bytes(b"top")
    class_archive._sizes(top).write_text("4 3")
    monkeypatch.setenv("SLOTLAKE_PREPARED", str(tmp_path / "prepared"))
    assert archive_options(java, pyspark_folder())[0].endswith(f"={base}:{top}")
    assert not own_home.exists()
    monkeypatch.delenv("SLOTLAKE_PREPARED")
    monkeypatch.setenv("SLOTLAKE_HOME", "/proc/nowhere")
    assert archive_options(java, pyspark_folder()) == []


def test_made_whole_or_not_at_all_and_old_ones_go(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java, folder_of_spark = Java(find_java().home, 17, bundled=False), pyspark_folder()
    folder = own_home / "java"
    folder.mkdir(parents=True)
    for day in range(4):
        for end in (".base.jsa", ".jsa"):
            old = folder / f"classes-{day}{end}"
            old.touch()
            os.utime(old, (day, day))

    left = folder / "making-classes-of-one-that-was-killed"
    left.mkdir()
    os.utime(left, (0, 0))

    def failing(command: list[str], variables: dict[str, str]) -> None:
        if "-Xshare:dump" not in command:
            raise OSError("no memory")
        Path(command[-1].partition("=")[2]).write_text("base")  # not whole yet

    monkeypatch.setattr(class_archive, "_run", failing)
    with pytest.raises(OSError, match="no memory"):
        make_archive(java, folder_of_spark, "", {})
    assert archive_options(java, folder_of_spark) == []
    assert not [path for path in folder.iterdir() if path.is_dir()]

    def working(command: list[str], variables: dict[str, str]) -> None:
        if "-version" not in command:
            Path(variables["SPARK_SUBMIT_OPTS"].rpartition("=")[2]).write_text("top")

    monkeypatch.setattr(class_archive, "_run", working)
    made = make_archive(java, folder_of_spark, "", {})
    assert archive_options(java, folder_of_spark)[0].endswith(f":{made}")
    others = {path.name for path in folder.glob("classes-?.*")}
    assert others == {f"classes-{day}{end}" for day in (2, 3) for end in (".base.jsa", ".jsa")}


def test_a_java_that_would_never_take_one_gets_none() -> None:
    home = find_java().home
    assert not can_have_archive(Java(home, 21, bundled=False))
    assert can_have_archive(Java(home, 21, bundled=True))
    assert archive_options(Java(home, 21, bundled=False), pyspark_folder()) == []


def test_a_program_that_fails_says_its_last_line() -> None:
    with pytest.raises(OSError, match=r"^the reason$"):
        class_archive._run(["/bin/sh", "-c", "echo first >&2; echo the reason >&2; exit 3"], {})
    with pytest.raises(OSError, match="exit code 3"):
        class_archive._run(["/bin/sh", "-c", "exit 3"], {})
