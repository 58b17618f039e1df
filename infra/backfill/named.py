"""Which tables a backfill is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.errors import PipelineFileError
from slotlake.infra.copy.tables import published_tables
from slotlake.spark.names import parse_postgres_name

if TYPE_CHECKING:
    from slotlake.infra.opened.open_pipeline import OpenPipeline


def named_tables(pipeline: OpenPipeline, names: Sequence[str]) -> list[SourceTable]:
    """Return the published tables of these names, as PostgreSQL writes them.

    Raises:
        PipelineFileError: the publications have no such table, or it is no name.
    """
    named = {_parsed(name) for name in names}
    tables = {(t.schema, t.table): t for t in published_tables(pipeline, include_aside=named)}
    chosen = []
    for name in dict.fromkeys(names):
        try:
            chosen.append(tables[parse_postgres_name(name)])
        except KeyError:
            listed = ", ".join(sorted(f"{schema}.{table}" for schema, table in tables)) or "none"
            raise PipelineFileError(
                f"the publications have no table {name}",
                where="--table",
                way_out=f"name one of those published, as PostgreSQL writes it: {listed}",
            ) from None
    if not chosen:
        raise PipelineFileError("no table is named", where="--table", way_out="name at least one")
    return list(dict.fromkeys(chosen))


def _parsed(name: str) -> tuple[str, str]:
    try:
        return parse_postgres_name(name)
    except KeyError:
        raise PipelineFileError(
            f"{name!r} is not a table name",
            where="--table",
            way_out='name it as PostgreSQL writes it: public.orders, "Odd Schema"."Odd Name"',
        ) from None
