"""The change log as a consumer: batches from a slot of another plugin than pgoutput.

It works row by row, so it is slower than `decoder.stream.pull`, but the batch is the same: events are written
as pgoutput messages (`encode`) and go through the same columnar decoder and batch writer.

Only plugins that lose nothing may fill a lake: test_decoding, and wal2json in format 2.  wal2json before
version 2.6 prints NaN as null, so its number columns must be NOT NULL.  The plugins ignore publications, so
this module applies them: tables and column lists.  It refuses a publication with a row filter, without one of
the actions, or of a partitioned table.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg

from slotlake.decoder.assembly.spool import MEMORY_BYTES, SpoolRoom
from slotlake.decoder.catalog.publication_tables import published_rows
from slotlake.decoder.changelog.batches import Batch
from slotlake.decoder.changelog.incoming import incoming_path
from slotlake.decoder.changelog.row_keys import keys_of
from slotlake.decoder.changelog.writer import BatchIdentity, BatchWriter
from slotlake.decoder.columnar.decoder import Unreadable
from slotlake.decoder.errors import ChangeLogError, SlotError, SourceError
from slotlake.decoder.plugins import encode
from slotlake.decoder.plugins.consumer import FullConsumer
from slotlake.decoder.plugins.gathering import Gathering
from slotlake.decoder.plugins.live import HiddenNumbersError, read_slot
from slotlake.decoder.plugins.model import Change, Message, NoValue, Startup, Transaction, Truncate, Tuple
from slotlake.decoder.plugins.readers import HIDES_NAN, NUMBERS_AS_TEXT
from slotlake.decoder.protocol.relations import Relation, RelationVersion
from slotlake.decoder.server.source import (
    SourceSettings,
    redact,
    source_session,
)
from slotlake.decoder.server.timeline import Origin
from slotlake.decoder.server.waiting import WatchedConnection
from slotlake.decoder.slots.slot import SlotState
from slotlake.decoder.stream.preflight import PullRequest, prepare

_PLAIN_COLUMNS = """
SELECT a.attname::text FROM pg_catalog.pg_attribute a
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' ORDER BY a.attnum
"""
_NULLABLE_NUMBERS = """
SELECT attname::text, pg_catalog.format_type(atttypid, atttypmod)
FROM pg_catalog.pg_namespace n JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid
JOIN pg_catalog.pg_attribute ON attrelid = c.oid
WHERE n.nspname = %s AND c.relname = %s AND attname = ANY (%s) AND attnum > 0
      AND NOT attisdropped AND NOT attnotnull AND atttypid = ANY (%s::oid[])
ORDER BY attnum LIMIT 1
"""
_REFUSED = """
SELECT pubname FROM pg_catalog.pg_publication
WHERE pubname = ANY (%s) AND NOT (pubinsert AND pubupdate AND pubdelete AND pubtruncate)
"""

Published = Mapping[tuple[str, str], Collection[str]]
_ACTIONS = {"insert": "an inserted", "update": "an updated", "delete": "a deleted"}


@dataclass(frozen=True)
class _Projection:
    """The published part of a table.

    Attributes:
        places: the places of its columns among those that the plugin shows.
        numbers: the columns whose type has NaN.
    """

    relation: Relation
    places: tuple[int, ...]
    numbers: tuple[int, ...]

    def of(self, values: Tuple | None) -> Tuple | None:
        return None if values is None else tuple(values[place] for place in self.places)


class ChangeLogConsumer(FullConsumer):
    """Writes changes into a batch.

    Args:
        writer: of the batch; the caller finishes or abandons it.
        published: the tables to write and their columns; None for all tables with all columns.
        messages: write logical messages.
        unreadable: tables with a value that cannot be read are added (`Decoder.decode`); None: an error.

    Attributes:
        versions: the table versions written, for the batch's keys.
        keeps_until_commit: this consumer itself drops a transaction that does not commit.
        takes_any_bytes: values that are not UTF-8 are left to the columnar decoder, which names their table.
    """

    keeps_until_commit = True
    takes_any_bytes = True

    def __init__(
        self,
        writer: BatchWriter,
        room: SpoolRoom,
        published: Published | None = None,
        *,
        messages: bool = True,
        unreadable: Unreadable | None = None,
    ) -> None:
        self._published, self._messages = published, messages
        self._gathering = Gathering(writer, room, unreadable)
        self._described: dict[int, Relation] = {}
        self._projections: dict[Relation, _Projection] = {}
        self._hides_nan = False

    @property
    def versions(self) -> list[RelationVersion]:
        return self._gathering.versions

    def startup(self, startup: Startup, /) -> None:
        """Refuse a plugin that loses something.

        Raises:
            ChangeLogError: a lake filled by this plugin, with these options, would differ from its source.
        """
        self._hides_nan = startup.plugin == "wal2json" and startup.options.get(NUMBERS_AS_TEXT) != "1"
        problem = _loses(startup, messages=self._messages)
        if problem:
            raise ChangeLogError(
                f"{startup.plugin} {problem}: a lake filled by it would differ from its source",
                where=f"source.plugin: {startup.plugin}",
                way_out="use pgoutput, test_decoding, or wal2json in format 2 without messages",
            )

    def begin(self, transaction: Transaction, /) -> None:
        """Begin a transaction, to which the next changes belong."""
        self._gathering.begin(transaction)

    def change(self, transaction: Transaction, change: Change, /) -> None:
        """Add one row, if its table is published.

        Raises:
            ChangeLogError: the plugin shows too little of the row, or its table differs from the catalog.
        """
        projection = self._projection(change.relation)
        if projection is None:
            return
        if change.kind != "insert" and change.old is None and change.new is None:
            raise _unfit(change.relation, f"the plugin shows no values of {_ACTIONS[change.kind]} row")
        self._describe(projection.relation, change.lsn)
        published = replace(
            change,
            relation=projection.relation,
            old=projection.of(change.old),
            new=projection.of(change.new),
        )
        if self._hides_nan:
            _refuse_hidden(projection, published)
        self._gathering.add(encode.change(published), change.lsn)

    def truncate(self, transaction: Transaction, truncate: Truncate, /) -> None:
        """Add the truncation of those tables that are published."""
        projections = [self._projection(relation) for relation in truncate.relations]
        relations = tuple(projection.relation for projection in projections if projection is not None)
        for relation in relations:
            self._describe(relation, truncate.lsn)
        if relations:
            self._gathering.add(encode.truncate(replace(truncate, relations=relations)), truncate.lsn)

    def message(self, transaction: Transaction | None, message: Message, /) -> None:
        """Add a logical message to its transaction, or at once if it has none."""
        if transaction is None and self._messages:
            self._gathering.loose(encode.message(message), message.lsn)
        elif self._messages:
            self._gathering.add(encode.message(message), message.lsn)

    def commit(self, transaction: Transaction, /) -> None:
        """End the transaction, whose position is known now."""
        self._gathering.commit(transaction)

    def flush(self) -> None:
        """Write all complete transactions into the batch."""
        self._gathering.finish()

    def _describe(self, relation: Relation, lsn: int) -> None:
        if self._described.get(relation.relation_id) != relation:
            self._described[relation.relation_id] = relation
            for payload in encode.description(relation):
                self._gathering.add(payload, lsn)

    def _projection(self, relation: Relation) -> _Projection | None:
        """The published part of a table, None if it is not published."""
        names = None if self._published is None else self._published.get((relation.schema, relation.table))
        if self._published is not None and names is None:
            return None
        if relation.relation_id == 0:
            raise _unfit(relation, "the changed columns differ from the catalog, so the key is not known")
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
    memory_bytes: int = MEMORY_BYTES,
    pass_over: bool = False,
) -> Batch:
    """`decoder.stream.pull.pull` for a slot of test_decoding or wal2json, with the same rules and errors.

    Args:
        until: the batch's exact end; without it a position after everything committed before the call.
        options: options of the plugin, which replace the default ones.
        memory_bytes: memory for a transaction that waits for its commit; more goes to disk.
        pass_over: as of `decoder.stream.puller.Puller`.
    """
    published: dict[tuple[str, str], Collection[str]] = {}

    def look_at_tables(connection: WatchedConnection, slot: SlotState) -> None:
        _refuse_two_phase(source, two_phase=slot.two_phase)
        published.update(published_columns(connection, source))

    plan = prepare(PullRequest(source, pipeline, changelog_dir, start, until), ask=look_at_tables)
    if isinstance(plan, Batch):
        return plan

    def write_batch(chosen: Mapping[str, str]) -> Batch:
        place = (changelog_dir, plan.identity, start, plan.until)
        return _write_batch(source, published, place, chosen, memory_bytes, {} if pass_over else None)

    try:
        return write_batch(dict(options or {}))
    except HiddenNumbersError:
        with source_session(source.dsn, "looking at number columns") as connection:
            _check_numbers(connection, source, published)
        return write_batch({**(options or {}), NUMBERS_AS_TEXT: ""})


def _write_batch(
    source: SourceSettings,
    published: Published,
    place: tuple[Path, BatchIdentity, int, int],
    options: Mapping[str, str],
    memory_bytes: int,
    unreadable: Unreadable | None,
) -> Batch:
    changelog_dir, identity, start, end = place
    writer = BatchWriter(changelog_dir, identity, start)
    room = SpoolRoom(incoming_path(changelog_dir, f"spool-{secrets.token_hex(4)}"), memory_bytes)
    try:
        consumer = ChangeLogConsumer(writer, room, published, messages=source.messages, unreadable=unreadable)
        origin = Origin(identity.system_identifier, identity.timeline)
        read_slot(source, consumer, options=options, start=start, until=end, origin=origin)
        consumer.flush()
        return writer.finish(end, keys_of(source, consumer.versions), unreadable=unreadable or {})
    except BaseException:
        writer.abandon()
        raise
    finally:
        room.close_all()


def _check_numbers(connection: psycopg.Connection[Any], source: SourceSettings, published: Published) -> None:
    """Refuse number columns that allow NULL, for a plugin that prints NaN as null.

    In a NOT NULL column, a null is refused when it comes (`ChangeLogConsumer.change`).
    """
    for table, columns in published.items():
        row = connection.execute(_NULLABLE_NUMBERS, (*table, list(columns), list(HIDES_NAN))).fetchone()
        if row is not None:
            raise SourceError(
                f"column {row[0]!r} of {table[0]}.{table[1]} has type {row[1]} and may be NULL, but wal2json "
                "before 2.6 prints NaN and infinity as null too",
                where=redact(source.dsn),
                way_out="make the column NOT NULL, leave it out of the publication's column list, install "
                "wal2json 2.6, or use pgoutput",
            )


def published_columns(connection: psycopg.Connection[Any], source: SourceSettings) -> Published:
    """The tables of the source's publications, and the published columns of each.

    Raises:
        SourceError: a publication uses a feature that only pgoutput applies.
    """
    names = [list(source.publications)]
    narrow = connection.execute(_REFUSED, names).fetchall()
    if narrow:
        raise _not_here(source, f"publication {narrow[0][0]!r} leaves out an action")
    columns_by_table: dict[tuple[str, str], Collection[str]] = {}
    for oid, schema, table, kind, _, listed, row_filter, *_ in published_rows(
        connection, source.publications
    ):
        if row_filter:
            raise _not_here(source, f"table {schema}.{table} is published with a row filter")
        if kind == "p":
            raise _not_here(source, f"table {schema}.{table} is published instead of its partitions")
        columns = listed or [name for (name,) in connection.execute(_PLAIN_COLUMNS, [oid]).fetchall()]
        columns_by_table[schema, table] = {*columns_by_table.get((schema, table), ()), *columns}
    return columns_by_table


def _projected(relation: Relation, names: Collection[str] | None) -> _Projection:
    columns = list(enumerate(relation.columns))
    published = [(place, column) for place, column in columns if names is None or column.name in names]
    projected = replace(relation, columns=tuple(column for _, column in published))
    numbers = tuple(i for i, column in enumerate(projected.columns) if column.type_oid in HIDES_NAN)
    return _Projection(projected, tuple(place for place, _ in published), numbers)


def _refuse_two_phase(source: SourceSettings, *, two_phase: bool) -> None:
    """Refuse changes at PREPARE: they come only once, and are not stored here from batch to batch.

    wal2json has no callback for PREPARE, so the server sends it whole transactions at COMMIT PREPARED, from
    any slot.
    """
    if two_phase and source.plugin == "test_decoding":
        raise SlotError(
            f"slot {source.slot!r} sends prepared transactions at PREPARE, but with {source.plugin} slotlake "
            "cannot store their changes until COMMIT PREPARED",
            where=redact(source.dsn),
            way_out="create the slot again without two_phase (`slotlake drop`, then `slotlake init`), or use "
            "pgoutput",
        )


def _refuse_hidden(projection: _Projection, change: Change) -> None:
    """Refuse a null in a NOT NULL column: it means NaN or infinity."""
    for number in projection.numbers:
        column = projection.relation.columns[number]
        new = change.new is not None and change.new[number] is NoValue.NULL
        whole = change.old_kind == "O" or (change.old_kind == "K" and column.in_key)
        if new or (whole and change.old is not None and change.old[number] is NoValue.NULL):
            raise _unfit(
                projection.relation,
                f"column {column.name!r} has a null, which wal2json before 2.6 also prints for NaN",
            )


def _loses(startup: Startup, *, messages: bool) -> str:
    if startup.plugin == "decoderbufs":
        return "does not show truncations, and loses the time zone of timetz values"
    if startup.plugin == "wal2json" and startup.options.get("format-version") != "2":
        return "does not show truncations in format 1"
    if startup.plugin == "wal2json" and messages:
        return "shows logical messages only up to their first zero byte"
    return ""


def _not_here(source: SourceSettings, what: str) -> SourceError:
    return SourceError(
        f"{what}, but {source.plugin} does not apply publications",
        where=redact(source.dsn),
        way_out="use pgoutput, or publish whole tables with all actions",
    )


def _unfit(relation: Relation, what: str) -> ChangeLogError:
    return ChangeLogError(
        f"{what}",
        where=f"table {relation.schema}.{relation.table}",
        way_out="use pgoutput, which describes its tables itself, or copy the table again (`slotlake "
        "backfill --table`)",
    )
