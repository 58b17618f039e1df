"""many_tables: what each command costs with more and more tables, as ratios against the fewest.

Pipelines of each size read the same server and run in one Spark, in turns. What must not grow with the tables
that are there (an idle sync, a batch that touches ten) is held against the smallest pipeline as it is; what
does something for each table (init, a batch that touches all, maintain, verify, status, validate, drop) by
its seconds per table. So a cost of O(n²) shows as a ratio that falls with the size.

Above :data:`_COPIED_MAX` tables, the others are not copied but placed (bench/tables/placed.py): that takes
minutes instead of hours, and leaves out init, the batch that touches all, and maintenance.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import yaml

from slotlake.bench.figures import Figure
from slotlake.bench.lakes import NAMESPACE
from slotlake.bench.tables.placed import TOUCHED, place_tables
from slotlake.bench.workload import (
    COLUMNS,
    DATABASE,
    PUBLICATION,
    SLOT,
    bench_folder,
    bench_server,
    catalog_asked,
    runs_asked,
    tables_asked,
)
from slotlake.decoder.errors import SlotlakeError
from slotlake.decoder.server.position import settled_position
from slotlake.decoder.server.source import connect
from slotlake.infra.local.postgres import EmbeddedPostgres
from slotlake.infra.pipeline import Pipeline
from slotlake.infra.progress import Progressing
from slotlake.infra.status.validation import validate

SIZES = (10, 100, 1000)
_COPIED_MAX = 1000
_ROWS = 20
_WARM_UPS, _RUNS = 3, 24
_SLOWER_MAX = 1.1
_IDLE, _TEN = "an idle sync()", "sync() of one row in each of ten tables"
# Each does something for each table.
_PER_TABLE = (
    "init()",
    "sync() of one row in each table",
    "status()",
    "validate()",
    "verify()",
    "maintain()",
    "drop() with the lake",
)


@dataclass
class _Measured:
    """One pipeline; ``seconds``: of what was done with it, by name."""

    size: int
    pipeline: Pipeline
    copied: bool
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def take(self, what: str, work: Callable[[], Any]) -> Any:
        started = time.monotonic()
        done = work()
        self.seconds.setdefault(what, []).append(time.monotonic() - started)
        return done


def many_tables(progress: Progressing) -> list[Figure]:
    """All commands, at each size that is asked for; the first size is the peer of the others."""
    sizes = tables_asked(SIZES)
    with (
        bench_server() as server,
        bench_folder() as folder,
        connect(server.dsn(DATABASE)) as connection,
        ExitStack() as stack,
    ):
        progress("many_tables: making tables", 0)
        _make_source(connection, sizes)
        measured = []
        for size in sizes:
            progress("many_tables: init, tables", size)
            measured.append(stack.enter_context(_initialised(server, folder, size, progress)))
        _in_turns(connection, measured, progress)
        for each in measured:
            progress("many_tables: all commands, tables", each.size)
            _once(connection, each)
    return [
        *_figures(measured, (_IDLE, _TEN), per_table=False),
        *_figures(measured, _PER_TABLE, per_table=True),
    ]


def _names(size: int) -> list[str]:
    """The tables of a pipeline; those that are placed have no rows."""
    if size <= _COPIED_MAX:
        return [f"t{i}" for i in range(1, size + 1)]
    return [*_names(TOUCHED), *(f"empty{i}" for i in range(1, size - TOUCHED + 1))]


def _make_source(connection: psycopg.Connection[Any], sizes: Sequence[int]) -> None:
    names = list(dict.fromkeys(name for size in sizes for name in _names(size)))
    for first in range(0, len(names), 100):
        some = names[first : first + 100]
        statements = [f"CREATE TABLE {name} ({COLUMNS})" for name in some]
        rows = f"SELECT i, 0 FROM generate_series(1, {_ROWS}) i"
        statements += [f"INSERT INTO {name} (id, quantity) {rows}" for name in some if name.startswith("t")]
        connection.execute(";".join(statements).encode())


@contextmanager
def _initialised(
    server: EmbeddedPostgres, folder: Path, size: int, progress: Progressing
) -> Iterator[_Measured]:
    """A pipeline of the first tables; where they are very many, all but the first are placed."""
    copied = size <= _COPIED_MAX
    names = _names(size)
    first = names if copied else [*names[:TOUCHED], names[-1]]
    suffix = f"_{size}"
    file = folder / f"bench{suffix}.yaml"
    file.write_text(yaml.safe_dump(_contents(server, folder, suffix, first)))
    file.chmod(0o600)  # it holds the server's password
    with Pipeline.open(file) as pipeline:
        measured = _Measured(size, pipeline, copied)
        pipeline.session  # noqa: B018 - its start is not what is measured
        measured.take("init()", lambda: pipeline.init(progress=progress))
        if not copied:
            del measured.seconds["init()"]
            others = names[TOUCHED:-1]
            with connect(server.dsn(DATABASE)) as connection:
                for start in range(0, len(others), 1000):
                    added = ", ".join(others[start : start + 1000])
                    connection.execute(f"ALTER PUBLICATION {PUBLICATION}{suffix} ADD TABLE {added}".encode())
            place_tables(pipeline, names[-1], set(others))
        with connect(server.dsn(DATABASE)) as connection:
            connection.execute("ANALYZE")  # as autovacuum would, which is off here
        yield measured


def _contents(
    server: EmbeddedPostgres, folder: Path, suffix: str, tables: Sequence[str]
) -> Mapping[str, Any]:
    return {
        "name": f"bench{suffix}",
        "source": {
            "dsn": server.url(DATABASE),
            "publications": [f"{PUBLICATION}{suffix}"],
            "slot": f"{SLOT}{suffix}",
        },
        "lake": {
            "catalog": f"lake{suffix}",
            "uri": _catalog_uri(server, folder, suffix),
            "warehouse": f"file://{folder}/warehouse{suffix}",
            "namespace": f"{NAMESPACE}{suffix}",
        },
        "maintenance": {"in_sync": False},  # else it is due in some of the runs that are compared
        "tables": {f"public.{table}": {} for table in tables},
    }


def _catalog_uri(server: EmbeddedPostgres, folder: Path, suffix: str) -> str:
    kind = catalog_asked()
    if kind == "sqlite":
        return f"sqlite:///{folder}/catalog{suffix}.db"
    if kind != "postgresql":
        return kind
    name = f"catalog{suffix}"
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return server.url(name)


def _in_turns(
    connection: psycopg.Connection[Any], measured: Sequence[_Measured], progress: Progressing
) -> None:
    """What does not touch most tables: all pipelines, one after the other, again and again."""
    change = ";".join(f"UPDATE t{i} SET quantity = quantity + 1 WHERE id = 5" for i in range(1, TOUCHED + 1))
    warm_ups = runs_asked(_WARM_UPS)
    for run in range(warm_ups + runs_asked(_RUNS)):
        progress("many_tables: rounds", run + 1)
        connection.execute(change.encode())
        turns = measured if run % 2 else measured[::-1]
        for each in turns:
            settled_position(connection)  # else some wait for the disk, for what others have written
            report = each.take(_TEN, each.pipeline.sync)
            if len(report.tables) != TOUCHED:
                raise SlotlakeError(f"sync took {len(report.tables)} tables, not {TOUCHED}")
        for each in turns:
            settled_position(connection)
            each.take(_IDLE, each.pipeline.sync)
        if run < warm_ups:
            for each in measured:
                each.seconds = {
                    what: taken for what, taken in each.seconds.items() if what not in {_TEN, _IDLE}
                }


def _once(connection: psycopg.Connection[Any], each: _Measured) -> None:
    """What does something for each table."""
    pipeline = each.pipeline
    if each.copied:
        for i in range(1, each.size + 1):
            connection.execute(f"UPDATE t{i} SET quantity = quantity + 1 WHERE id = 6".encode())
        report = each.take("sync() of one row in each table", pipeline.sync)
        if len(report.tables) != each.size:
            raise SlotlakeError(f"sync took {len(report.tables)} tables, not {each.size}")
    for _ in range(2):
        each.take("status()", pipeline.status)
    each.take("validate()", lambda: validate(pipeline.file.path))
    if not each.take("verify()", pipeline.verify).equal:
        raise SlotlakeError(f"the lake of {each.size} tables is not equal to the source")
    if each.copied:
        each.take("maintain()", pipeline.maintain)
    each.take("drop() with the lake", lambda: pipeline.drop(lake=True))


def _figures(measured: Sequence[_Measured], names: Sequence[str], *, per_table: bool) -> list[Figure]:
    fewest, *others = measured
    figures = []
    for what in names:
        for each in others if len(others) else [fewest]:
            if what not in each.seconds:
                continue
            ours, theirs = each.seconds[what], fewest.seconds[what]
            divided = (each.size, fewest.size) if per_table else (1, 1)
            pairs = list(zip(ours, theirs, strict=True))
            figures.append(
                Figure(
                    what=f"{what}, {each.size:,} tables" + (", per table" if per_table else ""),
                    peer=f"the same, {fewest.size:,} tables" + (", per table" if per_table else ""),
                    unit="s",
                    ours=tuple(mine / divided[0] for mine, _ in pairs),
                    theirs=tuple(other / divided[1] for _, other in pairs),
                    better="less",
                    wanted=1 / _SLOWER_MAX,
                    parts={"s in all": sum(ours) / len(ours)} if per_table else {},
                )
            )
    return figures
