"""Deletion vectors, by which tables of format 3 lose rows: positions of a data file, in a Puffin file."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile

from slotlake.spark import lake_files
from slotlake.spark.tables.position_deletes import Positions


def vectors(location: str, data_files: Collection[str]) -> dict[str, Positions]:
    """The deletion vectors that a Puffin file has of these data files: positions, ascending.

    Raises:
        LakeError: it cannot be read.
    """
    stored = deletion_vectors_from_puffin_file(PuffinFile(lake_files.read(location)))
    return {
        vector.referenced_data_file: np.concatenate(
            [np.empty(0, np.int64), *(np.asarray(chunk, np.int64) for chunk in vector.to_vector().chunks)]
        )
        for vector in stored
        if vector.referenced_data_file in data_files
    }
