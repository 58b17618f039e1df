"""The keys that each JSON object of wal2json may have, for both formats.

A message with another key comes from another version, and is refused.
"""

from __future__ import annotations

TOP_1 = {"xid", "nextlsn", "timestamp", "origin", "change"}
CHANGE_1 = {
    "kind", "schema", "table", "columnnames", "columntypes", "columntypeoids", "columnpositions",
    "columnoptionals", "columndefaults", "columnvalues", "pk", "oldkeys",
}  # fmt: skip
MESSAGE_1 = {"kind", "transactional", "prefix", "content"}
COLUMN_2 = {"name", "type", "typeoid", "value", "position", "optional", "default"}
_PLACE_2 = {"action", "xid", "timestamp", "origin", "lsn", "nextlsn"}
FIELDS_2: dict[str, set[str]] = {
    "B": _PLACE_2,
    "C": _PLACE_2,
    "I": _PLACE_2 | {"schema", "table", "columns", "pk"},
    "U": _PLACE_2 | {"schema", "table", "columns", "identity", "pk"},
    "D": _PLACE_2 | {"schema", "table", "identity", "pk"},
    "T": _PLACE_2 | {"schema", "table"},
    "M": _PLACE_2 | {"transactional", "prefix", "content"},
}
