"""pyiceberg's files by the lake's stores, so that both read and write the same bytes in the same way.

pyiceberg takes it by name: ``py-io-impl`` (:data:`FILE_IO`).
"""

from __future__ import annotations

import io
from typing import Final, cast

from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream

from slotlake.spark.storage.location import Location
from slotlake.spark.storage.stores import store_of

FILE_IO: Final = {"py-io-impl": "slotlake.spark.storage.file_io.StoreFileIO"}


class _Input(InputFile):
    """A file to read."""

    def __len__(self) -> int:
        size = store_of(self.location).size(Location(self.location))
        if size is None:
            raise FileNotFoundError(2, "there is no such file", self.location)
        return size

    def exists(self) -> bool:
        return store_of(self.location).size(Location(self.location)) is not None

    def open(self, seekable: bool = True) -> InputStream:
        """Open all of the file, by one request: manifests, lists of them and rows of `commits` are small."""
        return cast("InputStream", io.BytesIO(store_of(self.location).read(Location(self.location))))


class _Content(io.BytesIO):
    """What is being written; it becomes a file when it is closed."""

    def __init__(self, output: _Output) -> None:
        super().__init__()
        self._output = output

    def close(self) -> None:
        if not self.closed:
            content = self.getvalue()
            super().close()
            self._output.size = len(content)
            store_of(self._output.location).write_new(Location(self._output.location), content)

    def __exit__(self, kind: object, *failure: object) -> None:
        if kind is None:
            self.close()
        else:
            super().close()  # half a file is none


class _Output(OutputFile):
    """A file to write.

    Attributes:
        size: bytes that were written; None as long as nothing was.
    """

    size: int | None = None

    def __len__(self) -> int:
        return len(self.to_input_file()) if self.size is None else self.size

    def exists(self) -> bool:
        return self.to_input_file().exists()

    def to_input_file(self) -> InputFile:
        return _Input(self.location)

    def create(self, overwrite: bool = False) -> OutputStream:
        """Begin a new file, also where pyiceberg would let it replace one: its names are never used twice."""
        return cast("OutputStream", _Content(self))


class StoreFileIO(FileIO):
    """Files of folders and buckets."""

    def new_input(self, location: str) -> InputFile:
        """Return a file to read."""
        return _Input(location)

    def new_output(self, location: str) -> OutputFile:
        """Return a file to write; it is there when it is closed without an error."""
        return _Output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Remove a file; a missing one is fine."""
        place = location if isinstance(location, str) else location.location
        store_of(place).remove([Location(place)])
