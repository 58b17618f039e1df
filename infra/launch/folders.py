"""Where slotlake keeps what it makes for itself: one cache folder per user.

``SLOTLAKE_HOME``, else ``$XDG_CACHE_HOME/slotlake``, else ``~/.cache/slotlake``, else ``.slotlake/`` in
the checkout; the first that can be written.  Everything in it can be deleted and is made again.
"""

from __future__ import annotations

import os
from pathlib import Path

# Installed from a wheel, there is none: it is then the folder of the package, with dags/ and docs/ in it.
CHECKOUT = Path(__file__).resolve().parents[2]
# How a person calls the command.
COMMAND = "./slotlake" if (CHECKOUT / "slotlake").is_file() else "slotlake"


def home() -> Path:
    """The cache folder, made if missing.

    Raises:
        PermissionError: no candidate can be written; the message names them.
    """
    candidates = _candidates()
    for folder in candidates:
        if _usable(folder):
            return folder
    tried = ", ".join(str(folder) for folder in candidates)
    raise PermissionError(f"none of these folders can be written: {tried}; set SLOTLAKE_HOME to one that can")


def _candidates() -> list[Path]:
    wanted = os.environ.get("SLOTLAKE_HOME", "")
    if wanted:
        # Asked for by name: falling back elsewhere would surprise more than an error does.
        return [Path(wanted).absolute()]
    cache = os.environ.get("XDG_CACHE_HOME", "")
    user = os.environ.get("HOME", "")
    found = [Path(cache) / "slotlake"] if cache.startswith("/") else []
    found += [Path(user) / ".cache" / "slotlake"] if user.startswith("/") else []
    return [*found, CHECKOUT / ".slotlake"]


def _usable(folder: Path) -> bool:
    """True when a file can be made in it; a mode bit alone says nothing on a read-only mount."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError:
        return False
    return True
