"""slotlake: PostgreSQL's committed changes in an Apache Iceberg lake, in commit order, provably equal.

The Python API is `Pipeline`; the packages below are the floors of ARCHITECTURE.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slotlake.infra.pipeline import Pipeline as Pipeline

__all__ = ["VERSION", "Pipeline"]
VERSION = "0.3.0"


def __getattr__(name: str) -> Any:
    if name != "Pipeline":
        raise AttributeError(f"module 'slotlake' has no attribute {name!r}")
    from slotlake.infra.pipeline import Pipeline

    return Pipeline
