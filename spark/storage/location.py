"""Where a file or a folder of the lake is: text with a type of its own, never a path of this machine.

``file:///w/shop/orders`` and ``s3://bucket/lake/shop/orders`` are joined and taken apart alike.  Iceberg's
metadata holds the same text.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

FOLDER_SCHEMES: Final = ("", "file")
S3_SCHEMES: Final = ("s3", "s3a", "s3n")
BUCKET_SCHEMES: Final = (*S3_SCHEMES, "gs", "abfs", "abfss")


class Location(str):
    """A location: the scheme, the bucket or container, and the name of a file or folder in it."""

    __slots__ = ()

    def __truediv__(self, part: str) -> Location:
        """Return the location of something in this folder."""
        return Location(f"{self.rstrip('/')}/{part}")

    @property
    def parent(self) -> Location:
        """The folder that this is in."""
        return Location(self.rstrip("/").rpartition("/")[0])

    @property
    def name(self) -> str:
        """The last part."""
        return self.rstrip("/").rpartition("/")[2]

    @property
    def scheme(self) -> str:
        """``file`` for a plain path, too."""
        return urlsplit(self).scheme or "file"

    @property
    def is_in_bucket(self) -> bool:
        """Whether an object store has it."""
        return self.scheme in BUCKET_SCHEMES

    @property
    def bucket(self) -> str:
        """The scheme and the bucket: ``s3://bucket``; an old name of S3's scheme becomes ``s3``."""
        parts = urlsplit(self)
        return f"{'s3' if parts.scheme in S3_SCHEMES else parts.scheme}://{parts.netloc}"

    @property
    def key(self) -> str:
        """The object's name in its bucket."""
        return self.partition("://")[2].partition("/")[2]

    @property
    def path(self) -> str:
        """The path of a location on this machine, as it is written."""
        raw = self.removeprefix("file:") if self.startswith("file:") else self
        return "/" + raw.lstrip("/")
