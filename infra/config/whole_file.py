"""Files that other programs read while they are written: pipeline files, pages, metrics."""

from __future__ import annotations

import os
from pathlib import Path

from slotlake.decoder.errors import PipelineFileError


def write_whole(path: Path, text: str, option: str = "") -> None:
    """Write a file so that a reader sees the earlier content or all of the new one.

    Args:
        option: that named it, for the error; empty: none did.

    Raises:
        PipelineFileError: it cannot be written; what was there before stays.
    """
    # node_exporter reads only ``*.prom``, so not this one.
    incoming = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if path.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        with incoming.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        incoming.replace(path)
    except OSError as error:
        incoming.unlink(missing_ok=True)
        raise PipelineFileError(
            f"the file cannot be written ({error.strerror})",
            where=f"{option} {path}".strip(),
            way_out="name a file in a folder that exists and that this user may write",
        ) from None
