"""An open pipeline: its settings, its Spark session, its lock, and its lake.

It owns what exists while the pipeline is open, and closes it at the end. The steps are in infra/pipeline.py.
Spark starts when the first step needs it.  What only some commands need is imported by them: numba's loops,
which all pulls need, take a second.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Self

from slotlake.decoder.errors import LakeError, SlotlakeError
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.memory import Memory
from slotlake.decoder.server.source import SourceSettings
from slotlake.infra.config.catalog_kind import require_fitting
from slotlake.infra.config.identity import require_same_lake
from slotlake.infra.config.of_tables import table_formats, table_layouts
from slotlake.infra.config.pipeline_file import PipelineFile, load_pipeline
from slotlake.infra.config.private_files import privately, tighten
from slotlake.infra.opened.engine import spark_errors_as_ours
from slotlake.infra.opened.pipeline_locks import PipelineLocks
from slotlake.infra.state.events import noted_failures
from slotlake.infra.state.json_log import at_work
from slotlake.infra.state.notes import share
from slotlake.infra.state.shared_journal import end_notes
from slotlake.spark.lake import KeepPoints, LakeSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from slotlake.infra.opened.standing import PullSettings, StandingStream
    from slotlake.infra.state.stored_changelog import StoredChangeLog
    from slotlake.infra.state.stored_state import StoredState
    from slotlake.spark.apply.together import Engine
    from slotlake.spark.read.point import ReadPoint


class OpenPipeline:
    """A pipeline file with the connections that its steps need. Use it as a context manager.

    Attributes:
        file: the checked pipeline file.
        source: connection and slot.
        lake: catalog, warehouse, namespace.
        memory: what its steps remember of source and lake, from one batch to the next.
    """

    def __init__(self, file: PipelineFile, *, remote: str | None = None) -> None:
        self.file = file
        self.name = file.name
        at_work(pipeline=file.name)
        self.source = SourceSettings(
            dsn=file.dsn(),
            publications=file.source.publications,
            slot=file.source.slot,
            streaming=file.source.streaming,
            two_phase=file.source.two_phase,
            binary=file.source.binary,
            messages=file.source.messages,
            origin=file.source.origin,
            plugin=file.source.plugin,
            bulk=file.source.bulk,
            failover=None if file.source.failover == "auto" else file.source.failover,
        )
        self.lake = lake_settings(file)
        self.state = _opened_state(file, self.lake)
        self._remote = remote or os.environ.get("SLOTLAKE_SPARK_REMOTE") or file.remote()
        self._session: SparkSession | None = None
        self._writes, self._warehouse_seen = False, False
        self._closing = ExitStack()
        self.memory = Memory()

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, remote: str | None = None) -> Self:
        """Read and check a pipeline file; this opens no connection.

        Args:
            remote: a Spark Connect server (``sc://host:port``); it replaces the server of the file.

        Raises:
            PipelineFileError: the file is not a pipeline file.
        """
        return cls(load_pipeline(path), remote=remote)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection to the slot; end the Spark session if this pipeline started it."""
        self.end_stream()
        end_notes(self.file.state_dir)
        if "engine" in vars(self):
            vars(self).pop("engine").close()
        self._let_go_of_session()
        for memory in (self.memory, *self.lake.memories.values()):
            memory.close()

    def end_stream(self) -> None:
        """Close the connection to the slot, if there is one, so that another run can read it."""
        if "stream" in vars(self):
            self.stream.end()

    def _let_go_of_session(self) -> None:
        self._closing.close()
        self._session = None

    @cached_property
    def pulling(self) -> PullSettings:
        """The settings of its pulls. They ask for logical messages if an event trigger writes some.

        Raises:
            SourceError: the source cannot be reached.
        """
        from slotlake.decoder.catalog.ddl_trigger import is_installed
        from slotlake.infra.opened.standing import PullSettings

        source, file = self.source, self.file
        messages = source.messages or (source.plugin == "pgoutput" and is_installed(source.dsn))
        return PullSettings(
            replace(source, messages=messages),
            self.name,
            file.changelog_dir,
            batch_bytes_max=file.changelog.batch_bytes_max,
            memory_bytes=file.source.memory_mb << 20,
            waiting_prepared=self._waiting_prepared,
        )

    def _waiting_prepared(self) -> set[tuple[str, int]]:
        """Prepared transactions with changes whose outcome the lake waits for: gid and xid."""
        from slotlake.spark.catalog.base import load_one
        from slotlake.spark.catalog.open import open_catalog
        from slotlake.spark.publish.commits import commits_name, prepared_transactions

        with open_catalog(self.lake) as catalog:
            commits = load_one(catalog, commits_name(self.lake.namespace))
        return {(entry["gid"], entry["xid"]) for entry in prepared_transactions(commits.metadata)}

    @cached_property
    def stream(self) -> StandingStream:
        """The connection to the slot that stays open while a transaction stays open."""
        from slotlake.infra.opened.standing import StandingStream

        return StandingStream(self.pulling)

    @property
    def remote(self) -> str | None:
        """The address of the Spark Connect server; None for a Spark inside this process."""
        return self._remote

    @cached_property
    def engine(self) -> Engine:
        """Its Spark for the staging of tables, most of which need none."""
        from slotlake.spark.apply.together import Engine

        return Engine(lambda: self.session)

    @property
    def session(self) -> SparkSession:
        """The Spark session. It starts on first use, and again after a restart of the Connect server."""
        if self._session is not None:
            from slotlake.spark.session import is_alive

            if not is_alive(self._session):
                self._let_go_of_session()
        if self._session is None:
            from slotlake.infra.opened.engine import open_engine

            with privately(self.file):
                self._session = open_engine(self.file, self.lake, self._remote, self._closing)
        if self._writes and not self._warehouse_seen:
            from slotlake.spark.maintenance.shared_warehouse import require_shared_warehouse

            require_shared_warehouse(self._session, self.lake, self.spark_place)
            self._warehouse_seen = True
        return self._session

    def for_comparing(self, point: ReadPoint) -> ReadPoint:
        """Return a read point whose large tables Spark's executors hash, if they are on other machines."""
        if not self._remote and not self.file.spark.is_on_cluster:
            return point
        from slotlake.spark.read.executors import ClusterReadPoint
        from slotlake.spark.session import shares_files

        return point if shares_files(self.session) else ClusterReadPoint(point, self.session)

    @property
    def spark_place(self) -> str:
        """Which Spark it is: the Connect server's host, without a token, or the master."""
        return self.file.spark.master if not self._remote else self._remote.partition(";")[0].rstrip("/")

    @contextmanager
    def exclusively(
        self, wait_seconds: float = 0.0, *, step: str = "unknown", on_one_side: bool = False
    ) -> Iterator[None]:
        """Hold the pipeline's lock, with the catalog open; an error of a full disk gets a full explanation.

        Args:
            wait_seconds: how long to wait while another run holds the lock.
            step: what is done under it, for who waits.
            on_one_side: do the work also if the database of the shared lock cannot be reached.

        Raises:
            BusyError: another run is at work.
        """
        from slotlake.infra.config.unencrypted import warn_once
        from slotlake.infra.opened.full_disk import Places, explain_full_disk
        from slotlake.spark.catalog.open import catalog_stays_open

        tighten(self.file.state_dir, self.file)
        with (
            privately(self.file),
            explain_full_disk(Places(self.file, self.lake, self.source, self.position)),
            self.locks.taken(step, wait_seconds, on_one_side=on_one_side),
            catalog_stays_open(),
        ):
            self._refresh_state()
            warn_once(self.file)
            self._writes = True
            with noted_failures(self.file.state_dir), spark_errors_as_ours(), self._shared_changelog():
                yield

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read both sides without the lock; errors are noted and explained as under it."""
        with (
            privately(self.file),
            noted_failures(self.file.state_dir),
            spark_errors_as_ours(),
        ):
            yield

    @cached_property
    def locks(self) -> PipelineLocks:
        """The locks of this pipeline."""
        return PipelineLocks(self.file, self.lake, self.state)

    def _refresh_state(self) -> None:
        if self.state is not None:
            self.state.refresh()
        if self.file.shares_state:
            from slotlake.infra.opened.own_state import require_own_state

            require_own_state(self.file, self.state)

    @cached_property
    def stored(self) -> StoredChangeLog | None:
        """The change log's place in an object store; None for one in a folder."""
        if not self.file.changelog.in_bucket:
            return None
        from slotlake.infra.state.stored_changelog import StoredChangeLog

        return StoredChangeLog.of(
            self.lake, str(self.file.changelog.path), self.name, self.file.changelog_dir
        )

    def save_changelog(self) -> None:
        """Bring to the object store what is new in the change log, if it is to be there.

        Raises:
            SlotlakeError: the store fails.
        """
        if self.stored is not None:
            self.locks.require()
            self.stored.save()

    @contextmanager
    def _shared_changelog(self) -> Iterator[None]:
        """Make this machine's change log equal to the stored one, and afterwards the other way round."""
        if self.stored is None:
            self.file.stored_note.unlink(missing_ok=True)  # a folder again: what is only in it is not to go
            yield
            return
        self.stored.refresh(self._last_batch_start())
        try:
            yield
        except Exception:
            with suppress(SlotlakeError):
                self.save_changelog()
            raise
        self.save_changelog()

    def _last_batch_start(self) -> int:
        """Where the last published batch starts, as an LSN; 0 if there is none, or the lake cannot say it."""
        from slotlake.decoder.changelog.batches import batch_positions
        from slotlake.spark.catalog.base import load_one
        from slotlake.spark.catalog.open import open_catalog
        from slotlake.spark.copy.owner import is_owned_by
        from slotlake.spark.publish.commits import BATCH, commits_name, position_of
        from slotlake.spark.tables.metadata import head, summary

        name = commits_name(self.lake.namespace)
        try:
            with open_catalog(self.lake) as catalog:
                if not is_owned_by(catalog, self.name):
                    return 0
                metadata = load_one(catalog, name).metadata
            position = position_of(metadata, name)
        except LakeError as error:
            if error.retryable:
                raise
            return 0  # `recover` must come as far as to find out what is wrong
        newest = head(metadata)
        ends = batch_positions(summary(newest).get(BATCH, "")) if newest else None
        return position if ends is None else min(position, ends[0])

    def position(self) -> int:
        """The lake's position.

        Raises:
            LakeError: this pipeline has not been initialised, or the lake cannot be reached.
        """
        from slotlake.spark.catalog.base import load_one
        from slotlake.spark.catalog.open import open_catalog
        from slotlake.spark.copy.owner import is_owned_by
        from slotlake.spark.publish.commits import commits_name, position_of

        name = commits_name(self.lake.namespace)
        with open_catalog(self.lake) as catalog:
            if is_owned_by(catalog, self.name):
                position = position_of(load_one(catalog, name).metadata, name)
                at_work(lsn=format_lsn(position))
                return position
            require_same_lake(self.file, self.lake)
            raise LakeError(
                f"pipeline {self.name!r} has no tables in this lake yet",
                where=self.lake.place,
                way_out=f"run: slotlake init {self.file.path.name}",
            )


def _opened_state(file: PipelineFile, lake: LakeSettings) -> StoredState | None:
    if file.state_bucket is None:
        share(file.state_dir, None)
        return None
    from slotlake.infra.opened.own_state import opened_state

    return opened_state(file, lake)


def lake_settings(file: PipelineFile) -> LakeSettings:
    """Return the settings of a pipeline file's lake.

    Raises:
        PipelineFileError: a key does not fit the kind of catalog, or the namespace's name does not.
    """
    lake, uri = file.lake, file.lake_uri()
    require_fitting(file, uri)
    return LakeSettings(
        lake.catalog,
        uri,
        file.warehouse(),
        lake.namespace,
        keep=KeepPoints(lake.keep_points.count, lake.keep_points.days),
        publish=lake.publish,
        unused_seconds=file.maintenance.unused_minutes * 60,
        rest=file.lake_rest(),
        staging=file.lake_staging(),
        glue=file.lake_glue(),
        table_format=lake.format,
        table_formats=table_formats(file),
        layouts=table_layouts(file),
        storage=file.lake_storage(),
        exchange=file.state_dir / "exchange",
        views=lake.views,
        shared=file.shares_state,
        slice_bytes=file.spark.memory_mb << 20,
        packs=file.maintenance.in_sync,
    )
