"""The text of a new pipeline file: the keys that a newcomer needs, each explained in its line.

Invariant: it is a pipeline file for every name that fits `NAME`, and it holds no password.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from slotlake.infra.config.pipeline_file import PipelineFile, pipeline_of
from slotlake.infra.config.strict_yaml import parsed

# A name of the pipeline that also is one for its slot, its publication and its namespace.
NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,49}")
_COMMENTS_FROM = 40  # the column
_PLAIN = re.compile(r"[\w:/.-]+")


@dataclass(frozen=True)
class NewFile:
    """What differs between new pipeline files.

    Attributes:
        dsn: as `source.dsn` has it, without a password.
        lake: the warehouse, as `lake.warehouse` has it.
        tables: the lines under `tables`, without a line break.
    """

    name: str
    dsn: str
    lake: str = "lake"
    tables: Sequence[str] = ()

    @property
    def catalog(self) -> str:
        """The address of the catalog: next to the folder, or next to the file if the lake is in a store."""
        is_elsewhere = "://" in self.lake and not self.lake.startswith("file:")
        place = self.name if is_elsewhere else re.sub("^file:(//)?", "", self.lake).rstrip("/")
        return f"sqlite:///{place}.db"

    def text(self) -> str:
        """Return the content of the file."""
        own = f"slotlake_{self.name}"
        lines = [
            "# A pipeline of slotlake. All keys: docs/pipeline-file.md. `slotlake validate` checks them.",
            _line(f"name: {_scalar(self.name)}", "names the state folder (.slotlake) and the DAGs"),
            "source:",
            _line(f"  dsn: {_scalar(self.dsn)}", "env:NAME: the variable has postgresql://user:password@…"),
            _line(f"  publications: [{own}]", "init makes it for the tables below, if the role may"),
            _line(f"  slot: {own}", "init makes it; it keeps WAL until the lake has the changes"),
            "lake:",
            _line("  catalog: lake", "readers use the same name"),
            _line(f"  uri: {_scalar(self.catalog)}", "the catalog; of several machines: docs/catalogs.md"),
            _line(f"  warehouse: {_scalar(self.lake)}", "the files: a folder, or s3://bucket/prefix"),
            _line(f"  namespace: {_scalar(self.name)}", "of the lake's tables: public.orders is here"),
            _line("mode: mirror", "or [mirror, history]: also all versions of the rows (docs/modes.md)"),
            _line("new_tables: copy", "a table that joins the publication is copied; or: ignore"),
            _line("tables:", "choices for a table go into its {}: {partition_by: day(created_at)}"),
            *self.tables,
        ]  # fmt: skip
        return "".join(f"{line}\n" for line in lines)

    def draft(self, path: Path) -> PipelineFile:
        """Return the pipeline file as it will be read at this absolute path.

        Raises:
            PipelineFileError: `dsn` or `lake` is none that a pipeline file can have.
        """
        return pipeline_of(parsed(self.text()), path)


def _line(key: str, comment: str) -> str:
    return f"{key:<{_COMMENTS_FROM - 2}}  # {comment}"


def _scalar(text: str) -> str:
    """Return the text as YAML has it: plain if that is read as the same text, else in double quotes."""
    is_plain = _PLAIN.fullmatch(text) and yaml.safe_load(text) == text
    return text if is_plain else json.dumps(text, ensure_ascii=False)
