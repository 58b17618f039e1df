"""What of the source's catalog a lake table agrees with: written into its shape when it is copied.

`decoder.table_marks` reads it; `infra.evolution` compares it with what the catalog says later.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from psycopg import sql

from decoder.errors import ChangedMeanwhileError
from decoder.publications import SourceTable
from decoder.source import connect, source_errors
from decoder.table_marks import TableMark, table_marks

if TYPE_CHECKING:
    from infra.pipeline import Pipeline
    from spark.tables import TableSchema


# Every batch looks at the marks of all tables.
_READ_LATELY = 4096


@dataclass(frozen=True)
class Mark:
    """What a lake table agrees with.

    Attributes:
        relation_id, storage, members: as in `decoder.table_marks.TableMark`.
        last: the highest attribute number that is accounted for.
        since: attribute number → the transaction that had last changed its description.
        missing: attribute numbers of columns of which a constant was kept beside the table.
        why: when and why it was last copied again by itself, for people; "" if it never was.
    """

    relation_id: int
    storage: int
    members: frozenset[str]
    last: int
    since: Mapping[int, str]
    missing: frozenset[int]
    why: str = ""

    def to_json(self) -> str:
        """For `TableSchema.mark`."""
        told = {
            "oid": self.relation_id,
            "storage": self.storage,
            "members": sorted(self.members),
            "last": self.last,
            "since": {str(number): since for number, since in sorted(self.since.items())},
            "missing": sorted(self.missing),
            "why": self.why,
        }
        return json.dumps(told, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Mark | None:
        """From a table's shape; None if it has no mark."""
        return _read(text) if text else None

    @classmethod
    def of(cls, now: TableMark, numbers: Collection[int], before: Mark | None = None) -> Mark:
        """What a table with these columns agrees with now; ``before``: without having been copied."""
        known = {number: now.attributes[number] for number in numbers if number in now.attributes}
        return cls(
            now.relation_id,
            now.storage,
            now.members,
            max(now.attributes) if before is None else max(before.last, *numbers),
            {number: attribute.since for number, attribute in known.items()},
            frozenset(number for number, attribute in known.items() if attribute.missing),
            "" if before is None else before.why,
        )


@lru_cache(maxsize=_READ_LATELY)
def _read(text: str) -> Mark:
    told = json.loads(text)
    since = {int(number): value for number, value in told["since"].items()}
    members, missing = frozenset(told["members"]), frozenset(told["missing"])
    return Mark(told["oid"], told["storage"], members, told["last"], since, missing, told["why"])


def marked(schema: TableSchema, now: TableMark | None) -> TableSchema:
    """A shape just copied, with its columns' numbers and what it agrees with; as it is if unknown."""
    if now is None or any(column.name not in now.numbers for column in schema.columns):
        return schema
    columns = tuple(replace(c, number=now.numbers[c.name]) for c in schema.columns)
    return replace(schema, columns=columns, mark=Mark.of(now, [c.number for c in columns]).to_json())


def marks_at(pipeline: Pipeline, tables: Collection[int], snapshot: str | None) -> dict[int, TableMark]:
    """The catalog of these tables (OIDs), as a snapshot of the source shows it, or as it is now (None)."""
    if not tables:
        return {}
    dsn = pipeline.source.dsn
    with ExitStack() as stack:
        connection = stack.enter_context(connect(dsn))
        stack.enter_context(source_errors(dsn, "reading the tables' columns"))
        stack.enter_context(connection.transaction())
        if snapshot is not None:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
        return table_marks(connection, tables, pipeline.source.publications)
    raise AssertionError("unreachable")


def require_unchanged(
    pipeline: Pipeline, before: Mapping[int, TableMark], tables: Iterable[SourceTable]
) -> None:
    """Raises if a table was rewritten or altered since ``before``: a snapshot does not hide that.

    A command that rewrites a table leaves nothing for older snapshots to see; a copy read after it is empty
    (PostgreSQL's manual, "Caveats" of multiversion concurrency).
    """
    after = marks_at(pipeline, before.keys(), None)
    for table in tables:
        then, now = before.get(table.relation_id), after.get(table.relation_id)
        if then is None or now is None or (then.storage, then.attributes) != (now.storage, now.attributes):
            raise ChangedMeanwhileError(
                "a table was altered or rewritten while it was copied",
                where=f"table {table.quoted}",
                way_out="run again; nothing was published",
            )
