"""Reads YAML in which no mapping has a key twice.  What is wrong with a file is always a YAMLError."""

from __future__ import annotations

import re
from collections.abc import Hashable
from contextlib import suppress
from typing import Any

import yaml


class _Constructor(yaml.constructor.SafeConstructor):
    """Refuses a key that a mapping has twice; plain YAML would silently take the last one."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Name the place of a value that only looks like a date, a number, …; PyYAML does not."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, KeyError, AttributeError):
            kind = str(node.tag).rpartition(":")[2]
            said = f"what looks like a value of the kind {kind} is none: write text in quotes"
            raise yaml.constructor.ConstructorError(None, None, said, node.start_mark) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                said = "a key is a list or a mapping"
                raise yaml.constructor.ConstructorError(None, None, said, key_node.start_mark)
            if key in keys:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is there twice", key_node.start_mark
                )
            keys.add(key)
        return dict(super().construct_mapping(node, deep))


class _Loader(_Constructor, yaml.SafeLoader):
    """In Python alone; what it says of wrong YAML is what the user reads."""


def parsed(text: str) -> Any:
    """Return the content; by the parser in C, if there is one: of 10,000 tables the other takes seconds.

    Raises:
        yaml.YAMLError: it is none, or a mapping has a key twice.
    """
    try:
        return _parsed(text)
    except RecursionError:
        raise yaml.YAMLError("lists or mappings are nested too deeply") from None


def _parsed(text: str) -> Any:
    if yaml.__with_libyaml__:

        class QuickLoader(_Constructor, yaml.CSafeLoader):
            pass

        with suppress(yaml.YAMLError):
            return yaml.load(text, Loader=QuickLoader)  # noqa: S506 (a SafeLoader)
    return yaml.load(text, Loader=_Loader)  # noqa: S506 (a SafeLoader)


def in_yamls_words(message: str) -> str:
    """Pydantic names what Python has; the reader of the file writes YAML."""
    message = re.sub(r"valid dictionary( or instance of \w+)?", "mapping", message)
    return (
        message.replace("valid tuple", "list").replace("valid list", "list").replace("valid string", "text")
    )
