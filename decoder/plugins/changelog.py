"""The change log as a consumer: batches from a slot of another plugin than pgoutput.

Row by row, so slower than `decoder.pull`, but with the same batch at the end: events are written as
pgoutput messages (`encode`) and go through the same columnar decoder and batch writer.

Only what loses nothing may feed a lake: test_decoding, and wal2json in format 2 that prints numbers
as text.  Publications are applied here, as the plugins know none: tables, column lists; one with a row
filter, without some action, or of a partitioned table is refused.  A transaction is held in memory
until its commit, since only that tells where it belongs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg

from decoder.batch_writer import BatchIdentity, BatchWriter, empty_batch, remove_leftovers
from decoder.buffer import MessageBuffer
from decoder.changelog import Batch, batch_starting_at
from decoder.columnar import Decoder
from decoder.errors import ChangeLogError, SourceError
from decoder.lsn import format_lsn
from decoder.plugins import encode
from decoder.plugins.consumer import FullConsumer
from decoder.plugins.live import read_slot
from decoder.plugins.model import Change, Message, Startup, Transaction, Truncate, Tuple
from decoder.plugins.readers import NUMBERS_AS_TEXT
from decoder.position import page_floor, settled_position
from decoder.publications import check_publications
from decoder.relations import Relation, RelationVersion
from decoder.row_keys import keys_of
from decoder.slots import check_slot
from decoder.source import SourceSettings, connect, identify, redact, source_errors

CHUNK_BYTES = 16 << 20
_PUBLISHED = """
SELECT to_jsonb(t) FROM pg_catalog.pg_publication_tables t WHERE pubname = ANY (%s)
"""
_PLAIN_COLUMNS = """
SELECT c.relkind::text, array_agg(a.attname::text ORDER BY a.attnum) FILTER (WHERE a.attname IS NOT NULL)
FROM pg_catalog.pg_class c LEFT JOIN pg_catalog.pg_attribute a
     ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
WHERE c.oid = format('%%I.%%I', %s::text, %s::text)::regclass GROUP BY c.oid
"""
_REFUSED = """
SELECT pubname FROM pg_catalog.pg_publication
WHERE pubname = ANY (%s) AND NOT (pubinsert AND pubupdate AND pubdelete AND pubtruncate)
"""

Published = Mapping[tuple[str, str], Collection[str]]


@dataclass(frozen=True)
class _Projection:
    relation: Relation
    places: tuple[int, ...]

    def of(self, values: Tuple | None) -> Tuple | None:
        return None if values is None else tuple(values[place] for place in self.places)


class ChangeLogConsumer(FullConsumer):
    """Writes what it is shown into a batch.

    Args:
        writer: of the batch; the caller finishes or abandons it.
        published: the tables to keep and their columns; None for all as they are.
        messages: keep logical messages.

    Attributes:
        versions: the table versions written, for the batch's keys.
    """

    def __init__(
        self, writer: BatchWriter, published: Published | None = None, *, messages: bool = True
    ) -> None:
        self._writer, self._published, self._messages = writer, published, messages
        self._decoder, self._buffer = Decoder(), MessageBuffer()
        self._held: list[tuple[bytes, int]] = []
        self._described: dict[int, Relation] = {}
        self._next_seq = self._next_txn = 0
        self._projections: dict[Relation, _Projection] = {}
        self.versions: list[RelationVersion] = []

    def startup(self, startup: Startup, /) -> None:
        """Refuses a plugin that loses something."""
        problem = _loses(startup)
        if problem:
            raise ChangeLogError(
                f"{startup.plugin} {problem}: a lake fed from it would not equal its source",
                where="plugin",
                way_out="use pgoutput, test_decoding, or wal2json 2.6 or later in format 2",
            )

    def begin(self, transaction: Transaction, /) -> None:
        """Nothing is written before the commit."""
        self._held = []

    def change(self, transaction: Transaction, change: Change, /) -> None:
        """One row."""
        projection = self._projection(change.relation)
        if projection is None:
            return
        if change.kind != "insert" and change.old is None and change.new is None:
            raise _unfit(change.relation, "a row changed of which the plugin shows nothing")
        self._describe(projection.relation, change.lsn)
        kept = replace(
            change,
            relation=projection.relation,
            old=projection.of(change.old),
            new=projection.of(change.new),
        )
        self._held.append((encode.change(kept), change.lsn))

    def truncate(self, transaction: Transaction, truncate: Truncate, /) -> None:
        """The published ones of the tables."""
        found = [self._projection(relation) for relation in truncate.relations]
        relations = tuple(projection.relation for projection in found if projection is not None)
        for relation in relations:
            self._describe(relation, truncate.lsn)
        if relations:
            self._held.append((encode.truncate(replace(truncate, relations=relations)), truncate.lsn))

    def message(self, transaction: Transaction | None, message: Message, /) -> None:
        """In its transaction, or at once."""
        if transaction is None and self._messages:
            self._buffer.append(encode.message(message), message.lsn)
        elif self._messages:
            self._held.append((encode.message(message), message.lsn))

    def commit(self, transaction: Transaction, /) -> None:
        """Now it is known where the transaction belongs."""
        end, time = transaction.end_lsn, transaction.commit_time
        if end is None or time is None or transaction.xid is None:
            raise ChangeLogError(
                "the plugin does not tell a transaction's id, end or time",
                where=f"transaction {transaction.xid}",
                way_out="leave the plugin its options include-xids, include-lsn and include-timestamp",
            )
        if not self._held:
            return
        # Where the commit record starts is not always told; any place inside it sorts and compares alike.
        lsn = end - 1 if transaction.commit_lsn is None else transaction.commit_lsn
        self._buffer.append(encode.begin(transaction, lsn, time), lsn)
        if transaction.origin is not None:
            self._buffer.append(encode.origin(transaction.origin), lsn)
        for payload, at in self._held:
            self._buffer.append(payload, at)
        self._buffer.append(encode.commit(lsn, end, time), lsn)
        if self._buffer.size_bytes >= CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Decode what has gathered and append it to the batch."""
        chunk = self._decoder.decode(self._buffer, first_seq=self._next_seq, first_txn=self._next_txn)
        self._next_seq, self._next_txn = chunk.next_seq, chunk.next_txn
        self.versions += [version for version in chunk.rows if version not in self.versions]
        self._writer.append(chunk)
        self._buffer.clear()

    def _describe(self, relation: Relation, lsn: int) -> None:
        if self._described.get(relation.relation_id) != relation:
            self._described[relation.relation_id] = relation
            self._held += ((payload, lsn) for payload in encode.description(relation))

    def _projection(self, relation: Relation) -> _Projection | None:
        """The published part of a table, None when it is not published."""
        names = None if self._published is None else self._published.get((relation.schema, relation.table))
        if self._published is not None and names is None:
            return None
        if relation.relation_id == 0:
            raise _unfit(relation, "its columns are not what the catalog has now, so its key is not known")
        if relation not in self._projections:
            self._projections[relation] = _projected(relation, names)
        return self._projections[relation]


def pull_rows(
    source: SourceSettings,
    pipeline: str,
    changelog_dir: Path,
    *,
    start: int,
    until: int | None = None,
    options: Mapping[str, str] | None = None,
) -> Batch:
    """`decoder.pull.pull` for a slot of test_decoding or wal2json, with the same rules and errors.

    Args:
        start: the lake's position.
        until: the batch's exact end; without it a position behind all that was committed before the call.
        options: the plugin's own, over those chosen for it.
    """
    remove_leftovers(changelog_dir)
    server = identify(source.dsn)
    with connect(source.dsn) as connection, source_errors(source.dsn, "looking at the slot"):
        check_slot(connection, source, position=start)
        check_publications(connection, source.publications)
        published = published_columns(connection, source)
        settled = settled_position(connection)
    identity = BatchIdentity(
        pipeline, server.system_identifier, server.timeline, server.database, source.slot, server.version_text
    )
    known = batch_starting_at(changelog_dir, start, until)
    if known is not None:
        return _reused(known, identity)
    end = _end(source, start, until, settled)
    if end == start:
        return empty_batch(changelog_dir, identity, start)
    writer = BatchWriter(changelog_dir, identity, start)
    try:
        consumer = ChangeLogConsumer(writer, published, messages=source.messages)
        read_slot(source, consumer, options=options, start=start, until=end)
        consumer.flush()
        return writer.finish(end, keys_of(source, consumer.versions))
    except BaseException:
        writer.abandon()
        raise


def published_columns(connection: psycopg.Connection[Any], source: SourceSettings) -> Published:
    """The tables of the source's publications and the columns published of each.

    Raises:
        SourceError: a publication does something that cannot be done on this side.
    """
    names = [list(source.publications)]
    narrow = connection.execute(_REFUSED, names).fetchall()
    if narrow:
        raise _not_here(source, f"publication {narrow[0][0]!r} leaves out an action")
    found: dict[tuple[str, str], Collection[str]] = {}
    for (row,) in connection.execute(_PUBLISHED, names).fetchall():
        name = (str(row["schemaname"]), str(row["tablename"]))
        if row.get("rowfilter"):
            raise _not_here(source, f"table {name[0]}.{name[1]} is published with a row filter")
        kind, plain = connection.execute(_PLAIN_COLUMNS, name).fetchone() or ("", None)
        if kind == "p":
            raise _not_here(source, f"table {name[0]}.{name[1]} is published in place of its partitions")
        listed = row.get("attnames") or plain or ()
        found[name] = {*found.get(name, ()), *listed}
    return found


def _projected(relation: Relation, names: Collection[str] | None) -> _Projection:
    columns = list(enumerate(relation.columns))
    kept = [(place, column) for place, column in columns if names is None or column.name in names]
    projected = replace(relation, columns=tuple(column for _, column in kept))
    return _Projection(projected, tuple(place for place, _ in kept))


def _loses(startup: Startup) -> str:
    if startup.plugin == "decoderbufs":
        return "does not show truncations, and time zones not as they are"
    if startup.plugin == "wal2json" and startup.options.get("format-version") != "2":
        return "does not show truncations in format 1"
    if startup.plugin == "wal2json" and startup.options.get(NUMBERS_AS_TEXT) != "1":
        return "shows NaN as NULL"
    return ""


def _reused(batch: Batch, identity: BatchIdentity) -> Batch:
    from decoder.pull import reused

    return reused(batch, identity)


def _end(source: SourceSettings, start: int, until: int | None, settled: int) -> int:
    if until is None:
        return max(start, settled)
    if page_floor(until) > settled or until < start:
        raise SourceError(
            f"a batch from {format_lsn(start)} cannot end at {format_lsn(until)}; the server's WAL ends at "
            f"{format_lsn(settled)}",
            where=redact(source.dsn),
            way_out="connect to the server that the lake was fed from",
        )
    return until


def _not_here(source: SourceSettings, what: str) -> SourceError:
    return SourceError(
        f"{what}, which {source.plugin} knows nothing of",
        where=redact(source.dsn),
        way_out="read through pgoutput, or publish the tables whole",
    )


def _unfit(relation: Relation, what: str) -> ChangeLogError:
    return ChangeLogError(
        f"{what}",
        where=f"table {relation.schema}.{relation.table}",
        way_out="read through pgoutput, which describes its tables itself, or copy the table again",
    )
