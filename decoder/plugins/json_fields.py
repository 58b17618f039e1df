"""Reads the fields of a plugin's JSON objects with their types, and refuses wrong ones.

Invariant: numbers keep their original digits, no key comes twice, and text is UTF-8 except where any bytes
are allowed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from slotlake.decoder.errors import NOT_UTF8
from slotlake.decoder.lsn import parse_lsn
from slotlake.decoder.plugins.reader import ReaderBase


class Number(str):
    """A JSON number with its original digits."""

    __slots__ = ()


class JsonFields(ReaderBase):
    """A reader of JSON messages."""

    def json(self, text: str) -> dict[str, Any]:
        """Read one JSON object.

        Raises:
            ProtocolError: the text is not a JSON object, or a key comes twice.
        """
        try:
            record = json.loads(
                text,
                object_pairs_hook=self._object,
                parse_int=Number,
                parse_float=Number,
                parse_constant=self._constant,
            )
        except json.JSONDecodeError as error:
            at = len(text[: error.pos].encode("utf-8", "surrogateescape"))
            raise self.error(f"the message is not JSON ({error.msg})", at) from None
        except RecursionError:
            raise self.error("the message is not JSON (nested too deeply)") from None
        if not isinstance(record, dict):
            raise self.error("the message is not a JSON object")
        return record

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) != len(pairs):
            raise self.error("a key comes twice in a JSON object")
        return fields

    def _constant(self, name: str) -> Any:
        raise self.error(f"the message is not JSON (it has the constant {name})")

    def field(self, record: Mapping[str, Any], name: str, kind: type[Any], default: Any = None) -> Any:
        """Return a field that must be there.

        Args:
            default: returned for null, and for a missing field if it is not None.

        Raises:
            ProtocolError: the field is missing, or of another type.
        """
        value = record.get(name)
        if value is None:
            if default is None and name not in record:
                raise self.error(f"the field {name!r} is missing")
            return default
        if not isinstance(value, kind) or (kind is str and isinstance(value, Number)):
            raise self.error(f"the field {name!r} has a wrong type")
        return self.clean(value, name) if kind is str and name != "content" else value

    def clean(self, text: str, what: str) -> str:
        """Return a text, which must be UTF-8.

        Raises:
            ProtocolError: it is not.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise self.error(f"the text of {what!r} is not UTF-8", way_out=NOT_UTF8) from None
        return text

    def only(self, record: Mapping[str, Any], allowed: set[str]) -> None:
        """Check that an object has no other fields than these.

        Raises:
            ProtocolError: it has another field.
        """
        unknown = sorted(set(record) - allowed)
        if unknown:
            raise self.error(f"the message has unknown fields: {', '.join(repr(name) for name in unknown)}")

    def integer(self, record: Mapping[str, Any], name: str, end: int) -> int | None:
        """Return a whole number, or None if the field is missing or null.

        Args:
            end: the number must be below it.

        Raises:
            ProtocolError: the field is not a number in its range.
        """
        value = record.get(name)
        if value is None:
            return None
        if not isinstance(value, Number) or not value.isdigit() or int(value) >= end:
            raise self.error(f"the field {name!r} is not a number in its range")
        return int(value)

    def lsn_of(self, record: Mapping[str, Any], name: str) -> int | None:
        """Return a position, or None if the field is missing or null.

        Raises:
            ProtocolError: the field is not an LSN.
        """
        value = record.get(name)
        try:
            return None if value is None else parse_lsn(str(value))
        except ValueError:
            raise self.error(f"the field {name!r} is not an LSN") from None
