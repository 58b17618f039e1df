"""pyiceberg's files by the lake's stores, so that both read and write the same bytes in the same way.

pyiceberg takes it by name: ``py-io-impl`` (:data:`FILE_IO`).
"""

from __future__ import annotations

import io
from typing import Final, cast

from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream
from pyiceberg.typedef import EMPTY_DICT, Properties

from slotlake.spark.storage import side_by_side
from slotlake.spark.storage.location import Location
from slotlake.spark.storage.side_by_side import Writes
from slotlake.spark.storage.stores import store_of

FILE_IO: Final = {"py-io-impl": "slotlake.spark.storage.file_io.StoreFileIO"}


class _Input(InputFile):
    """A file to read; if it is being written, that is waited for."""

    def __init__(self, location: str, writes: Writes | None) -> None:
        super().__init__(location)
        self._writes = writes

    def __len__(self) -> int:
        size = store_of(self.location).size(Location(self.location))
        if size is None:
            raise FileNotFoundError(2, "there is no such file", self.location)
        return size

    def exists(self) -> bool:
        return store_of(self.location).size(Location(self.location)) is not None

    def open(self, seekable: bool = True) -> InputStream:
        """Open all of the file, by one request: manifests, lists of them and rows of `commits` are small."""
        if self._writes is not None:
            self._writes.wait_for(Location(self.location))
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
            self._output.write(content)

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

    def __init__(self, location: str, writes: Writes | None) -> None:
        super().__init__(location)
        self._writes = writes

    def write(self, content: bytes) -> None:
        """Write all of the file, or begin to, where several are waited for together."""
        self.size = len(content)
        if self._writes is None:
            store_of(self.location).write_new(Location(self.location), content)
        else:
            self._writes.begin(Location(self.location), content)

    def __len__(self) -> int:
        return len(self.to_input_file()) if self.size is None else self.size

    def exists(self) -> bool:
        return self.to_input_file().exists()

    def to_input_file(self) -> InputFile:
        return _Input(self.location, self._writes)

    def create(self, overwrite: bool = False) -> OutputStream:
        """Begin a new file, also where pyiceberg would let it replace one: its names are never used twice."""
        return cast("OutputStream", _Content(self))


class StoreFileIO(FileIO):
    """Files of folders and buckets.

    pyiceberg writes in threads of its own, so the writes that the present thread waits for are taken here.
    """

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        super().__init__(properties)
        self._writes = side_by_side.present()

    def new_input(self, location: str) -> InputFile:
        """Return a file to read."""
        return _Input(location, self._writes)

    def new_output(self, location: str) -> OutputFile:
        """Return a file to write; it is there when it is closed without an error."""
        return _Output(location, self._writes)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Remove a file; a missing one is fine."""
        place = location if isinstance(location, str) else location.location
        store_of(place).remove([Location(place)])
