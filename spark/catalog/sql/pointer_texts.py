"""All pointers of a SQL catalog as four values of one row, instead of a row per table.

A sync looks at all pointers some six times.  Of 10,000 tables, rows cost 7 ms to fetch, an object each to
keep, and the time of Python's collector, which looks at these again and again; these texts cost 3 ms, and are
equal to those of the look before, or differ in a few places.  For PostgreSQL's, see postgresql_looks.py.
"""

from __future__ import annotations

from typing import Final, NamedTuple

Row = tuple[str, str, str]
SEPARATOR: Final = "\x1e"
# ``:owner``: the property that marks namespaces of views (`view_spaces.OWNER`).
WHERE: Final = """catalog_name{all_rows} = :catalog AND metadata_location IS NOT NULL
AND table_namespace NOT IN (
    SELECT namespace FROM iceberg_namespace_properties
    WHERE catalog_name = :catalog AND property_key = :owner
)"""
ROWS: Final = f"""
SELECT table_namespace, table_name, metadata_location FROM iceberg_tables
WHERE {WHERE.format(all_rows="")}
"""
_TEXTS_OF_SQLITE: Final = f"""
SELECT count(*), group_concat(table_namespace, '{SEPARATOR}'), group_concat(table_name, '{SEPARATOR}'),
    group_concat(metadata_location, '{SEPARATOR}')"""
# Conditions on each row take as long as all the rest.  Mostly all rows fulfil them, which the indexes tell:
# the least and the greatest name of a catalog are this one's, and no namespace is one of views.
ALL_TEXTS_OF_SQLITE: Final = f"""
WITH texts (number, namespaces, names, locations, located) AS (
    {_TEXTS_OF_SQLITE}, count(metadata_location) FROM iceberg_tables
)
SELECT number, namespaces, names, locations FROM texts WHERE number = located
    AND (SELECT min(catalog_name) FROM iceberg_tables) = :catalog
    AND (SELECT max(catalog_name) FROM iceberg_tables) = :catalog
    AND NOT EXISTS (
        SELECT 1 FROM iceberg_namespace_properties
        WHERE catalog_name = :catalog AND property_key = :owner
    )
"""
# By the index of names, SQLite looks up each row of the table: twice the time of reading the table.
_WHERE_OF_SQLITE: Final = WHERE.format(all_rows=" || ''")
TEXTS_OF_SQLITE: Final = f"{_TEXTS_OF_SQLITE} FROM iceberg_tables WHERE {_WHERE_OF_SQLITE}"


class PointerTexts(NamedTuple):
    """Namespaces, names and metadata locations of a catalog's tables, each as one text with separators."""

    number: int
    namespaces: str | None
    names: str | None
    locations: str | None

    def rows(self) -> list[Row] | None:
        """Return a row per table; None if a name has the separator in it: then they cannot be told apart."""
        if not self.number:
            return []
        columns = [split(text) for text in self[1:]]
        if any(len(column) != self.number for column in columns):
            return None
        return list(zip(*columns, strict=True))

    def has_names_of(self, other: PointerTexts) -> bool:
        """Return whether the same tables are there, in the same order."""
        return self[:3] == other[:3]


def split(text: str | None) -> list[str]:
    """Return the values of one text of :class:`PointerTexts`."""
    return [] if text is None else text.split(SEPARATOR)
