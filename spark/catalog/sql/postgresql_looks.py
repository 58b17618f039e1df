"""A look at a PostgreSQL catalog that reads only what is not as it was at the last one.

The tables are in :data:`PARTS` parts, by a hash of their names.  The server answers with a digest of each
part, and with the texts of the parts whose digest it was not told of.  Of 10,000 tables, all texts take the
server 13 ms and are 1.8 MB, six times in a sync; the digests take 4 ms, and those of a batch that touched ten
5 ms.  A session in which no transaction of the server has ended since the last look is not asked even these.

Invariant: the answer is that of one statement, so it is one cut of the catalog.  What is remembered of a
part was in one answer together with its digest, and the digest is one of content (a count and a sum of
64-bit hashes): so it holds on whatever server, in whatever session it is asked for.  A snapshot of
transactions only holds in the session that it was seen in: a server that crashes may give numbers again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from slotlake.spark.catalog.sql.pointer_texts import SEPARATOR, WHERE, PointerTexts

PARTS: Final = 128
# Answers a query with all of its rows.
Asking: TypeAlias = Callable[[str, Mapping[str, str]], Sequence[Any]]
_POINTERS: Final = f"""(
    SELECT hashtext(table_name) & {PARTS - 1} AS part, table_namespace, table_name, metadata_location
    FROM iceberg_tables WHERE {WHERE.format(all_rows="")}
) AS pointers"""
_ROW: Final = "table_namespace || chr(30) || table_name || chr(30) || metadata_location"
# Which transactions have ended, and which session of which server says so: behind a pooler these change.
_STATE: Final = "concat_ws(' ', txid_current_snapshot(), pg_postmaster_start_time(), pg_backend_pid())"
# PostgreSQL moves a row that is updated: without an order, every change would be one of all places.
PARTS_OF_POSTGRESQL: Final = f"""
WITH digests AS (
    SELECT part, concat(';', part, ' ', count(*), ' ', sum(hashtextextended({_ROW}, 1)), ';') AS digest
    FROM {_POINTERS} WHERE {_STATE} <> :state GROUP BY part
), texts AS (
    SELECT part, count(*) AS number, string_agg(table_namespace, chr(30)) AS namespaces,
        string_agg(table_name, chr(30)) AS names, string_agg(metadata_location, chr(30)) AS locations
    FROM (
        SELECT part, table_namespace, table_name, metadata_location FROM {_POINTERS}
        WHERE {_STATE} <> :state
            AND part = ANY (ARRAY(SELECT part FROM digests WHERE strpos(:known, digest) = 0))
        ORDER BY part, table_namespace, table_name
    ) AS unknown GROUP BY part
)
SELECT state, digest, number, namespaces, names, locations
FROM (SELECT {_STATE}) AS now (state) LEFT JOIN (digests LEFT JOIN texts USING (part)) ON true ORDER BY part
"""


class _Look(NamedTuple):
    """The texts of each part by its digest, and of all parts, in their order; and when that was so.

    Attributes:
        state: as the session said.
        session: over which it was said.
    """

    parts: Mapping[str, PointerTexts]
    texts: PointerTexts
    state: str
    session: weakref.ref[Any]


class PostgresqlLooks:
    """The last look at one catalog, in the lake's memory."""

    def __init__(self) -> None:
        self._last: _Look | None = None

    def texts(self, session: object, ask: Asking, asked: Mapping[str, str]) -> PointerTexts:
        """Return the pointers of all tables, of which only the parts are read that have changed.

        Args:
            ask: asks over it, outside of a transaction that has changed anything.
            asked: ``catalog``: its name, and ``owner``: the property that marks namespaces of views; the
                same each time.
        """
        last = self._last
        known = {} if last is None else last.parts
        state = last.state if last is not None and last.session() is session else ""
        answers = ask(PARTS_OF_POSTGRESQL, {**asked, "state": state, "known": "".join(known)})
        now = answers[0][0]
        if last is not None and now == state:
            return last.texts
        rows = [row[1:] for row in answers if row[1] is not None]
        if last is not None and [digest for digest, *_ in rows] == list(known):
            texts = last.texts
        else:
            known = {
                digest: known[digest] if number is None else PointerTexts(number, *texts)
                for digest, number, *texts in rows
            }
            texts = _joined(list(known.values()))
        self._last = _Look(known, texts, now, weakref.ref(session))
        return texts


def _joined(parts: Sequence[PointerTexts]) -> PointerTexts:
    if not parts:
        return PointerTexts(0, None, None, None)
    number, *texts = zip(*parts, strict=True)
    return PointerTexts(sum(number), *map(SEPARATOR.join, texts))
