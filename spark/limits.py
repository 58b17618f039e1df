"""How long a catalog is waited for.

A catalog changes single rows, and nobody is to hold one of them for long.
"""

from __future__ import annotations

CONNECT_SECONDS, SILENT_SECONDS = 10, 30
