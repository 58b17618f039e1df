"""Deletion vectors, by which tables of format 3 lose rows: positions of a data file, in a Puffin file."""

from __future__ import annotations

import json
import zlib
from array import array
from collections.abc import Collection, Mapping
from typing import Final

import numpy as np
from pyiceberg.table.puffin import MAGIC_BYTES, PuffinFile
from pyroaring import BitMap

from slotlake.decoder.compiled.arrays import distinct
from slotlake.decoder.errors import LAKE_ALTERED, DamagedError
from slotlake.spark import lake_files
from slotlake.spark.tables.position_deletes import Positions

_WHOLE_BYTES_MAX: Final = 4 << 20
_REFERENCED: Final = "referenced-data-file"
# Puffin spec, "deletion-vector-v1 blob type": the magic number, and the reserved field of positions.
_MAGIC: Final = bytes.fromhex("d1d33964")
_POSITION_FIELD: Final = 2147483645
_HALF: Final = 32


def vectors(location: str, data_files: Collection[str]) -> dict[str, Positions]:
    """The deletion vectors that a Puffin file has of these data files: positions, ascending.

    Raises:
        DamagedError: it cannot be read.
    """
    stored = _stored(location)
    return {name: _positions(stored[name], location) for name in data_files if name in stored}


def vectors_at(location: str, size: int, places: Mapping[str, tuple[int, int]]) -> dict[str, Positions]:
    """The deletion vectors of some data files; of a large Puffin file only parts are read.

    Args:
        size: all its bytes.
        places: by data file the vector's first byte and how many it has, as manifests have them.

    Raises:
        DamagedError: it cannot be read.
    """
    if size <= _WHOLE_BYTES_MAX:
        content = lake_files.read(location)
        stored = {name: content[start : start + count] for name, (start, count) in places.items()}
    else:
        stored = lake_files.read_parts(location, places)
    return {name: _positions(blob, location) for name, blob in stored.items()}


class VectorFiles:
    """The deletion vectors of one scan: each Puffin file is read, and taken apart, once."""

    def __init__(self) -> None:
        self._stored: dict[str, dict[str, bytes]] = {}

    def positions(self, location: str, data_file: str) -> Positions:
        """The positions of a data file that a Puffin file says are deleted, ascending; none if it has none.

        Raises:
            DamagedError: it cannot be read.
        """
        if location not in self._stored:
            self._stored[location] = _stored(location)
        blob = self._stored[location].get(data_file)
        return np.empty(0, np.int64) if blob is None else _positions(blob, location)


def _stored(location: str) -> dict[str, bytes]:
    """A Puffin file's vectors as it has them, by data file."""
    puffin = PuffinFile(lake_files.read(location))
    return {blob.properties[_REFERENCED]: puffin.get_blob_payload(blob) for blob in puffin.footer.blobs}


def _positions(blob: bytes, location: str) -> Positions:
    """What `_blob` has made."""
    body = blob[4:-4]
    checks = len(body).to_bytes(4, "big"), zlib.crc32(body).to_bytes(4, "big")
    if (blob[:4], blob[-4:]) != checks or body[:4] != _MAGIC:
        raise DamagedError("a deletion vector is damaged", where=location, way_out=LAKE_ALTERED)
    arrays, at = [np.empty(0, np.int64)], 12
    for _ in range(int.from_bytes(body[4:at], "little")):
        upper = int.from_bytes(body[at : at + 4], "little")
        bitmap = BitMap.deserialize(body[at + 4 :])
        arrays.append(np.asarray(bitmap.to_array(), np.int64) + (upper << _HALF))
        at += 4 + len(bitmap.serialize())
    return np.concatenate(arrays)


def puffin_of(
    positions: Mapping[str, Positions], written_by: str
) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """Make a Puffin file of deletion vectors, one for each data file.

    Args:
        positions: by data file as the manifests name it; ascending, each once.

    Returns:
        Its content, and by data file where in it the vector begins and how many bytes it has.
    """
    content, places, blobs = bytearray(MAGIC_BYTES), {}, []
    for data_file, rows in positions.items():
        blob = _blob(rows)
        places[data_file] = len(content), len(blob)
        properties = {"cardinality": str(len(rows)), _REFERENCED: data_file}
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
    keys = distinct(upper)
    body = bytearray(_MAGIC + len(keys).to_bytes(8, "little"))
    for key in keys.tolist():
        bitmap = BitMap(array("I", (rows[upper == key] & 0xFFFFFFFF).astype(np.uint32).tobytes()))
        bitmap.run_optimize()
        body += key.to_bytes(4, "little") + bitmap.serialize()
    return len(body).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
