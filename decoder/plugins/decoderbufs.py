"""Reads decoderbufs (versions 1 to 3): each message is one protobuf RowMessage (its pg_logicaldec.proto).

    RowMessage   transaction_id:1 commit_time:2 table:3 op:4 new_tuple:5* old_tuple:6* new_typeinfo:7*
    op           0 insert  1 update  2 delete  3 begin  4 commit
    DatumMessage column_name:1 column_type:2 and one of int32:3 int64:4 float:5 double:6 bool:7 string:8
                 bytes:9 point:10 missing:11 (unchanged TOAST); none of them: NULL
    TypeInfo     modifier:1 (the type as SQL prints it) value_optional:2

Names are quoted as by quote_identifier.  The plugin shows no truncation, no logical message, and no position
except that of the message itself.  timetz loses its zone, money is a number of cents, and for a table without
replica identity the rows of updates are missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal

import numpy as np

from slotlake.decoder.errors import ProtocolError
from slotlake.decoder.plugins.catalog import Catalog
from slotlake.decoder.plugins.model import Change, Event, NoValue, Transaction, Value
from slotlake.decoder.plugins.protobuf import BYTES, FIXED32, FIXED64, VARINT, Field, Fields, Wire
from slotlake.decoder.plugins.reader import ReaderBase
from slotlake.decoder.plugins.tables import SentColumn, Tables, old_tuple, values_of
from slotlake.decoder.plugins.text_scan import TextScan
from slotlake.decoder.types import oids

_ROW = {
    1: Field("transaction_id", VARINT),
    2: Field("commit_time", VARINT),
    3: Field("table", BYTES),
    4: Field("op", VARINT),
    5: Field("new_tuple", BYTES, repeated=True),
    6: Field("old_tuple", BYTES, repeated=True),
    7: Field("new_typeinfo", BYTES, repeated=True),
}
_DATUM = {
    1: Field("column_name", BYTES),
    2: Field("column_type", VARINT),
    3: Field("int32", VARINT),
    4: Field("int64", VARINT),
    5: Field("float", FIXED32),
    6: Field("double", FIXED64),
    7: Field("bool", VARINT),
    8: Field("string", BYTES),
    9: Field("bytes", BYTES),
    10: Field("point", BYTES),
    11: Field("missing", VARINT),
}
_TYPE_INFO = {1: Field("modifier", BYTES), 2: Field("value_optional", VARINT)}
_POINT = {1: Field("x", FIXED64), 2: Field("y", FIXED64)}
_OPS = ("insert", "update", "delete", "begin", "commit")

_EPOCH_DAYS, _EPOCH_MICROS = 10_957, 946_684_800_000_000  # from 1970 to PostgreSQL's 2000
_NO_BEGIN, _NO_END = -(2**63), 2**63 - 1
_DATE_NO_BEGIN, _DATE_NO_END = -(2**31) + _EPOCH_DAYS, 2**31 - 1 + _EPOCH_DAYS - 2**32
_TIMESTAMP_MIN = -210_866_803_200_000_000  # 4714-11-24 BC, from 1970
_DAY = 86_400_000_000
_FLOAT8_DIGITS, _FLOAT4_DIGITS = 15, 6  # from this decimal exponent on, d2s.c and f2s.c print an exponent
_DAYS_0000_03_01 = 719_468  # before 1970-01-01, proleptic Gregorian
_YEARS_400 = 146_097


class ProtobufReader(ReaderBase):
    """Reads one stream of decoderbufs.

    Args:
        catalog: gives keys and replica identity, which the plugin does not send.
    """

    plugin: ClassVar[str] = "decoderbufs"

    def __init__(self, catalog: Catalog | None = None) -> None:
        super().__init__()
        self._tables = Tables(catalog)
        self._transaction: Transaction | None = None
        self._wire = Wire(b"", self._fault)

    @property
    def open(self) -> bool:
        """A transaction has begun and not ended."""
        return self._transaction is not None

    def read(self, payload: bytes, lsn: int) -> Iterator[Event]:
        """The events of one message.

        Raises:
            ProtocolError: it is not a message of this plugin, or it may not come here.
        """
        self.lsn = lsn
        self._wire = Wire(payload, self._fault)
        row = self._wire.message(_ROW, 0, len(payload))
        op = row.get("op")
        if op is None or op >= len(_OPS):
            raise self.error(f"the message has the unknown operation {op}")
        kind = _OPS[op]
        transaction = self._transaction_of(row)
        if kind in ("begin", "commit"):
            if len(row) != 3:
                raise self.error(f"a {kind} message has other fields than transaction id, time and operation")
            yield self._begin(transaction) if kind == "begin" else self._commit(transaction)
        else:
            yield Event("change", self._inside(transaction), lsn, self._change(kind, row))

    def _fault(self, what: str, offset: int) -> ProtocolError:
        return self.error(what, offset)

    def _transaction_of(self, row: Fields) -> Transaction:
        xid, time = row.get("transaction_id"), row.get("commit_time")
        if xid is None or xid >= 1 << 32 or time is None:
            raise self.error("the message lacks its transaction id or its commit time")
        return Transaction(xid, None, None, _signed(time, 64))

    def _begin(self, transaction: Transaction) -> Event:
        if self._transaction is not None:
            raise self.error("a transaction begins inside another")
        self.xid, self._transaction = transaction.xid, transaction
        return Event("begin", transaction, self.lsn)

    def _inside(self, transaction: Transaction) -> Transaction:
        if self._transaction is None:
            raise self.error("the message may not come outside of a transaction")
        if transaction.xid != self._transaction.xid:
            raise self.error("the message belongs to another transaction than the one that has begun")
        return self._transaction

    def _commit(self, transaction: Transaction) -> Event:
        self._inside(transaction)
        self._transaction = None
        done = Transaction(transaction.xid, None, self.lsn, transaction.commit_time)
        return Event("commit", done, self.lsn)

    # Rows.

    def _change(self, kind: str, row: Fields) -> Change:
        if "table" not in row:
            raise self.error("a change lacks its table")
        schema, table = self._qualified(row["table"])
        types = [self._type_name(place) for place in row.get("new_typeinfo", [])]
        new = self._tuple(row.get("new_tuple"), types)
        old = self._tuple(row.get("old_tuple"), [])
        if kind == "insert":
            if new is None:
                new = ([], {})  # a table without columns
            relation = self._tables.complete(schema, table, new[0])
            return Change(self.lsn, relation, "insert", new=values_of(relation, new[1], NoValue.NULL))
        if kind == "update" and new is not None:
            return self._update(schema, table, new, old)
        return self._without_new(schema, table, "update" if kind == "update" else "delete", old)

    def _update(self, schema: str, table: str, new: _Tuple, old: _Tuple | None) -> Change:
        relation = self._tables.complete(schema, table, new[0])
        values = values_of(relation, new[1], NoValue.NULL)
        if old is None:
            return Change(self.lsn, relation, "update", new=values)
        if list(old[1]) != list(new[1]):
            raise self.error("old and new row have different columns")
        old_kind, before = old_tuple(relation, old[1])
        return Change(self.lsn, relation, "update", old_kind, before, values)

    def _without_new(
        self, schema: str, table: str, kind: Literal["update", "delete"], old: _Tuple | None
    ) -> Change:
        if old is None:
            return Change(self.lsn, self._tables.named(schema, table), kind)
        relation = self._tables.fitting(schema, table, old[0], toasted=False)
        old_kind, before = old_tuple(relation, old[1])
        return Change(self.lsn, relation, kind, old_kind, before)

    def _tuple(self, places: list[tuple[int, int]] | None, types: list[str]) -> _Tuple | None:
        if places is None:
            return None
        if types and len(types) != len(places):
            raise self.error("a row has different numbers of types and values")
        columns: list[SentColumn] = []
        values: dict[str, Value] = {}
        for i, place in enumerate(places):
            datum = self._wire.message(_DATUM, *place)
            if "column_name" not in datum or "column_type" not in datum:
                raise self.error("a value lacks the name or the type of its column", place[0])
            name = self._name(datum["column_name"])
            if name in values:
                raise self.error("a column comes twice", place[0])
            # Only new tuples have type modifiers; an old one must not look like another table version.
            oid = datum["column_type"]
            columns.append(SentColumn(name, types[i] if types else "", oid))
            values[name] = self._value(datum, oid, place[0])
        return columns, values

    def _type_name(self, place: tuple[int, int]) -> str:
        info = self._wire.message(_TYPE_INFO, *place)
        if len(info) != 2:
            raise self.error("a type lacks its name", place[0])
        return self._wire.text(info["modifier"])

    def _qualified(self, place: tuple[int, int]) -> tuple[str, str]:
        scan = self._scan(place)
        schema = scan.name()
        scan.expect(".")
        table = scan.name()
        scan.end()
        return schema, table

    def _name(self, place: tuple[int, int]) -> str:
        scan = self._scan(place)
        name = scan.name()
        scan.end()
        return name

    def _scan(self, place: tuple[int, int]) -> TextScan:
        return TextScan(self._wire.text(place), lambda what, offset: self.error(what, place[0] + offset))

    # Values.

    def _value(self, datum: Fields, oid: int, at: int) -> Value:
        kinds = [name for name in datum if name not in ("column_name", "column_type")]
        if not kinds:
            return NoValue.NULL
        if len(kinds) > 1:
            raise self.error("a column has more than one value", at)
        kind, sent = kinds[0], datum[kinds[0]]
        if kind == "missing":
            return NoValue.UNCHANGED
        return self._text(kind, sent, oid, at)

    def _text(self, kind: str, sent: Any, oid: int, at: int) -> str:
        printed: dict[str, Callable[[], str]] = {
            "int32": lambda: self._int32(_signed(sent, 32), oid),
            "int64": lambda: self._int64(_signed(sent, 64), oid, at),
            "float": lambda: float_text(sent, single=True),
            "double": lambda: _timetz(sent) if oid == oids.TIMETZ else float_text(sent),
            "bool": lambda: "t" if sent else "f",
            "string": lambda: self._wire.text(sent),
            "bytes": lambda: self._bytes(sent, oid),
            "point": lambda: self._point(sent),
        }
        return printed[kind]()

    def _int32(self, value: int, oid: int) -> str:
        if oid != oids.DATE:
            return str(value)
        if value in (_DATE_NO_BEGIN, _DATE_NO_END):
            return "infinity" if value == _DATE_NO_END else "-infinity"
        return date_text(value)

    def _int64(self, value: int, oid: int, at: int) -> str:
        if oid == oids.TIME:
            if not 0 <= value <= _DAY:
                raise self.error("a time is outside of the day", at)
            return time_text(value)
        if oid == oids.MONEY:
            return money_text(value)
        if oid in (oids.TIMESTAMP, oids.TIMESTAMPTZ):
            return _moment(value, zone="+00" if oid == oids.TIMESTAMPTZ else "")
        return str(value)

    def _bytes(self, place: tuple[int, int], oid: int) -> str:
        return "\\x" + self._wire.bytes(place).hex() if oid == oids.BYTEA else self._wire.text(place)

    def _point(self, place: tuple[int, int]) -> str:
        point = self._wire.message(_POINT, *place)
        if len(point) != 2:
            raise self.error("a point lacks one of its two numbers", place[0])
        return f"({float_text(point['x'])},{float_text(point['y'])})"


_Tuple = tuple[list[SentColumn], dict[str, Value]]


def _signed(value: int, bits: int) -> int:
    """A varint as a two's complement number of ``bits`` bits (an int32 is sent with 64)."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _moment(value: int, *, zone: str) -> str:
    if value in (_NO_BEGIN, _NO_END):
        return "infinity" if value == _NO_END else "-infinity"
    # Counted from 1970, the last years do not fit into 64 bits: the plugin lets them overflow.
    return timestamp_text(value + (1 << 64) if value < _TIMESTAMP_MIN else value, zone=zone)


def _timetz(value: float) -> str:
    """The time of day in UTC; its original zone is lost."""
    return time_text(round(value) % _DAY) + "+00"


# Canonical text of the values that decoderbufs sends as numbers.
#
# Each function prints the same text as the type's output function (timestamp.c, date.c, float.c, cash.c,
# geo_ops.c) with the settings of `decoder.server.source`; the tests compare with a live server.


def date_text(days: int, *, suffix: str = "") -> str:
    """A date from days since 1970-01-01; ``suffix`` goes before the era."""
    shifted = days + _DAYS_0000_03_01
    era, of_era = divmod(shifted, _YEARS_400)
    year_of_era = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_from_march = (5 * of_year + 2) // 153
    day = of_year - (153 * month_from_march + 2) // 5 + 1
    month = month_from_march + 3 if month_from_march < 10 else month_from_march - 9
    year = era * 400 + year_of_era + (month <= 2)
    printed_year, bc = (year, "") if year > 0 else (1 - year, " BC")
    return f"{printed_year:04d}-{month:02d}-{day:02d}{suffix}{bc}"


def time_text(micros: int) -> str:
    """A time of day from microseconds since midnight (up to 24:00:00)."""
    seconds, fraction = divmod(micros, 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return text + (f".{fraction:06d}".rstrip("0") if fraction else "")


def timestamp_text(micros: int, *, zone: str = "") -> str:
    """A timestamp from microseconds since 1970-01-01."""
    days, of_day = divmod(micros, _DAY)
    return date_text(days, suffix=f" {time_text(of_day)}{zone}")


def float_text(value: float, *, single: bool = False) -> str:
    """A float8, or with ``single`` a float4, with the shortest digits that give the same value again."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    number = np.float32(value) if single else np.float64(value)
    if number == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    scientific = np.format_float_scientific(number, unique=True, trim="-", exp_digits=2)
    exponent = int(scientific.partition("e")[2])
    if -4 <= exponent < (_FLOAT4_DIGITS if single else _FLOAT8_DIGITS):
        return str(np.format_float_positional(number, unique=True, trim="-"))
    return str(scientific)


def money_text(cents: int) -> str:
    """A money value as with lc_monetary C or en_US."""
    sign = "-" if cents < 0 else ""
    return f"{sign}${abs(cents) // 100:,}.{abs(cents) % 100:02d}"
