"""Tables that the newest point names and the catalog lacks: somebody dropped, renamed or replaced them.

Invariant: no batch is published without such a table before it is recorded as set aside, so what the lake
lacks from then on is known, also when the table comes back (docs/adr/0084).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from slotlake.decoder.errors import LakeError
from slotlake.spark.catalog.open import Catalog
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import LakeName, postgres_name, source_table
from slotlake.spark.publish.commits import pins_in
from slotlake.spark.publish.place import table_directory

GONE = "is not in the catalog any more: it was dropped from the catalog by someone else, or renamed"


def absent_error(lake: LakeSettings, table: LakeName, what: str = "") -> LakeError:
    """Return the error of a mirror that the catalog lacks; it names the source table.

    Args:
        what: what is wrong; "" for a table that is not there.
    """
    name = source_table(lake.namespace, table)
    before = "give what has its name now another one, or drop it; then " if what and GONE not in what else ""
    return LakeError(
        what or f"the lake table {table} {GONE}",
        where=f"table {table}, {lake.place}",
        way_out=f"{before}bring it back under its name (rename it, or register its newest metadata file), "
        f"or, if nobody needs it any more, remove {table_directory(lake, table)} (one that is dropped may "
        f"leave its files); then `slotlake resume {postgres_name(*name)}`, or a later sync, copies it again",
    ).of(*name)


def refuse_absent(catalog: Catalog, names: Collection[LakeName], pointers: Mapping[LakeName, str]) -> None:
    """Refuse to go on without mirrors that the newest point names.

    Others may be absent: a table that joins is copied at a later position.

    Raises:
        LakeError: the catalog lacks one; the error names its source table.
    """
    absent = sorted(name for name in names if name not in pointers)
    if not absent:
        return
    pins = pins_in(catalog)
    for name in absent:
        if name in pins:
            raise absent_error(catalog.lake, name)
