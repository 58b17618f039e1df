"""What was read of the source's catalog before, and is the same still: it is not fetched and read again.

A batch compares all followed tables with the catalog, and nearly always nothing has changed.  So the server
is asked for one digest of all of them first (`digests`).  If that has changed, it is asked for one number per
table: the sum of the digests of all rows that `table_fingerprints` would fetch of it.  Only tables whose
number is another one are read.

Invariant: a number stands for content, not for a time.  It is made of the very queries that read the tables,
so nothing that those show can change without it, and it may be asked for under any snapshot.  A description
is remembered only if the table had the same number before and after it was read; all of them together only if
the digest was the same, too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import psycopg

from slotlake.decoder.catalog.digests import Digest, described_digest, listed_digest
from slotlake.decoder.catalog.fingerprints import TableFingerprint, rows_of_tables, table_fingerprints
from slotlake.decoder.catalog.publication_tables import published_names
from slotlake.decoder.catalog.type_texts import printed_by, types_of_changing_text
from slotlake.decoder.errors import SlotlakeError
from slotlake.decoder.server.source import source_session

# A digest of the whole row as text: sums of digests of single fields would not show names that were swapped.
_NUMBERS = """
SELECT oid, pg_catalog.sum(digest)::text FROM (
    SELECT described.oid, pg_catalog.hashtextextended(described::text COLLATE "C", 1) AS digest
    FROM ({attributes}) AS described
    UNION ALL
    SELECT member.leaf, pg_catalog.hashtextextended(member::text COLLATE "C", 2)
    FROM ({members}) AS member (leaf, entry, way)
) AS rows (oid, digest) GROUP BY oid
"""
# Of fewer tables the question takes less than another session.
AHEAD_MIN = 2000
_Names: TypeAlias = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class _Remembered:
    """A table's description, the number of what it was made of, and its types whose text may change."""

    number: str
    fingerprint: TableFingerprint
    types: frozenset[int]


@dataclass(frozen=True)
class _Whole:
    """What was found of all tables that were asked for, the digest of it, and those with changing texts.

    Attributes:
        asked: the same tables as the text of an array; of 10,000 it takes 2 ms to write.
    """

    oids: Sequence[int]
    asked: str
    digest: Digest
    descriptions: Mapping[int, TableFingerprint]
    changing: Sequence[_Remembered]


class RememberedFingerprints:
    """The descriptions of one database's tables, as they were read last.

    Attributes:
        read_count: how many tables were fetched and read, of all that were asked for.
    """

    def __init__(self) -> None:
        self._publications: tuple[str, ...] = ()
        self._tables: dict[int, _Remembered] = {}
        self._whole: _Whole | None = None
        self._ahead: AskedAhead | None = None
        self.read_count = 0

    def ask_ahead(self, dsn: str, position: int) -> None:
        """Ask for the digest of the tables that were asked for last, if they are many; do not wait for it.

        Args:
            position: LSN after all that was committed before now.
        """
        if self._ahead is not None and position <= self._ahead.position:
            return  # nothing was committed since
        self._ahead, whole = None, self._whole
        if whole is not None and len(whole.descriptions) >= AHEAD_MIN:
            self._ahead = AskedAhead(dsn, whole.asked, self._publications, position)

    def fingerprints(
        self,
        connection: psycopg.Connection[Any],
        tables: Collection[int],
        publications: Sequence[str],
        batch_end: int | None = None,
    ) -> Mapping[int, TableFingerprint]:
        """Return what the catalog says about those tables that exist, as `table_fingerprints` does.

        A table that has not changed since the call before is described by the same object.  If none has, and
        the same tables are asked for, the mapping is the same object, too.

        Args:
            connection: to the source, in a transaction.
            tables: OIDs; what was remembered of others is forgotten.
            batch_end: LSN of what the answer must not be older than, if that is enough; None: it must show
                the catalog as the connection does.
        """
        if self._publications != tuple(publications):
            self._publications, self._tables, self._whole = tuple(publications), {}, None
        oids = list(tables)
        asked = (
            self._whole.asked
            if self._whole and self._whole.oids == oids
            else f"{{{','.join(map(str, oids))}}}"
        )
        ahead, self._ahead = self._ahead, None
        digest = None
        if ahead is not None and batch_end is not None:
            digest = ahead.digest(connection, asked, publications, batch_end)
        if digest is None or self._whole is None or self._whole.digest != digest:
            digest = described_digest(connection, asked, publications)
        if self._is_whole(connection, asked, digest):
            assert self._whole is not None
            return self._whole.descriptions
        descriptions: Mapping[int, TableFingerprint] = self._by_numbers(connection, tables, publications)
        earlier, self._whole = self._whole, None
        if (
            described_digest(connection, asked, publications) == digest
            and descriptions.keys() == self._tables.keys()
        ):
            changing = [each for each in self._tables.values() if each.types]
            if earlier is not None and _same_objects(earlier.descriptions, descriptions):
                descriptions = earlier.descriptions
            self._whole = _Whole(oids, asked, digest, descriptions, changing)
        return descriptions

    def _is_whole(self, connection: psycopg.Connection[Any], asked: str, digest: Digest) -> bool:
        """Whether nothing of any table has changed, the texts of their types neither."""
        whole = self._whole
        if whole is None or (whole.asked, whole.digest) != (asked, digest):
            return False
        types = frozenset[int]().union(*(each.types for each in whole.changing))
        texts = printed_by(connection, types) if types else {}
        return all(_prints(each, texts) for each in whole.changing)

    def _by_numbers(
        self, connection: psycopg.Connection[Any], tables: Collection[int], publications: Sequence[str]
    ) -> dict[int, TableFingerprint]:
        numbers = _numbers(connection, tables, publications)
        same = self._same(connection, numbers)
        changed = numbers.keys() - same.keys()
        fetched = table_fingerprints(connection, changed, publications) if changed else {}
        self.read_count += len(changed)
        after = _numbers(connection, changed, publications) if changed else {}
        self._tables = same | {
            oid: _Remembered(numbers[oid], fingerprint, types_of_changing_text(_types(fingerprint)))
            for oid, fingerprint in fetched.items()
            if numbers[oid] == after.get(oid)
        }
        return {oid: each.fingerprint for oid, each in same.items()} | fetched

    def _same(
        self, connection: psycopg.Connection[Any], numbers: Mapping[int, str]
    ) -> dict[int, _Remembered]:
        """What is remembered of tables of which nothing has changed, the texts of their types neither."""
        same = {
            oid: self._tables[oid]
            for oid, number in numbers.items()
            if oid in self._tables and self._tables[oid].number == number
        }
        types = frozenset[int]().union(*(each.types for each in same.values()))
        if not types:
            return same
        texts = printed_by(connection, types)
        return {oid: each for oid, each in same.items() if not each.types or _prints(each, texts)}


class RememberedNames:
    """The tables that publications publish, as they were read last.

    Attributes:
        read_count: how often they were read.
    """

    def __init__(self) -> None:
        self._remembered: tuple[tuple[str, ...], Digest, _Names] | None = None
        self._others: tuple[_Names, Collection[tuple[str, str]], _Names] | None = None
        self.read_count = 0

    def names(self, connection: psycopg.Connection[Any], publications: Sequence[str]) -> _Names:
        """Return schema and name of every table that these publications publish.

        As `published_names`; the same object as before if nothing has changed.
        """
        digest = listed_digest(connection, publications)
        if self._remembered is not None and self._remembered[:2] == (tuple(publications), digest):
            return self._remembered[2]
        names = frozenset(published_names(connection, publications))
        if self._remembered is not None and self._remembered[2] == names:
            names = self._remembered[2]
        unchanged = listed_digest(connection, publications) == digest
        self._remembered = (tuple(publications), digest, names) if unchanged else None
        self.read_count += 1
        return names

    def others(
        self,
        connection: psycopg.Connection[Any],
        publications: Sequence[str],
        known: Collection[tuple[str, str]],
    ) -> _Names:
        """Return those of `names` that are not among the known ones.

        Args:
            connection: to the source, in a transaction.
            known: schema and name of tables; nobody changes it.
        """
        names = self.names(connection, publications)
        if self._others is None or self._others[0] is not names or self._others[1] is not known:
            self._others = names, known, names.difference(known)
        return self._others[2]


def _same_objects(one: Mapping[int, TableFingerprint], other: Mapping[int, TableFingerprint]) -> bool:
    """Whether both have the same descriptions of the same tables: then what is made of them is the same."""
    return one.keys() == other.keys() and all(one[oid] is other[oid] for oid in one)


def _prints(remembered: _Remembered, texts: Mapping[int, frozenset[str]]) -> bool:
    """Whether the values of a table's types are printed as they were."""
    return all(
        attribute.texts == texts.get(attribute.type_oid, frozenset())
        for attribute in remembered.fingerprint.attributes.values()
        if attribute.type_oid in remembered.types
    )


def _types(fingerprint: TableFingerprint) -> set[int]:
    return {attribute.type_oid for attribute in fingerprint.attributes.values()}


def _numbers(
    connection: psycopg.Connection[Any], tables: Collection[int], publications: Sequence[str]
) -> dict[int, str]:
    """The number of each table that exists."""
    attributes, members, parameters = rows_of_tables(connection, tables, publications)
    query = _NUMBERS.format(attributes=attributes, members=members)
    return {
        int(oid): str(number) for oid, number in connection.execute(query.encode(), parameters).fetchall()
    }


# The digest of all tables, asked for while a batch is on its way: of 10,000 it takes the server 45 ms.
#
# A batch is compared with a catalog that is not older than its end.  So the question has a position: all
# that is committed up to it was committed before the question.  For a batch that ends after it, it is asked
# again.
#
# Invariant: the catalog that is shown has every transaction that was committed up to that position.  A
# commit is in the WAL some time before others see it: a moment, or as long as a standby that it waits for.
# Till then its transaction is running.  So those that were running before the question are looked for after
# it, when the batch is there: if one of them has ended since, the answer does not count.

# Of prepared transactions, too; a server that replays another's WAL shows a commit before it counts as read.
_RUNNING = """
SELECT transactionid::text FROM pg_catalog.pg_locks
WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock' AND granted
"""
# Most transactions end within that; for the others it is not worth waiting.
_WAIT_SECONDS, _POLL_SECONDS = 0.02, 0.002


class AskedAhead:
    """One question, which a thread and a session of their own ask.

    Args:
        dsn: the source's connection string.
        tables: OIDs, as the text of an array.
        publications: names of the publications that count.
        position: LSN after all that was committed before now.
    """

    def __init__(self, dsn: str, tables: str, publications: Sequence[str], position: int) -> None:
        self._dsn, self._tables, self._publications = dsn, tables, tuple(publications)
        self.position = position
        self._digest: Digest | None = None
        self._running: set[str] = set()
        self._thread = threading.Thread(target=self._ask, name="catalog, ahead", daemon=True)
        self._thread.start()

    def digest(
        self, connection: psycopg.Connection[Any], tables: str, publications: Sequence[str], batch_end: int
    ) -> Digest | None:
        """Return the answer; None if this must be asked now.

        Args:
            tables: OIDs, as the text of an array.
            batch_end: LSN at which the batch ends that was read meanwhile.
        """
        asked = self._tables, self._publications
        if asked != (tables, tuple(publications)) or batch_end > self.position:
            return None
        self._thread.join()
        if self._digest is None or not self._running <= _running(connection):
            return None
        return self._digest

    def _ask(self) -> None:
        try:
            with source_session(self._dsn, "reading the tables' columns") as connection:
                self._running = _still_running(connection)
                self._digest = described_digest(connection, self._tables, self._publications)
        except SlotlakeError:  # whoever asks again is told
            self._digest = None


def _still_running(connection: psycopg.Connection[Any]) -> set[str]:
    """Those of the transactions running now that do not end in a moment."""
    running, give_up_at = _running(connection), time.monotonic() + _WAIT_SECONDS
    while running and time.monotonic() < give_up_at:
        time.sleep(_POLL_SECONDS)
        running &= _running(connection)
    return running


def _running(connection: psycopg.Connection[Any]) -> set[str]:
    return {text for (text,) in connection.execute(_RUNNING).fetchall()}
