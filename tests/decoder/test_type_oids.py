"""The OIDs that code names are those of real servers."""

from __future__ import annotations

from slotlake.decoder.types import oids
from slotlake.decoder.types.names import BUILTIN_NAMES
from tests.conftest import Database
from tests.decoder.type_oids import constant, pinned_types


def test_the_module_names_every_type_of_a_server_and_by_its_oid(database: Database) -> None:
    """Whatever type a newer server brings, `python -m tests.decoder.type_oids` must name it first."""
    with database.connect() as connection:
        on_server = pinned_types(connection)
    assert on_server.items() <= {name: oid for name, oid in vars(oids).items() if name.isupper()}.items()


def test_names_lead_back_to_the_constants() -> None:
    assert {constant(name): oid for oid, name in BUILTIN_NAMES.items()} == {
        name: oid for name, oid in vars(oids).items() if name.isupper()
    }
