"""The PostgreSQL side: slots, wire protocol, types, initial copy.  Its result is the change log on disk.

It can be used on its own, without a lake (docs/plugins.md).  The names here are the public interface.  Each
name is loaded at its first use, so that importing one light module does not load the heavy ones.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slotlake.decoder.columnar.buffer import MessageBuffer as MessageBuffer
    from slotlake.decoder.columnar.decoder import DecodedChunk as DecodedChunk
    from slotlake.decoder.columnar.decoder import Decoder as Decoder
    from slotlake.decoder.errors import ConsumerError as ConsumerError
    from slotlake.decoder.errors import ProtocolError as ProtocolError
    from slotlake.decoder.errors import SlotlakeError as SlotlakeError
    from slotlake.decoder.lsn import format_lsn as format_lsn
    from slotlake.decoder.lsn import parse_lsn as parse_lsn
    from slotlake.decoder.plugins.consumer import Consumer as Consumer
    from slotlake.decoder.plugins.consumer import FullConsumer as FullConsumer
    from slotlake.decoder.plugins.consumer import PrepareConsumer as PrepareConsumer
    from slotlake.decoder.plugins.consumer import StreamConsumer as StreamConsumer
    from slotlake.decoder.plugins.delivery import Delivery as Delivery
    from slotlake.decoder.plugins.jsonlines import JsonLines as JsonLines
    from slotlake.decoder.plugins.jsonlines import changes as changes
    from slotlake.decoder.plugins.jsonlines import file_changes as file_changes
    from slotlake.decoder.plugins.live import read_file as read_file
    from slotlake.decoder.plugins.live import read_slot as read_slot
    from slotlake.decoder.plugins.model import Change as Change
    from slotlake.decoder.plugins.model import Message as Message
    from slotlake.decoder.plugins.model import NoValue as NoValue
    from slotlake.decoder.plugins.model import Startup as Startup
    from slotlake.decoder.plugins.model import Transaction as Transaction
    from slotlake.decoder.plugins.model import Truncate as Truncate
    from slotlake.decoder.plugins.readers import PLUGINS as PLUGINS
    from slotlake.decoder.plugins.readers import reader_for as reader_for
    from slotlake.decoder.protocol.reader import StreamReader as StreamReader
    from slotlake.decoder.protocol.relations import Column as Column
    from slotlake.decoder.protocol.relations import Relation as Relation
    from slotlake.decoder.server.source import SourceSettings as SourceSettings

_PLACES = {
    "MessageBuffer": "columnar.buffer",
    "DecodedChunk": "columnar.decoder",
    "Decoder": "columnar.decoder",
    "ConsumerError": "errors",
    "ProtocolError": "errors",
    "SlotlakeError": "errors",
    "JsonLines": "plugins.jsonlines",
    "changes": "plugins.jsonlines",
    "file_changes": "plugins.jsonlines",
    "format_lsn": "lsn",
    "parse_lsn": "lsn",
    "Consumer": "plugins.consumer",
    "FullConsumer": "plugins.consumer",
    "PrepareConsumer": "plugins.consumer",
    "StreamConsumer": "plugins.consumer",
    "Delivery": "plugins.delivery",
    "read_file": "plugins.live",
    "read_slot": "plugins.live",
    "Change": "plugins.model",
    "Message": "plugins.model",
    "NoValue": "plugins.model",
    "Startup": "plugins.model",
    "Transaction": "plugins.model",
    "Truncate": "plugins.model",
    "PLUGINS": "plugins.readers",
    "reader_for": "plugins.readers",
    "StreamReader": "protocol.reader",
    "Column": "protocol.relations",
    "Relation": "protocol.relations",
    "SourceSettings": "server.source",
}

# `decoder.stream.pull` is the module; for its function: `from slotlake.decoder.stream.pull import pull`.
__all__ = sorted(_PLACES)  # noqa: PLE0605 - built from the table above


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'slotlake.decoder' has no attribute {name!r}")
    value = getattr(import_module(f"slotlake.decoder.{_PLACES[name]}"), name)
    globals()[name] = value
    return value
