"""Whether the keys of the section ``lake`` fit the kind of its catalog.

The kind is only known once ``lake.uri`` is resolved: the file may say ``env:NAME``.
"""

from __future__ import annotations

from slotlake.decoder.errors import PipelineFileError
from slotlake.infra.config.pipeline_file import PipelineFile
from slotlake.spark.lake import DELEGATION, is_metastore_address
from slotlake.spark.names import fits_metastore

_ONE_BY_ONE = "a REST catalog (https://…), AWS Glue or a Hive Metastore"
_METASTORE = ("glue:", "thrift:")


def require_fitting(file: PipelineFile, uri: str) -> None:
    """Check the keys of the section ``lake`` against the catalog's kind.

    Args:
        uri: the catalog's address, resolved.

    Raises:
        PipelineFileError: a key does not fit, or the catalog needs one that is not there.
    """
    if uri == "glue" or uri.startswith(_METASTORE):
        _metastore(file, uri)
        return
    _only_for(file, ("glue",), "AWS Glue (glue://region)")
    if not uri.startswith("http"):
        _only_for(file, ("rest", "staging"), "a REST catalog (https://…)")
        _only_for(file, ("publish",), _ONE_BY_ONE)
        return
    asked = [text for name, text in file.lake_rest().items() if name.lower() == DELEGATION]
    if any("remote-signing" in text.lower() for text in asked):
        raise PipelineFileError(
            "requests to the object store cannot be signed by the REST catalog (remote-signing)",
            where=f"{file.path}, lake.rest.header.X-Iceberg-Access-Delegation",
            way_out="write vended-credentials alone there, if the server can lend keys; or remove it, and "
            "give access_key and secret_key in lake.storage, or keys of this machine (docs/storage.md)",
        )


def _only_for(file: PipelineFile, keys: tuple[str, ...], catalog: str) -> None:
    given = [key for key in keys if key in file.lake.model_fields_set]
    if given:
        raise PipelineFileError(
            f"lake.{' and lake.'.join(given)} can be given for {catalog} only",
            where=str(file.path),
            way_out="remove it, or set lake.uri to such a catalog",
        )


def _metastore(file: PipelineFile, uri: str) -> None:
    lake = file.lake
    kind = "a Hive Metastore" if uri.startswith("thrift:") else "AWS Glue"
    if not is_metastore_address(uri):
        raise PipelineFileError(
            f"lake.uri is no address of {kind}",
            where=str(file.path),
            way_out="write glue://region (or glue:// for the region that this machine is set to), or "
            "thrift://host:port, several of them with commas",
        )
    _only_for(file, ("rest", "staging"), "a REST catalog (https://…)")
    if file.spark.remote is not None and file.lake.glue.access_key is not None:
        raise PipelineFileError(
            "keys for AWS Glue cannot be given to a Spark server (spark.remote)",
            where=f"{file.path}, lake.glue.access_key",
            way_out="set up keys for AWS (environment, profile, role) on both machines, and remove them here",
        )
    if kind != "AWS Glue":
        _only_for(file, ("glue",), "AWS Glue (glue://region)")
    if lake.publish != "per_table":
        raise PipelineFileError(
            f"{kind} cannot publish several tables at once",
            where=f"{file.path}, lake.publish",
            way_out="accept that with lake.publish: per_table (docs/catalogs.md says what it means for "
            "readers), or use SQLite, PostgreSQL, or a REST server that can",
        )
    if not fits_metastore(lake.namespace):
        raise PipelineFileError(
            f"{kind} has names of the letters a to z, digits and underscores only",
            where=f"{file.path}, lake.namespace",
            way_out="write the namespace in small letters",
        )
