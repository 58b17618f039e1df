"""`slotlake validate`: would `init` or the next `sync` be refused? It checks both sides and changes nothing.

Each check calls the functions that `init` and `sync` call.  Some must try the action itself, such as creating
a missing publication: in a transaction that is rolled back, with a file or slot that is removed again.  If a
check needs another check that failed, its result is *not checked*.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from slotlake.decoder.catalog.publications import SourceTable, TableWarning, unfit_tables, unsent_warnings
from slotlake.decoder.errors import PipelineFileError
from slotlake.decoder.server.services import RESTART, advised, service_of
from slotlake.decoder.server.source import ServerIdentity, identify, redact, source_session
from slotlake.decoder.slots.capacity import capacity, require_free_slot
from slotlake.decoder.slots.comparable import require_comparable
from slotlake.decoder.slots.slot import check_slot, inspect_slot
from slotlake.decoder.stream.options import negotiate
from slotlake.infra.config.identity import require_same_lake
from slotlake.infra.config.pipeline_file import PipelineFile
from slotlake.infra.config.private_files import privately
from slotlake.infra.config.table_names import patterns_in
from slotlake.infra.config.unencrypted import unencrypted_connections
from slotlake.infra.copy.bootstrap import make_publications, without_troubled
from slotlake.infra.copy.tables import published_over
from slotlake.infra.copy.unfinished import require_own_slot
from slotlake.infra.notify.sending import address_errors
from slotlake.infra.opened.full_disk import Places, full_places, room_at
from slotlake.infra.opened.open_pipeline import OpenPipeline
from slotlake.infra.progress import counted
from slotlake.infra.reports import Report
from slotlake.infra.selection.aside import tables_aside, with_resume
from slotlake.infra.selection.file_tables import FileFinding, binary_findings, file_findings, names_in_lake
from slotlake.infra.selection.layouts import require_layouts
from slotlake.infra.selection.pending import pending_changes
from slotlake.infra.selection.readers import reader_findings
from slotlake.infra.selection.roots import require_roots
from slotlake.infra.selection.tables import refuse_changed, require_published
from slotlake.infra.selection.types import texts_of_numerics
from slotlake.infra.source.own_slot import require_own_slot_name
from slotlake.infra.status.checks import Check, Checks
from slotlake.infra.status.room import needed_bytes, size
from slotlake.infra.status.spark_check import check_spark
from slotlake.infra.sync.findings import WAY_OUT, Judgement
from slotlake.infra.sync.gates import suites_read

_FREE_SENDERS_NEEDED = 2  # one for a sync, one for a verification at the same time


@dataclass(frozen=True)
class ValidationReport(Report):
    """All checks of one pipeline file, in the order in which they were made."""

    file: str
    valid: bool
    checks: list[Check] = field(default_factory=list)


def validate(path: str | os.PathLike[str], *, remote: str | None = None) -> ValidationReport:
    """Check a pipeline file, the source, the lake and this machine; change nothing.

    Args:
        remote: a Spark Connect server, as for `OpenPipeline.open`.
    """
    checks = Checks()
    checks.make("file", lambda: _file(checks, path, remote))
    if checks.opened is not None:
        with checks.opened as pipeline, privately(pipeline.file):
            _both_sides(_Look(pipeline, checks))
    valid = all(check.result != "error" for check in checks.results)
    return ValidationReport(str(Path(path)), valid, checks.results)


def validate_source(file: PipelineFile) -> list[Check]:
    """Make the checks that are about the server alone, for a file that need not be written yet."""
    checks = Checks()
    with OpenPipeline(file) as pipeline:
        _server(_Look(pipeline, checks))
    return checks.results


def _file(checks: Checks, path: str | os.PathLike[str], remote: str | None) -> str:
    checks.opened = OpenPipeline.open(path, remote=remote)
    file = checks.opened.file
    for warning in unencrypted_connections(file):
        what, _, way_out = warning.partition(". ")
        checks.add("file", "warning", what, way_out)
    count = f"{len(file.tables)} tables{' and patterns' if patterns_in(file.tables) else ''}"
    tables = f"the file names {count}" if file.tables else "the publications name the tables"
    return f"pipeline {file.name}: all keys and values are correct; {tables}"


@dataclass
class _Look:
    """One validation: the pipeline, and what earlier checks have read for later ones."""

    pipeline: OpenPipeline
    checks: Checks
    server: ServerIdentity | None = None
    initialised: bool = False
    findings: list[FileFinding] = field(default_factory=list)
    position: int | None = None
    tables: list[SourceTable] = field(default_factory=list)
    unsent: list[TableWarning] = field(default_factory=list)

    @property
    def dsn(self) -> str:
        return self.pipeline.source.dsn

    def identified_server(self) -> ServerIdentity:
        """Return the server that the check `_decoding` has identified; the caller needs that check."""
        assert self.server is not None
        return self.server


def _server(look: _Look) -> None:
    make = look.checks.make
    make("source", lambda: _source(look))
    make("logical decoding", lambda: _decoding(look), "source")
    make("options", lambda: _options(look), "logical decoding")
    make("positions", lambda: require_comparable(look.pipeline.source), "logical decoding")
    make("WAL senders", lambda: _senders(look), "logical decoding")


def _both_sides(look: _Look) -> None:
    make = look.checks.make
    _server(look)
    make("catalog", lambda: _catalog(look))
    make("warehouse", lambda: _warehouse(look))
    make("state folder", lambda: _state_folder(look))
    make("slot", lambda: _slot(look), "logical decoding", "catalog")
    _published(look)
    if any(section.expectations for section in look.pipeline.file.tables.values()):
        make("suites", lambda: f"{suites_read(look.pipeline.file)} suites of Great Expectations can be read")
    if look.pipeline.file.notify.to:
        make("notify", lambda: _notify(look))
    if look.pipeline.file.lake.readers:
        make("readers", lambda: _readers(look))
    make("lake", lambda: _lake(look), "source", "catalog")
    make("Spark", lambda: check_spark(look.pipeline))
    make("disk", lambda: _disk(look), "warehouse")


def _source(look: _Look) -> str:
    with source_session(look.dsn) as connection:
        row = connection.execute("SELECT current_setting('server_version'), current_user").fetchone()
        service = service_of(connection)
    assert row is not None
    of_service = "" if service is None else f" of {service.name} (docs/managed/{service.page})"
    return f"PostgreSQL {row[0]}{of_service} answers, role {row[1]} ({redact(look.dsn)})"


def _decoding(look: _Look) -> str:
    look.server = identify(look.dsn)
    return f"wal_level is {look.server.wal_level}, and the role may replicate"


def _options(look: _Look) -> str:
    source = look.pipeline.source
    if source.plugin != "pgoutput":
        return f"the slot's plugin is {source.plugin}"
    options = negotiate(source, look.identified_server().server_version)
    two_phase = "on" if options.two_phase else "off"
    return f"protocol {options.proto_version}, streaming {options.streaming}, two_phase {two_phase}"


def _catalog(look: _Look) -> str:
    from slotlake.spark.catalog.probe import probe_catalog, rest_words
    from slotlake.spark.copy.owner import is_initialised

    lake = look.pipeline.lake
    exists = probe_catalog(lake)
    look.initialised = exists and is_initialised(lake, look.pipeline.name)
    can = f"can be written ({rest_words(lake)})" if lake.is_rest else "can be written"
    can = "answers (whether it can be written is not tried)" if lake.is_metastore else can
    if not look.initialised:
        require_same_lake(look.pipeline.file, lake)
        return f"{lake.place} {can}; the pipeline is not initialised yet"
    look.position = look.pipeline.position()
    return f"{lake.place} {can}; the pipeline is initialised"


def _warehouse(look: _Look) -> str:
    from slotlake.spark.catalog.probe import rest_words
    from slotlake.spark.exchange import probe_folder
    from slotlake.spark.lake_files import probe_bucket

    lake = look.pipeline.lake
    if lake.borrows_keys:
        rest_words(lake)  # it has written with them, or raises
        return f"{lake.root} can be written with the keys that the REST catalog lends for a table"
    if lake.is_in_bucket:
        probe_bucket(lake)
        return f"{lake.root} can be written, and refuses to write a new object twice"
    probe_folder(lake.warehouse_path)
    return f"{lake.warehouse_path} can be written"


def _state_folder(look: _Look) -> str:
    from slotlake.spark.exchange import probe_folder
    from slotlake.spark.lake_files import probe_place

    file = look.pipeline.file
    for folder in (file.state_dir, file.changelog_dir):
        probe_folder(folder, what="the state folder")
    if look.pipeline.stored is not None:
        probe_place(look.pipeline.stored.root)
    if look.pipeline.state is not None:
        probe_place(look.pipeline.state.root)
    if not file.shares_state:
        return f"{file.state_dir} can be written"
    holder = look.pipeline.locks.shared().holder() or "nobody has it now"
    return f"{file.state_place} can be written; the lock against other machines can be taken ({holder})"


def _slot(look: _Look) -> str:
    pipeline, name = look.pipeline, look.pipeline.source.slot
    with source_session(look.dsn, "looking at the slot") as connection:
        if look.position is not None and Judgement(pipeline).is_upgraded(look.position):
            return f"{name} was kept by pg_upgrade, and the next sync goes on with it"
        if look.initialised:
            require_own_slot_name(pipeline.file, pipeline.source)
            check_slot(connection, pipeline.source, position=look.position, wait_seconds=0.0)
            return f"{name} has all changes that the lake does not have yet"
        state = inspect_slot(connection, name)
        if state is None:
            slots = require_free_slot(connection, redact(look.dsn))
            return f"{name} can be created; {slots.slots} of {slots.slots_max} slots are in use"
        require_own_slot(pipeline.file, pipeline.source.slot, state, look.identified_server())
    what = f"an initial copy is unfinished and has the slot {name}"
    look.checks.add("slot", "warning", what, "slotlake init copies the rest, slotlake drop gives the copy up")
    return ""


def _senders(look: _Look) -> str:
    with source_session(look.dsn, "counting WAL senders") as connection:
        senders = capacity(connection)
        if senders.senders_free < _FREE_SENDERS_NEEDED:
            what = f"{senders.senders} of max_wal_senders {senders.senders_max} are in use"
            way_out = f"end an unneeded replication connection, or raise max_wal_senders {RESTART}"
            look.checks.add("WAL senders", "warning", what, advised(connection, way_out))
    return f"{senders.senders} of {senders.senders_max} are in use"


def _published(look: _Look) -> None:
    """Check publications, rights and tables in one transaction that ends with a rollback."""
    make = look.checks.make
    with ExitStack() as stack:
        make("publications", lambda: _publications(look, stack), "source", "catalog")
        make("tables", lambda: _tables(look), "publications")


def _publications(look: _Look, stack: ExitStack) -> str:
    pipeline = look.pipeline
    connection = stack.enter_context(source_session(look.dsn, "ending the dry run"))
    stack.enter_context(connection.transaction(force_rollback=True))
    missing = [] if look.initialised else make_publications(pipeline.file, pipeline.source, connection)
    set_aside = tables_aside(pipeline.lake).keys() if look.initialised else ()
    look.tables = published_over(pipeline, connection, set_aside)
    in_lake = names_in_lake(pipeline.lake) if look.initialised else None
    look.findings = file_findings(pipeline, connection, in_lake) + binary_findings(
        pipeline.source, connection
    )
    look.unsent = unsent_warnings(connection, pipeline.source.publications)
    _later_a_warning(look, "publications", lambda: require_roots(pipeline.file, connection, look.tables))
    names = ", ".join(pipeline.source.publications)
    how = f"init can create {', '.join(missing)}" if missing else f"{names} exists"
    return f"{how}; the role can read all {len(look.tables)} tables"


def _tables(look: _Look) -> str:
    pipeline = look.pipeline
    for finding in look.findings:
        look.checks.add("tables", "error" if finding.wrong else "warning", finding.what, finding.way_out)
    if look.initialised:
        refuse_changed(pipeline)
    else:
        require_published(pipeline.file, look.tables)
    _later_a_warning(look, "tables", lambda: require_layouts(pipeline.file, look.tables))
    warnings = [(f"{e.table}: {e.what}", e.way_out) for e in (*unfit_tables(look.tables), *look.unsent)]
    for warned in [*warnings, *texts_of_numerics(pipeline.file, look.tables)]:
        look.checks.add("tables", "warning", *warned)
    for trouble in without_troubled(pipeline.file, pipeline.lake, look.tables, ())[1]:
        what = f"{trouble.where} would be set aside: {trouble.what}"
        look.checks.add("tables", "warning", what, with_resume(trouble.way_out))
    return f"{len(look.tables)} tables fit: columns, keys, filters, types"


def _later_a_warning(look: _Look, name: str, require: Callable[[], None]) -> None:
    """Check what the file says of tables; once the lake has them, it stops no sync."""
    try:
        require()
    except PipelineFileError as error:
        if not look.initialised:
            raise
        look.checks.add(name, "warning", f"{error.what} ({error.where})", error.way_out)


def _notify(look: _Look) -> str:
    for error in address_errors(look.pipeline.file):
        look.checks.add_error("notify", "error", error)
    count = counted(len(look.pipeline.file.notify.to), "receiver")
    return f"messages can be sent to {count}; slotlake notify --test sends one to each"


def _readers(look: _Look) -> str:
    """Judge the file by what the readers that it names can read; column names, if the tables are known."""
    file = look.pipeline.file
    for finding in reader_findings(file, look.tables):
        look.checks.add("readers", finding.result, finding.what, finding.way_out)
    return f"{', '.join(file.lake.readers)} can read the lake that the file describes"


def _lake(look: _Look) -> str:
    """Check what `status` reports as alarms of the lake."""
    from slotlake.spark.catalog.open import open_catalog
    from slotlake.spark.read.point import ReadPoint

    if look.pipeline.lake.views:
        with open_catalog(look.pipeline.lake) as catalog:
            catalog.require_room_for_views()
    if not look.initialised:
        return "the namespace has no tables of this pipeline"
    for finding in Judgement(look.pipeline).quick_findings():
        look.checks.add("lake", "error", finding.what, WAY_OUT)
    for aside in tables_aside(look.pipeline.lake).values():
        what = f"table {aside.source_name} is set aside: {aside.reason}"
        look.checks.add("lake", "warning", what, with_resume(aside.way_out))
    for what, way_out in pending_changes(ReadPoint.latest(look.pipeline.lake)):
        look.checks.add("lake", "warning", what, way_out)
    return "nothing but slotlake has changed the tables"


def _disk(look: _Look) -> str:
    pipeline = look.pipeline
    for place in full_places(Places(pipeline.file, pipeline.lake, pipeline.source, pipeline.position)):
        look.checks.add("disk", "error", f"the disk is full: {place}", "free or enlarge the disk")
    if pipeline.lake.is_in_bucket:
        return "the warehouse is in an object store"
    room = room_at(pipeline.lake.warehouse_path)
    free, needed = 0 if room is None else room.free, needed_bytes(pipeline.source, look.tables, look.position)
    if needed is None:
        return f"{size(free)} free in the warehouse"
    if free < needed:
        what = f"{size(free)} free in the warehouse; the next run copies {size(needed)} of the source"
        look.checks.add(
            "disk", "warning", what, "enlarge the disk; Parquet usually needs less room than PostgreSQL"
        )
    return f"{size(free)} free in the warehouse; the next run copies {size(needed)} of the source"


__all__ = ["Check", "ValidationReport", "validate", "validate_source"]
