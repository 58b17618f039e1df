"""Imports everything that a task needs, before workers are forked (`infra.airflow.worker_start`).

The imports and the start of numba take four seconds of a processor. A task that inherits them starts within a
fifth of a second.  Nothing here may open a connection or start a thread, because these do not survive a fork.
OpenBLAS and Arrow start a few threads, and start them again after a fork.
"""

from __future__ import annotations

import pyarrow as pa
import pyiceberg.catalog.sql
import pyspark.sql.connect.session
import sqlalchemy.dialects.sqlite

import slotlake.decoder.stream.pull
import slotlake.infra.airflow.steps
import slotlake.infra.copy.bootstrap
import slotlake.infra.opened.engine
import slotlake.infra.opened.full_disk
import slotlake.infra.opened.standing
import slotlake.infra.sync.catch_up
import slotlake.infra.verify.verification
import slotlake.spark.apply.stage
import slotlake.spark.catalog.sql.catalog
import slotlake.spark.copy.initial
import slotlake.spark.maintenance.small_files
import slotlake.spark.publish.publication
import slotlake.spark.read.point
import slotlake.spark.session
from slotlake.decoder.types.table import column_type, from_text

LOADED = (
    slotlake.decoder.stream.pull,
    slotlake.infra.sync.catch_up,
    slotlake.infra.copy.bootstrap,
    slotlake.infra.opened.engine,
    slotlake.infra.opened.full_disk,
    slotlake.infra.opened.standing,
    slotlake.infra.airflow.steps,
    slotlake.infra.verify.verification,
    pyiceberg.catalog.sql,
    pyspark.sql.connect.session,
    slotlake.spark.apply.stage,
    slotlake.spark.catalog.sql.catalog,
    slotlake.spark.copy.initial,
    slotlake.spark.maintenance.small_files,
    slotlake.spark.publish.publication,
    slotlake.spark.read.point,
    slotlake.spark.session,
    sqlalchemy.dialects.sqlite,
)

# The first call of a compiled function loads the rest of numba.
_INT4 = 23
from_text(pa.array(["1"]), column_type(_INT4, -1))
