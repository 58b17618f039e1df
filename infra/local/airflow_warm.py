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

import decoder.pull
import infra.batches
import infra.bootstrap
import infra.engine
import infra.steps
import infra.verification
import spark.apply
import spark.initial
import spark.publish
import spark.read
import spark.session
from decoder.types import column_type, from_text

LOADED = (
    decoder.pull,
    infra.batches,
    infra.bootstrap,
    infra.engine,
    infra.steps,
    infra.verification,
    pyiceberg.catalog.sql,
    pyspark.sql.connect.session,
    spark.apply,
    spark.initial,
    spark.publish,
    spark.read,
    spark.session,
    sqlalchemy.dialects.sqlite,
)

# The first compiled function that runs brings up the rest of numba.
_INT4 = 23
from_text(pa.array(["1"]), column_type(_INT4, -1))
