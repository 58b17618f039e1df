"""Where the lakes of the tests are: in folders, or (``SLOTLAKE_TEST_STORAGE=s3``) in a real S3 server.

Their catalogs are SQLite files, or (``SLOTLAKE_TEST_CATALOG``) one REST server per folder: ``rest``, with
branches; ``staged``, without using them.  Or (``nessie``) branches of one Nessie, with their lakes in S3.
"""

from __future__ import annotations

import json
import os
import uuid
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from slotlake.infra.local.object_store import LocalObjectStore
from slotlake.spark.lake import LakeSettings
from slotlake.spark.storage.settings import StorageSettings
from tests.spark.nessie_catalog import branch_of_nessie

_KIND: Final = os.environ.get("SLOTLAKE_TEST_CATALOG", "")
IN_NESSIE: Final = _KIND == "nessie"
IN_S3: Final = IN_NESSIE or os.environ.get("SLOTLAKE_TEST_STORAGE") == "s3"
ON_REST: Final = _KIND in ("rest", "staged")
_NESSIE: Final = "SLOTLAKE_TEST_NESSIE"
_VARIABLE: Final = "SLOTLAKE_TEST_S3"  # for processes that a test starts, too
_servers: dict[Path, str] = {}
_stores: list[LocalObjectStore] = []
_running = ExitStack()


def use(store: LocalObjectStore) -> None:
    """Make all lakes of this run be in an object store.

    Args:
        store: the server.
    """
    _stores.append(store)
    os.environ[_VARIABLE] = json.dumps({"warehouse": store.warehouse, "storage": store.storage})


def use_nessie(uri: str) -> None:
    """Make all catalogs of this run that are not said to be elsewhere be branches of a Nessie server.

    Args:
        uri: the server's.
    """
    os.environ[_NESSIE] = uri


def catalog_lines(folder: Path) -> str:
    """Return the key `uri` of a pipeline file's section `lake`, and what else the catalog needs there.

    Args:
        folder: the pipeline's folder.
    """
    if not IN_NESSIE:
        return f'uri: "{catalog_uri(folder)}"' + ("\n  staging: local" if _KIND == "staged" else "")
    branch = f"t{uuid.uuid5(uuid.NAMESPACE_URL, str(folder)).hex}"
    return f'uri: "{branch_of_nessie(os.environ[_NESSIE], branch)}"\n  staging: local\n  format: 2'


def warehouse_lines(folder: Path) -> str:
    """Return the keys `warehouse` and `storage` of a pipeline file's section `lake`.

    Args:
        folder: the pipeline's folder.
    """
    if not IN_S3:
        return f'warehouse: "{folder}/warehouse"'
    server = json.loads(os.environ[_VARIABLE])
    return f'warehouse: "{_prefix(folder)}"\n  storage: {json.dumps(server["storage"])}'


def catalog_uri(folder: Path) -> str:
    """Return the address of the catalog of the pipelines in a folder.

    Args:
        folder: the pipelines' folder.
    """
    if not ON_REST:
        return f"sqlite:///{folder}/lake.db"
    if folder not in _servers:
        from tests.spark.rest_catalog import LocalRestCatalog

        server = LocalRestCatalog(folder / "rest", store=_stores[0] if IN_S3 else None)
        _servers[folder] = _running.enter_context(server).uri
    return _servers[folder]


def end_catalogs() -> None:
    """End the servers that a test's pipelines made necessary."""
    _running.close()
    _servers.clear()


def moved_to(store: LocalObjectStore, file: Path) -> None:
    """Make a pipeline file's warehouse be in an object store.

    Args:
        store: the server.
        file: a pipeline file; where its warehouse is does not matter.
    """
    lines = [e for e in file.read_text().splitlines(keepends=True) if not e.startswith("  storage: ")]
    (at,) = [i for i, line in enumerate(lines) if line.startswith("  warehouse: ")]
    prefix = uuid.uuid5(uuid.NAMESPACE_URL, str(file)).hex
    lines[at] = f'  warehouse: "{store.warehouse}/{prefix}"\n  storage: {json.dumps(store.storage)}\n'
    file.write_text("".join(lines))


def pyiceberg_properties() -> dict[str, str]:
    """Return what pyiceberg needs to read a file of the run's lakes by its location."""
    if not IN_S3:
        return {}
    storage = json.loads(os.environ[_VARIABLE])["storage"]
    return {
        "s3.endpoint": storage["endpoint"],
        "s3.access-key-id": storage["access_key"],
        "s3.secret-access-key": storage["secret_key"],
        "s3.region": storage.get("region", "us-east-1"),
    }


def lake_in(folder: Path, lake: LakeSettings) -> LakeSettings:
    """Return the settings of a lake in a folder, or where the run's lakes are.

    Args:
        folder: the folder of the test.
        lake: the settings, with a warehouse in a folder.
    """
    if not IN_S3:
        return lake
    storage = StorageSettings(**json.loads(os.environ[_VARIABLE])["storage"])
    return replace(lake, warehouse=_prefix(folder), storage=storage, exchange=folder / "exchange")


def _prefix(folder: Path) -> str:
    """A prefix for a test's folder: always the same one, and no other folder's."""
    server = json.loads(os.environ[_VARIABLE])
    return f"{server['warehouse']}/{uuid.uuid5(uuid.NAMESPACE_URL, str(folder)).hex}"


def files_folder(folder: Path) -> Path:
    """Return where the files of a test's warehouse are on this machine's disk, also those of a bucket.

    Args:
        folder: the folder of the test.
    """
    return local_file(_prefix(folder)) if IN_S3 else folder / "warehouse"


def local_file(location: str) -> Path:
    """Return where a file of a warehouse is on this machine's disk: the S3 server keeps objects as files.

    Args:
        location: its URI.
    """
    if location.startswith("s3://"):
        return _stores[0].folder / "objects" / location.removeprefix("s3://")
    return Path(location.removeprefix("file:"))


def files_in(place: Path) -> list[Path]:
    """Return the files below a folder; a bucket has no folders, so empty ones say nothing.

    Args:
        place: the folder; it may be missing.
    """
    return [path for path in place.rglob("*") if path.is_file()]


needs_a_folder = pytest.mark.skipif(IN_S3, reason="it looks at, or damages, files in the warehouse's folder")
