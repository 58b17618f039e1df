"""Names of PostgreSQL's own types by OID, and the first OIDs of other types.

The replication stream names only the types from FIRST_GENBKI_OID on; `BUILTIN_NAMES` has the others.
"""

from __future__ import annotations

from slotlake.decoder.types import oids

FIRST_GENBKI_OID = 10_000  # transam.h FirstGenbkiObjectId: pgoutput sends Type messages from here on
FIRST_NORMAL_OID = 16_384  # transam.h FirstNormalObjectId: below are the types that initdb made
_ARRAY = "_ARRAY"


def _type_name(constant: str) -> str:
    """The name in pg_type: ``INT4_ARRAY`` → ``_int4``."""
    return f"_{constant.removesuffix(_ARRAY)}".lower() if constant.endswith(_ARRAY) else constant.lower()


BUILTIN_NAMES: dict[int, str] = {
    oid: _type_name(constant) for constant, oid in vars(oids).items() if constant.isupper()
}
