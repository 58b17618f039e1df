"""The cache folder of slotlake, one per user.

It is ``SLOTLAKE_HOME``, else ``$XDG_CACHE_HOME/slotlake``, else ``~/.cache/slotlake``, else ``.slotlake/``
in the checkout: the first that can be written.  A user may delete everything in it; slotlake makes it
again.

``SLOTLAKE_PREPARED`` names a second folder of the same shape that is only read: what an image has from its
build (jars, Java's wrapper).  What it has is not made in the cache folder.
"""

from __future__ import annotations

import os
from pathlib import Path

# Without a checkout (installed from a wheel), this is the folder of the package, with dags/ and docs/.
CHECKOUT = Path(__file__).resolve().parents[2]
# How a user calls the command.
COMMAND = "./slotlake" if (CHECKOUT / "slotlake").is_file() else "slotlake"


def home() -> Path:
    """Return the cache folder; make it if it is missing.

    Raises:
        PermissionError: no candidate can be written; the message lists them.
    """
    candidates = _candidates()
    for folder in candidates:
        if _usable(folder):
            return folder
    tried = ", ".join(str(folder) for folder in candidates)
    raise PermissionError(
        f"none of these folders can be written: {tried}; set SLOTLAKE_HOME to a folder that can be written"
    )


def prepared(*parts: str) -> Path | None:
    """Return a file of the folder ``SLOTLAKE_PREPARED``; None if there is no such folder or file.

    Args:
        parts: the path of the file in that folder.
    """
    folder = os.environ.get("SLOTLAKE_PREPARED", "")
    file = Path(folder).absolute().joinpath(*parts)
    return file if folder and file.is_file() else None


def _candidates() -> list[Path]:
    chosen = os.environ.get("SLOTLAKE_HOME", "")
    if chosen:
        # The user chose this folder, so another folder instead would be a surprise.
        return [Path(chosen).absolute()]
    cache = os.environ.get("XDG_CACHE_HOME", "")
    user = os.environ.get("HOME", "")
    folders = [Path(cache) / "slotlake"] if cache.startswith("/") else []
    folders += [Path(user) / ".cache" / "slotlake"] if user.startswith("/") else []
    return [*folders, CHECKOUT / ".slotlake"]


def _usable(folder: Path) -> bool:
    """Return whether a file can be made in it; on a read-only disk, mode bits do not show this."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError:
        return False
    return True
