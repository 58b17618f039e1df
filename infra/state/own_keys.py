"""Keys for what belongs to no table of the lake: a REST catalog lends keys for its tables only."""

from __future__ import annotations

from slotlake.decoder.errors import PipelineFileError
from slotlake.spark.lake import LakeSettings
from slotlake.spark.storage import stores
from slotlake.spark.storage.base import StoreRefusedError
from slotlake.spark.storage.location import S3_SCHEMES, Location


def register_own(lake: LakeSettings, root: Location) -> None:
    """Say how a place of the change log or the state is reached: by the keys of the file or the machine.

    Args:
        lake: has the store's endpoint and keys.

    Raises:
        PipelineFileError: the keys for the tables are lent, and there are no others.
    """
    if lake.borrows_keys and root.scheme in S3_SCHEMES:
        try:
            lake.storage.keys()
        except StoreRefusedError as error:
            raise PipelineFileError(
                "there are no keys for changelog.path and state.path: those that the REST catalog lends are "
                "for its tables only",
                where=f"{root}; {error.where}",
                way_out="name folders of this machine in changelog.path and state.path, or give this machine "
                "keys for that place (docs/storage.md); keys in lake.storage are used for the tables, too",
            ) from error
    stores.register(root, lake.storage, own=True)
