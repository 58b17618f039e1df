"""The PostgreSQL side: slots, wire protocol, types, initial copy; it ends in the change log on disk.

Usable on its own, without a lake (docs/plugins.md).  What is named here is the public interface; each name
is loaded when it is first asked for, so that importing one light module does not bring in the heavy ones.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from decoder.buffer import MessageBuffer as MessageBuffer
    from decoder.columnar import DecodedChunk as DecodedChunk
    from decoder.columnar import Decoder as Decoder
    from decoder.errors import ConsumerError as ConsumerError
    from decoder.errors import ProtocolError as ProtocolError
    from decoder.errors import SlotlakeError as SlotlakeError
    from decoder.jsonlines import JsonLines as JsonLines
    from decoder.jsonlines import changes as changes
    from decoder.jsonlines import file_changes as file_changes
    from decoder.lsn import format_lsn as format_lsn
    from decoder.lsn import parse_lsn as parse_lsn
    from decoder.plugins.consumer import Consumer as Consumer
    from decoder.plugins.consumer import FullConsumer as FullConsumer
    from decoder.plugins.consumer import PrepareConsumer as PrepareConsumer
    from decoder.plugins.consumer import StreamConsumer as StreamConsumer
    from decoder.plugins.delivery import Delivery as Delivery
    from decoder.plugins.live import read_file as read_file
    from decoder.plugins.live import read_slot as read_slot
    from decoder.plugins.model import Change as Change
    from decoder.plugins.model import Message as Message
    from decoder.plugins.model import NoValue as NoValue
    from decoder.plugins.model import Startup as Startup
    from decoder.plugins.model import Transaction as Transaction
    from decoder.plugins.model import Truncate as Truncate
    from decoder.plugins.readers import PLUGINS as PLUGINS
    from decoder.plugins.readers import reader_for as reader_for
    from decoder.reader import StreamReader as StreamReader
    from decoder.relations import Column as Column
    from decoder.relations import Relation as Relation
    from decoder.source import SourceSettings as SourceSettings

_PLACES = {
    "MessageBuffer": "buffer",
    "DecodedChunk": "columnar",
    "Decoder": "columnar",
    "ConsumerError": "errors",
    "ProtocolError": "errors",
    "SlotlakeError": "errors",
    "JsonLines": "jsonlines",
    "changes": "jsonlines",
    "file_changes": "jsonlines",
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
    "StreamReader": "reader",
    "Column": "relations",
    "Relation": "relations",
    "SourceSettings": "source",
}

# `decoder.pull` is the module: its function is named as `from decoder.pull import pull`.
__all__ = sorted(_PLACES)  # noqa: PLE0605 - built from the table above


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'decoder' has no attribute {name!r}")
    value = getattr(import_module(f"decoder.{_PLACES[name]}"), name)
    globals()[name] = value
    return value
