"""What every task needs, loaded once: the local scheduler imports this module before it forks its workers.

Importing these libraries, and bringing up numba's own, takes four seconds of a core; a task that inherits
them begins to work after a fifth of one.  Nothing here may open a connection or start a thread, which do not
survive a fork; the few that OpenBLAS and Arrow start are theirs to make again, and they do.
"""

from __future__ import annotations

import pyarrow as pa
import pyiceberg.catalog.sql
import pyspark.sql.connect.session
import sqlalchemy.dialects.sqlite

import slotlake.decoder.stream.pull
import slotlake.infra.airflow.steps
import slotlake.infra.care.verification
import slotlake.infra.copy.bootstrap
import slotlake.infra.engine
import slotlake.infra.sync.catch_up
import slotlake.spark.apply.stage
import slotlake.spark.copy.initial
import slotlake.spark.publish.publication
import slotlake.spark.read.point
import slotlake.spark.session
from slotlake.decoder.types.table import column_type, from_text

LOADED = (
    slotlake.decoder.stream.pull,
    slotlake.infra.sync.catch_up,
    slotlake.infra.copy.bootstrap,
    slotlake.infra.engine,
    slotlake.infra.airflow.steps,
    slotlake.infra.care.verification,
    pyiceberg.catalog.sql,
    pyspark.sql.connect.session,
    slotlake.spark.apply.stage,
    slotlake.spark.copy.initial,
    slotlake.spark.publish.publication,
    slotlake.spark.read.point,
    slotlake.spark.session,
    sqlalchemy.dialects.sqlite,
)

# The first compiled function that runs brings up the rest of numba.
_INT4 = 23
from_text(pa.array(["1"]), column_type(_INT4, -1))
