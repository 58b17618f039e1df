"""The namespaces of pinned views: how they are called, what marks them, and for which points they stay.

``<namespace>__at`` follows the lake, ``<namespace>__at_<lsn>`` stays at its point.  A property marks each of
them (:data:`OWNER`): everything else here passes over marked namespaces, their tables are no tables of the
lake.  Another (:data:`POINT`) says at which point all of its views are.

Functions are pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from slotlake.decoder.errors import LakeError
from slotlake.decoder.lsn import parse_lsn
from slotlake.spark.catalog.base import VIEWS_SUFFIX, ViewNamespace
from slotlake.spark.names import COMMITS, LakeName, belongs, is_copying

OWNER: Final = "slotlake.views-of"
POINT: Final = "slotlake.point"
MADE: Final = "slotlake.made"
# Of so many points there is a namespace that stays, the newest ones that are so far apart.
STAYING: Final = 10
SECONDS_APART = 60.0
_NAME = re.compile(rf"(.+){VIEWS_SUFFIX}(?:_[0-9a-f]{{8}}_[0-9a-f]{{8}})?")


def may_be(name: str) -> bool:
    """Return whether a namespace has such a name that it can be one of views."""
    return _NAME.fullmatch(name) is not None


def is_following(name: str) -> bool:
    """Return whether such a namespace of views follows the lake."""
    return name.endswith(VIEWS_SUFFIX)


def space_of(name: str, properties: Mapping[str, str], lake_namespace: str) -> ViewNamespace | None:
    """Return the namespace of views that these properties mark; None if it is none of this lake."""
    base = _NAME.fullmatch(name)
    if base is None or properties.get(OWNER) != lake_namespace:
        return None
    position = parse_lsn(properties[POINT]) if properties.get(POINT) else None
    return ViewNamespace(name, base[1], position, float(properties.get(MADE, "0")))


def point_namespace(base: str, position: int) -> str:
    """Return the name of the namespace that stays at a point; the name of a later point is greater."""
    return f"{base}{VIEWS_SUFFIX}_{position >> 32:08x}_{position & 0xFFFFFFFF:08x}"


def staying(
    spaces: Iterable[ViewNamespace], tagged: Collection[int], position: int, now: float, count: int
) -> tuple[bool, set[int]]:
    """Return whether this point gets namespaces that stay, and the points whose namespaces then stay.

    A point gets them if the last ones were made long ago, or if their point is about to leave: when batches
    follow each other so quickly that all kept points are younger than that, there are still some.

    Args:
        now: in seconds since 1970.
        count: how many points are kept at most.
    """
    made = {space.position: space.made for space in spaces if not space.follows and space.position}
    newest = max((each for at, each in made.items() if at != position), default=0.0)
    older = [at for at in tagged if at < max((each for each in made if each != position), default=0)]
    leaves = not older and len(tagged) >= count
    stays = position in tagged and (position in made or leaves or now - newest >= SECONDS_APART)
    points = {*made, position} if stays else {*made}
    return stays, set(sorted(at for at in points if at in tagged)[-STAYING:])


def by_base(names: Iterable[LakeName], lake_namespace: str) -> dict[str, list[LakeName]]:
    """Return the lake's published tables by namespace; none before the initial copy.

    Args:
        names: of all tables; a pipeline may have a namespace that begins like ours.
    """
    tables: dict[str, list[LakeName]] = {}
    for name in sorted(names):
        if belongs(name.namespace, lake_namespace) and not is_copying(name.namespace):
            tables.setdefault(name.namespace, []).append(name)
    lakes = {base for base, within in tables.items() if any(name.table == COMMITS for name in within)}
    if lake_namespace not in lakes:
        return {}
    others = lakes - {lake_namespace}
    return {base: each for base, each in tables.items() if not any(belongs(base, other) for other in others)}


def tables_where_views_are_to_be(space: str, place: str) -> LakeError:
    """Return the error of a namespace that views need and tables have."""
    return LakeError(
        "there are tables in the namespace that lake.views needs; nothing was changed",
        where=f"namespace {space} in {place}",
        way_out="set lake.views to false; or give the pipeline another lake.namespace",
    )


def table_among_views(name: LakeName) -> LakeError:
    """Return the error of a table that would go into a namespace of views."""
    return LakeError(
        "a table would go into a namespace of pinned views; nothing was changed",
        where=f"table {name}",
        way_out="set lake.views to false, or rename the schema in the source",
    )
