"""The options that slotlake gives to pgoutput, from the pipeline's settings and the server's version.

Owns the lowest versions for each protocol version and each option (pgoutput.c, parse_output_parameters and
pgoutput_startup; manual, "Logical Streaming Replication Parameters"):

    proto_version   1: PostgreSQL 10   2: 14   3: 15   4: 16
    streaming       on: 14, version 2          parallel: 16, version 4
    two_phase       15, version 3
    binary          14                messages  14                origin  16

Invariant: an option that the pipeline file sets is used as it is, or refused with an error that names what
would work; it is never lowered silently.  An option without a setting (None) becomes the most that the server
supports.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from slotlake.decoder.errors import SourceError
from slotlake.decoder.server.source import Origin, SourceSettings, Streaming, redact

OLDEST_SERVER = 14
_VERSION_OF_SERVER = {14: 2, 15: 3, 16: 4}
_NEWEST_VERSION = 4
_STREAMING_VERSION = {"off": 1, "on": 2, "parallel": 4}
_TWO_PHASE_VERSION = 3
_SERVER_OF_VERSION = {1: 10, 2: 14, 3: 15, 4: 16}
_PARALLEL = "streaming 'parallel'"
_ORIGIN_SERVER = 16


@dataclass(frozen=True)
class Options:
    """The final options of one START_REPLICATION with pgoutput.

    Attributes:
        as_stored: texts come as the database stores them, and slotlake translates them (`as_stored_options`).
    """

    proto_version: int
    streaming: Streaming = "off"
    two_phase: bool = False
    binary: bool = False
    messages: bool = False
    origin: Origin = "any"
    as_stored: bool = False


def as_stored_options(options: Options) -> Options:
    """The same options with texts as they are stored: only whole transactions, and values in text format."""
    return replace(options, streaming="off", binary=False, as_stored=True)


def newest_protocol(server_version: int) -> int:
    """The highest protocol version of a server (its version as a number: 180004)."""
    return _VERSION_OF_SERVER.get(server_version // 10000, _NEWEST_VERSION)


def negotiate(settings: SourceSettings, server_version: int) -> Options:
    """Decide every option for a server.

    Args:
        server_version: as libpq gives it: 180004.

    Raises:
        SourceError: the server, or the wanted protocol version, does not support a wanted option.
    """
    where = f"PostgreSQL {server_version // 10000} at {redact(settings.dsn)}"
    _check_server(server_version, where)
    version = _protocol(settings.proto_version, newest_protocol(server_version), where)
    _check_origin(settings.origin, server_version, where)
    if settings.two_phase:
        _check_feature("two_phase", _TWO_PHASE_VERSION, version, server_version, where)
    return Options(
        proto_version=version,
        streaming=_streaming(settings.streaming, version, server_version, where),
        two_phase=settings.two_phase,
        binary=settings.binary,
        messages=settings.messages,
        origin=settings.origin,
    )


def _check_server(server_version: int, where: str) -> None:
    if server_version // 10000 < OLDEST_SERVER:
        raise SourceError(
            f"PostgreSQL {server_version // 10000} is not supported",
            where=where,
            way_out=f"use PostgreSQL {OLDEST_SERVER} or later",
        )


def _protocol(asked: int | None, newest: int, where: str) -> int:
    if asked is None:
        return newest
    if not 1 <= asked <= newest:
        raise SourceError(
            f"the server does not support source.proto_version {asked}",
            where=where,
            way_out=f"set proto_version to 1 to {newest}, or leave it out: then it is {newest}",
        )
    return asked


def _check_origin(origin: Origin, server_version: int, where: str) -> None:
    if origin != "any" and server_version // 10000 < _ORIGIN_SERVER:
        raise SourceError(
            f"the server cannot leave out changes that other servers replicated to it (source.origin "
            f"{origin!r})",
            where=where,
            way_out=f"use PostgreSQL {_ORIGIN_SERVER} or later, or set source.origin to 'any'",
        )


def _streaming(asked: Streaming | None, version: int, server_version: int, where: str) -> Streaming:
    if asked is None:
        return "parallel" if version >= 4 else "on" if version >= 2 else "off"
    _check_feature(f"streaming {asked!r}", _STREAMING_VERSION[asked], version, server_version, where)
    return asked


def _check_feature(feature: str, needs: int, version: int, server_version: int, where: str) -> None:
    if version >= needs:
        return
    newest = newest_protocol(server_version)
    if newest >= needs:
        raise SourceError(
            f"{feature} needs protocol version {needs}, but source.proto_version is {version}",
            where=where,
            way_out=f"leave proto_version out, or set it to {needs} to {newest}; or leave {feature} out",
        )
    instead = "set streaming to 'on', or " if feature == _PARALLEL and newest >= 2 else ""
    raise SourceError(
        f"the server does not support {feature}: that needs protocol version {needs}, its newest is {newest}",
        where=where,
        way_out=f"{instead}leave {feature} out, or use PostgreSQL {_SERVER_OF_VERSION[needs]} or later",
    )
