"""What a scenario is: tables of a source, and steps that change them."""

from __future__ import annotations

from dataclasses import dataclass, field

BIG = "(SELECT string_agg(md5((g + {0})::text), '') FROM generate_series(1, 400) g)"


def big(seed: int) -> str:
    """SQL for 12.8 kB of text that does not compress: it is always stored out of line."""
    return BIG.format(seed * 1000)


@dataclass(frozen=True)
class Scenario:
    """``setup`` runs before `init`; each of ``steps`` is followed by one sync and a comparison."""

    tables: list[str]
    setup: str
    steps: list[list[str]] = field(default_factory=list)
