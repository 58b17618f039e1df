"""The page of plain text at the end of the demo."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from slotlake.infra.demo.bank import SUMS, Point
from slotlake.infra.launch.folders import CHECKOUT, COMMAND, home

READER = '''"""Read the demo's lake with pyiceberg and DuckDB, without slotlake."""

import importlib.util
from pathlib import Path

import duckdb
from pyiceberg.catalog.sql import SqlCatalog

lake = SqlCatalog("lake", uri="sqlite:///{folder}/lake.db", warehouse="{warehouse}", **{storage!r})
print(lake.load_table(("bank", "commits")).scan().to_arrow().sort_by("position").to_pandas())

for extension in ("avro", "iceberg", "httpfs"):  # from installed packages, without a download
    package = importlib.util.find_spec(f"duckdb_extension_{{extension}}").submodule_search_locations[0]
    duckdb.execute(f"LOAD '{{next(Path(package).rglob('*.duckdb_extension'))}}'")
duckdb.execute("SET enable_external_file_cache = false")  # with this cache, DuckDB 1.5.5 reads wrong rows
{secret}history = lake.load_table(("bank", "pgbench_history")).metadata_location
print(duckdb.sql(f"SELECT count(*) AS rows, sum(delta) AS sum FROM iceberg_scan('{{history}}')"))
'''

_S3_KEYS = """duckdb.execute(
    "CREATE SECRET (TYPE s3, ENDPOINT '{address}', USE_SSL false, URL_STYLE 'path', REGION '{region}', "
    "KEY_ID '{access_key}', SECRET '{secret_key}')"
)
"""


def reader(folder: Path, warehouse: str, storage: Mapping[str, str]) -> str:
    """Return a program that reads the lake.

    Args:
        warehouse: where the lake's files are.
        storage: the section ``lake.storage`` of the pipeline file; empty for a folder.
    """
    properties = {
        "s3.endpoint": storage.get("endpoint"),
        "s3.region": storage.get("region"),
        "s3.access-key-id": storage.get("access_key"),
        "s3.secret-access-key": storage.get("secret_key"),
    }
    given = {name: text for name, text in properties.items() if text is not None}
    address = storage.get("endpoint", "").rpartition("/")[2]
    secret = _S3_KEYS.format(address=address, **storage) if storage else ""
    return READER.format(folder=folder, warehouse=warehouse, storage=given, secret=secret)


@dataclass(frozen=True)
class Outcome:
    """The results of a run of the demo."""

    folder: Path
    pipeline_file: Path
    left_running: bool
    in_s3: bool
    airflow_url: str
    airflow_password: str
    write_more: str
    scale: int
    rate: float
    schedule_seconds: int
    written: int
    copied: dict[str, Any]
    sync_seconds: float
    verified: dict[str, Any]
    points: Sequence[Point]
    seconds: float

    @property
    def good(self) -> bool:
        """Return whether the lake is equal and the sums are equal at every point."""
        return bool(self.verified["equal"]) and all(point.holds for point in self.points)


def page(outcome: Outcome) -> str:
    """Return the whole page."""
    parts = (_verdict, _figures, _verified, _invariant, _go_on)
    return "\n\n".join("\n".join(part(outcome)) for part in parts) + "\n"


def _verdict(o: Outcome) -> Iterator[str]:
    broken = sum(not point.holds for point in o.points)
    equal = "equal" if o.verified["equal"] else "DIFFERENT"
    sums = f"the sums are equal at all {len(o.points)} consistency points"
    hold = f"the sums DIFFER at {broken} points" if broken else sums
    yield f"slotlake demo: source and lake are {equal} at {o.verified['lsn']}; {hold}; {o.seconds:.0f} s"


def _figures(o: Outcome) -> Iterator[str]:
    batches = [point for point in o.points if point.transactions]
    changes = sum(point.changes for point in batches)
    lags = [point.lag_seconds for point in batches if point.lag_seconds is not None]
    yield f"  source         PostgreSQL 18, pgbench scale {o.scale}, {o.written:,} transactions"
    yield f"                 written at {o.rate:,.0f}/s while Airflow synced every {o.schedule_seconds} s"
    copied, seconds = o.copied["rows"], o.copied["seconds"]
    yield f"  initial copy   {copied:,} rows in {seconds:.1f} s, {copied / seconds:,.0f} rows/s"
    yield (
        f"  batches        {len(batches)} with {sum(p.transactions for p in batches):,} transactions, "
        f"{changes:,} changes"
    )
    if o.sync_seconds:
        speed, written = changes / o.sync_seconds, o.rate * len(SUMS)
        yield f"  speed          {speed:,.0f} rows/s in pull, apply and publish; {written:,.0f}/s written"
    if lags:
        yield (
            f"  lag            oldest commit of a batch to queryable: median {median(lags):.1f} s, "
            f"worst {max(lags):.1f} s"
        )


def _verified(o: Outcome) -> Iterator[str]:
    yield f"verified at {o.verified['lsn']}, an exact position of the source"
    yield f"  {'table':<28}{'rows in source':>16}{'rows in lake':>16}  result"
    for name, table in sorted(o.verified["tables"].items()):
        result = "equal" if table["equal"] else f"{table['differences']} keys differ"
        yield f"  {name:<28}{table['source_rows']:>16,}{table['lake_rows']:>16,}  {result}"


def _invariant(o: Outcome) -> Iterator[str]:
    yield "TPC-B: the sums of accounts, tellers, branches and history are equal at every consistency point"
    yield f"  {'LSN':<16}{'kind':<10}{'transactions':>14}{'changes':>12}{'sum':>14}  result"
    for point in o.points:
        start = f"  {point.lsn:<16}{point.kind:<10}{point.transactions:>14,}{point.changes:>12,}"
        if point.holds:
            yield f"{start}{next(iter(point.sums.values())):>14,}  equal"
        else:
            sums = ", ".join(f"{table} {point.sums[table]:,}" for table in SUMS)
            yield f"{start}{'':>14}  DIFFERENT: {sums}"


def _go_on(o: Outcome) -> Iterator[str]:
    file, command = o.pipeline_file, _command()
    yield "what you can do now"
    yield f"  all files      {o.folder}"
    if o.left_running:
        yield f"  Airflow        {o.airflow_url}  user admin, password {o.airflow_password}"
        yield f"  the page       {o.airflow_url}/plugin/slotlake  in Airflow, with lag, batches and tables"
        yield f"  write more     {o.write_more}"
        yield f"  status         {command} status {file}"
        yield f"  live           {command} top {file}"
        yield f"  verify         {command} verify {file}"
    else:
        yield f"  Airflow        {command} demo --keep lets the servers run and prints the address of the UI"
    if o.in_s3 and not o.left_running:
        yield "                 (the lake is in the S3 server, so it can be read while that runs)"
        yield "  all servers have stopped; the lake's files stay until the next demo"
        return
    count = '"SELECT count(*) FROM pgbench_history"'
    yield f"  query          {command} query {file} {count}"
    yield f"  at a point     {command} query {file} {count} --at {o.points[0].lsn}"
    yield f"  as one file    {command} report {file} -o {o.folder / 'report.html'}"
    yield f"  other readers  {sys.executable} {o.folder / 'read.py'}"
    yield "                 (this script reads the lake with pyiceberg and DuckDB only)"
    if o.left_running:
        usual = o.folder == home() / "demo"
        yield f"  stop           {command} demo --stop{'' if usual else f' --dir {o.folder}'}"
    else:
        yield "  all servers have stopped; the lake's files stay until the next demo"


def _command() -> str:
    """How to call slotlake from where the demo was called."""
    if COMMAND == "slotlake" or Path.cwd() == CHECKOUT:
        return COMMAND
    return str(CHECKOUT / COMMAND)
