"""Which plugins slotlake can read, the options for each, and its reader.

The user's options replace the default ones; an option with an empty value is not sent at all (an
older wal2json refuses options that it does not know).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from slotlake.decoder.errors import SourceError
from slotlake.decoder.plugins.catalog import Catalog
from slotlake.decoder.plugins.decoderbufs import ProtobufReader
from slotlake.decoder.plugins.pgoutput import PgoutputReader
from slotlake.decoder.plugins.reader import Reader
from slotlake.decoder.plugins.test_decoding import LinesReader
from slotlake.decoder.plugins.wal2json import JsonReader
from slotlake.decoder.server.source import SourceSettings, redact
from slotlake.decoder.stream.options import negotiate
from slotlake.decoder.types import oids
from slotlake.decoder.types.catalog import TypeCatalog

PLUGINS = ("pgoutput", "test_decoding", "wal2json", "decoderbufs")
NUMBERS_AS_TEXT = "numeric-data-types-as-string"
# wal2json without that option prints their NaN and infinities as null.
HIDES_NAN = (oids.FLOAT4, oids.FLOAT8, oids.NUMERIC)
_FROM_OTHERS: dict[str, dict[str, str]] = {
    "test_decoding": {"include-xids": "1", "include-timestamp": "1", "skip-empty-xacts": "1"},
    "wal2json": {
        "format-version": "2",
        "include-xids": "1",
        "include-timestamp": "1",
        "include-lsn": "1",
        "include-origin": "1",
        "include-type-oids": "1",
        "include-types": "0",  # a type in a schema whose name needs quotes makes its output invalid JSON
        NUMBERS_AS_TEXT: "1",
    },
    "decoderbufs": {},
}


def plugin_options(
    source: SourceSettings, server_version: int, asked: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The options of START_REPLICATION for the source's plugin.

    Args:
        server_version: as libpq gives it: 180004.
        asked: the user's options, which replace the default ones; an empty value removes an option.

    Raises:
        SourceError: slotlake cannot read this plugin, or the plugin does not support the source's settings.
    """
    check_plugin(source.plugin)
    if source.plugin == "pgoutput":
        chosen = _of_pgoutput(source, server_version)
    else:
        _check_settings(source)
        chosen = dict(_FROM_OTHERS[source.plugin])
        if source.plugin == "test_decoding" and source.origin == "none":
            chosen["only-local"] = "1"
        if source.plugin == "wal2json" and (asked or {}).get("format-version") == "1":
            chosen["write-in-chunks"] = "1"  # else a transaction is one message, and may not fit into 1 GB
    return {name: value for name, value in {**chosen, **(asked or {})}.items() if value}


def reader_for(
    plugin: str,
    options: Mapping[str, str],
    catalog: Catalog | None = None,
    *,
    two_phase: bool = False,
    types: TypeCatalog | None = None,
) -> Reader:
    """The reader for what a plugin sends under these options.

    Args:
        two_phase: the slot was created with it; then prepared transactions come at PREPARE, whatever the
            options say.

    Raises:
        SourceError: slotlake cannot read this plugin.
    """
    check_plugin(plugin)
    if plugin == "pgoutput":
        streaming = options.get("streaming", "off")
        return PgoutputReader(
            streaming=_streaming(streaming),
            two_phase=two_phase or _on(options.get("two_phase", "")),
            binary=_on(options.get("binary", "")),
            types=types,
        )
    if plugin == "test_decoding":
        return LinesReader(catalog, two_phase=two_phase)
    return JsonReader(catalog) if plugin == "wal2json" else ProtobufReader(catalog)


def check_plugin(plugin: str) -> None:
    """Check that slotlake can read a plugin.

    Raises:
        SourceError: it cannot.
    """
    if plugin not in PLUGINS:
        raise SourceError(
            f"slotlake cannot read the output plugin {plugin!r}",
            where="source.plugin",
            way_out=f"use one of {', '.join(PLUGINS)}",
        )


def _of_pgoutput(source: SourceSettings, server_version: int) -> dict[str, str]:
    options = negotiate(source, server_version)
    names = ",".join('"' + name.replace('"', '""') + '"' for name in source.publications)
    pairs: dict[str, Any] = {"proto_version": str(options.proto_version), "publication_names": names}
    pairs["streaming"] = options.streaming if options.streaming != "off" else ""
    pairs["two_phase"] = "on" if options.two_phase else ""
    pairs["binary"] = "true" if options.binary else ""
    pairs["messages"] = "true" if options.messages else ""
    pairs["origin"] = options.origin if options.origin != "any" else ""
    return {name: value for name, value in pairs.items() if value}


def _check_settings(source: SourceSettings) -> None:
    lacks = [
        name
        for name, asked in (
            ("binary", source.binary),
            ("streaming", source.streaming not in (None, "off")),
            ("origin 'none'", source.origin == "none" and source.plugin != "test_decoding"),
            ("two_phase", source.two_phase and source.plugin != "test_decoding"),
        )
        if asked
    ]
    if lacks:
        raise SourceError(
            f"{source.plugin} does not support these settings of the source: {', '.join(lacks)}",
            where=redact(source.dsn),
            way_out="leave them out, or use pgoutput",
        )


def _streaming(value: str) -> Literal["off", "on", "parallel"]:
    return "parallel" if value == "parallel" else "on" if _on(value) else "off"


def _on(value: str) -> bool:
    return value.lower() in ("on", "true", "yes", "1", "t")
