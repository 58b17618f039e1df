"""A pipeline to be measured: its file, its lake in a folder of its own, its first copy made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from slotlake.bench.workload import DATABASE, PUBLICATION, SLOT
from slotlake.infra.local.postgres import EmbeddedPostgres
from slotlake.infra.pipeline import Pipeline
from slotlake.infra.progress import Progressing

NAMESPACE = "bench"


@contextmanager
def bench_pipeline(
    server: EmbeddedPostgres,
    folder: Path,
    tables: Sequence[str],
    progress: Progressing,
    *,
    suffix: str = "",
    lake_more: Mapping[str, Any] | None = None,
    table_keys: Mapping[str, Mapping[str, Any]] | None = None,
    source_more: Mapping[str, Any] | None = None,
    **sections: Mapping[str, Any],
) -> Iterator[Pipeline]:
    """A pipeline over these tables (names in schema public), initialised; Spark runs in this process.

    Args:
        suffix: of all names, where there is more than one pipeline.
        lake_more: further keys of the section ``lake``; ``source_more``: of ``source``.
        table_keys: what the section ``tables`` says of a table.
        sections: further ones of the pipeline file.
    """
    file = folder / f"bench{suffix}.yaml"
    contents = {
        "name": f"bench{suffix}",
        "source": {
            "dsn": server.url(DATABASE),
            "publications": [f"{PUBLICATION}{suffix}"],
            "slot": f"{SLOT}{suffix}",
            **(source_more or {}),
        },
        "lake": {
            "catalog": f"lake{suffix}",
            "uri": f"sqlite:///{folder}/catalog{suffix}.db",
            "warehouse": f"file://{folder}/warehouse{suffix}",
            "namespace": NAMESPACE,
            **(lake_more or {}),
        },
        "tables": {f"public.{table}": dict((table_keys or {}).get(table, {})) for table in tables},
        **sections,
    }
    file.write_text(yaml.safe_dump(contents))
    file.chmod(0o600)  # it holds the server's password
    with Pipeline.open(file) as pipeline:
        pipeline.init(progress=progress)
        yield pipeline
