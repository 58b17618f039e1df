"""Deletion vectors, by which tables of format 3 lose rows: positions of a data file, in a Puffin file."""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Mapping
from typing import Final

import numpy as np
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import MAGIC_BYTES, PuffinFile
from pyroaring import BitMap

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


# Puffin spec, "deletion-vector-v1 blob type": the magic number, and the reserved field of positions.
_MAGIC: Final = bytes.fromhex("d1d33964")
_POSITION_FIELD: Final = 2147483645
_HALF: Final = 32


def puffin_of(
    positions: Mapping[str, Positions], written_by: str
) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """Make a Puffin file of deletion vectors, one for each data file.

    Args:
        positions: by data file as the manifests name it; ascending, each once.
        written_by: what the file says of who wrote it.

    Returns:
        Its content, and by data file where in it the vector begins and how many bytes it has.
    """
    content, places, blobs = bytearray(MAGIC_BYTES), {}, []
    for data_file, rows in positions.items():
        blob = _blob(rows)
        places[data_file] = len(content), len(blob)
        properties = {"cardinality": str(len(rows)), "referenced-data-file": data_file}
        blobs.append(
            {
                "type": "deletion-vector-v1",
                "fields": [_POSITION_FIELD],
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": len(content),
                "length": len(blob),
                "properties": properties,
            }
        )
        content += blob
    footer = json.dumps({"blobs": blobs, "properties": {"created-by": written_by}}).encode()
    content += MAGIC_BYTES + footer + len(footer).to_bytes(4, "little") + bytes(4) + MAGIC_BYTES
    return bytes(content), places


def _blob(rows: Positions) -> bytes:
    """A vector: length, magic number, bitmaps of 32 bits by the upper halves of the positions, checksum."""
    upper = rows >> _HALF
    keys = np.unique(upper)
    body = bytearray(_MAGIC + len(keys).to_bytes(8, "little"))
    for key in keys.tolist():
        bitmap = BitMap((rows[upper == key] & 0xFFFFFFFF).astype(np.uint32))
        bitmap.run_optimize()
        body += key.to_bytes(4, "little") + bitmap.serialize()
    return len(body).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
