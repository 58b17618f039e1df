"""Which rows a verification of changed rows compares: those whose keys the change log has touched.

From the LSN at which a table was last found equal up to the LSN of the verification.  Where the change log
does not reach back so far, or shows no keys, the result says so; the rolling part or a full verification
covers such rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.changelog.batches import Batch, batch_positions, batches
from slotlake.decoder.changelog.touched import TouchedKeys, touched_keys
from slotlake.decoder.errors import ChangeLogError
from slotlake.decoder.lsn import format_lsn, parse_lsn
from slotlake.spark.names import postgres_name

if TYPE_CHECKING:
    from slotlake.infra.opened.open_pipeline import OpenPipeline

NO_KEY = "the table has no key, so single rows cannot be looked up"


@dataclass(frozen=True)
class ChangedTable:
    """What of a table is compared.

    Attributes:
        since: the LSN from which on its changes are known.
        gap: the LSN at which it was last found equal, if the change log does not reach back to it.
        touched: the keys.
    """

    table: SourceTable
    since: int
    gap: int | None
    touched: TouchedKeys

    @property
    def words(self) -> str:
        """Which rows these are."""
        keys = f"{self.touched.keys.num_rows:,} keys changed since {format_lsn(self.since)}"
        if self.touched.unknown:
            keys = f"all rows, because since {format_lsn(self.since)} {self.touched.unknown}"
        if self.gap is None:
            return keys
        return f"{keys}; the change log has no changes from {format_lsn(self.gap)} to there any more"


@dataclass(frozen=True)
class Changes:
    """The changes since tables were last found equal.

    Attributes:
        tables: those with changes and a key.
        keyless: those with changes, and without a key.
    """

    tables: list[ChangedTable] = field(default_factory=list)
    keyless: list[SourceTable] = field(default_factory=list)


def fetch_batches(pipeline: OpenPipeline, verified: Mapping[str, Any], position: int) -> None:
    """Bring the batches here that another machine has pulled; under the pipeline's lock.

    Args:
        pipeline: has the change log.
        verified: the note of what was found equal.
        position: the lake's position, as an LSN.
    """
    if pipeline.stored is not None:
        since = min(_noted(verified, position).values(), default=0)
        pipeline.stored.fetch(lambda name: since < (batch_positions(name) or (0, 0))[1] <= position)


def changes_since(
    pipeline: OpenPipeline, tables: Sequence[SourceTable], verified: Mapping[str, Any], position: int
) -> Changes:
    """Find what changed in tables up to a position.

    Args:
        pipeline: has the change log.
        verified: the note of what was found equal.
        position: the lake's position, as an LSN.

    Raises:
        ChangeLogError: a batch is damaged.
    """
    noted = _noted(verified, position)
    since = {name: noted[name] for table in tables if _is_noted(name := _name(table), table, noted, verified)}
    oldest = min(since.values(), default=0) if len(since) == len(tables) else 0
    chain = _chain(pipeline.file.changelog_dir, oldest, position)
    reached = chain[0].start_lsn if chain else position
    by_start: dict[int, list[SourceTable]] = {}
    for table in tables:
        by_start.setdefault(max(since.get(_name(table), reached), reached), []).append(table)
    changes = Changes()
    for start, some in by_start.items():
        _collect(changes, [batch for batch in chain if batch.end_lsn > start], start, some, since)
    return changes


def _is_noted(name: str, table: SourceTable, noted: Mapping[str, int], verified: Mapping[str, Any]) -> bool:
    return name in noted and verified["tables"][name].get("relation") == table.relation_id


def _name(table: SourceTable) -> str:
    return postgres_name(table.schema, table.table)


def _collect(
    changes: Changes,
    chain: Sequence[Batch],
    start: int,
    tables: Sequence[SourceTable],
    since: Mapping[str, int],
) -> None:
    touched = touched_keys(chain, {table.relation_id: table.key for table in tables})
    for table in tables:
        of_table = touched.get(table.relation_id)
        last = since.get(_name(table))
        gap = last if last is not None and last < start else None
        if of_table is None and gap is None:
            continue
        if not table.key:
            changes.keyless.append(table)
        else:
            changes.tables.append(ChangedTable(table, start, gap, of_table or TouchedKeys(table.key)))


def _noted(verified: Mapping[str, Any], position: int) -> dict[str, int]:
    """Table → the LSN at which it was last found equal, without those that the lake has gone back behind."""
    noted = {}
    for name, entry in verified["tables"].items():
        if isinstance(entry, dict) and (lsn := entry.get("lsn")) and parse_lsn(lsn) <= position:
            noted[name] = parse_lsn(lsn)
    return noted


def _chain(changelog_dir: Path, oldest: int, position: int) -> list[Batch]:
    """The batches that follow each other up to a position, as far back as is needed and as there are."""
    by_end: dict[int, list[Any]] = {}
    for path in batches(changelog_dir):
        start, end = batch_positions(path.name) or (0, 0)
        if start < end <= position:
            by_end.setdefault(end, []).append((start, path))
    chain: list[Batch] = []
    while position > oldest and position in by_end:
        position, path = min(by_end[position])
        try:
            chain.append(Batch.open(path))
        except ChangeLogError:
            if path.is_dir():
                raise
            break  # an old batch was removed meanwhile
    return chain[::-1]
