"""`key.path=value` overrides on top of a YAML file's values."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import yaml

from embrew.settings.validation import did_you_mean, quoted
from embrew.settings.yaml_files import MAX_DEPTH, TOO_DEEP, Dumper, parse_yaml

logger = logging.getLogger(__name__)

KeysOf = Callable[[Any], Collection[str] | None]
Override = str | tuple[str, Any]
"""`key.path=value` as users write it; or the key path and a value, which is taken as it is."""


def parse_override(override: Override) -> tuple[list[str], Any]:
    """Return keys and value of an override; that of a text is read as YAML, a mapping written as `{key: value}`.

    >>> parse_override("stages.0.training.learning_rate=5e-5"), parse_override(("encoder.model", "123 #4"))
    ((['stages', '0', 'training', 'learning_rate'], 5e-05), (['encoder', 'model'], '123 #4'))
    """
    if not isinstance(override, str):
        return override[0].split("."), override[1]
    text = override
    path, equals, value = text.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys) or any(key != key.strip() or key.startswith("-") for key in keys):
        raise ValueError(f"override {quoted(text)}; write key.path=value, for example encoder.max_length.query=256")
    if len(keys) > MAX_DEPTH:
        raise ValueError(f"override {quoted(text)}: {len(keys):,} nested keys; {TOO_DEEP}")
    if ": " in f"{value} " and value[:1].isalnum():  # `encoder.prompts.query=Find this: ` is a text, not a mapping
        return keys, value
    return keys, parse_yaml(value, source=f"override {quoted(text)}")


def as_text(override: Override) -> str:
    """Return an override as `key.path=value`, which `parse_override` reads back to the same value.

    >>> as_text(("encoder.model", "nano")), as_text(("encoder.model", "123"))
    ('encoder.model=nano', "encoder.model='123'")
    """
    if isinstance(override, str):
        return override
    path, value = override
    dumped = yaml.dump(value, Dumper=Dumper, default_flow_style=True, allow_unicode=True, width=math.inf)
    return f"{path}=" + dumped.removesuffix("...\n").removesuffix("\n")


def apply_overrides(
    values: Mapping[str, Any], overrides: Sequence[Override], keys_of: KeysOf | None = None
) -> dict[str, Any]:
    """Return a copy of `values` with each `key.path=value` set, in order.

    A list is entered by number or, where its items have a `name`, by that name: `stages.compress.batch.size=64`.
    A missing mapping is created; whether its key is valid is checked later, by the recipe.

    Args:
        values: values of the file.
        overrides: each a `key.path=value`, or a key path and a value.
        keys_of: keys of an objective by its type. Where an override changes the `type` of an objective, keys of the
            file that the new type lacks are dropped. Those of other overrides stay. None: nothing is dropped, and for a
            type without keys neither.

    Raises:
        ValueError: not `key.path=value`, or the path does not exist in a list or below a value.
    """
    result: dict[str, Any] = _copy(dict(values))
    parsed = [(*parse_override(override), as_text(override)) for override in overrides]
    types = {tuple(keys[:-1]): (value, text) for keys, value, text in parsed if keys_of and keys[-1] == "type"}
    for path, (kind, text) in types.items():
        node: Any = value_at(result, path, text) if "objective" in path else None
        allowed = keys_of(kind) if keys_of and isinstance(node, dict) and node.get("type") != kind else None
        lacking = [] if allowed is None else [key for key in node if key not in allowed and key != "type"]
        for key in lacking:
            del node[key]
        if lacking:
            logger.warning(
                "%s.type=%s: dropped %s of the recipe, which %s does not have",
                ".".join(path), kind, ", ".join(lacking), kind,
            )  # fmt: skip
    for keys, value, text in parsed:
        node = value_at(result, keys[:-1], text)
        node[_key_or_index(node, keys[-1], where=".".join(keys[:-1]), override=text)] = value
    return result


def value_at(node: Any, path: Sequence[str], override: str) -> Any:
    """Return the value at a path; missing mappings are created.

    Raises:
        ValueError: a list has no such item, or a value no keys; names the override.
    """
    for depth, key in enumerate(path):
        key_or_index = _key_or_index(node, key, where=".".join(path[:depth]), override=override)
        if isinstance(node, dict) and node.get(key_or_index) is None:
            node[key_or_index] = {}
        node = node[key_or_index]
    return node


def _copy(value: Any) -> Any:
    """Return a deep copy in which YAML aliases are separate objects, so that an override changes one of them."""
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _key_or_index(node: Any, key: str, *, where: str, override: str) -> Any:
    """Return the key or the index of an item of a mapping or a list."""
    if isinstance(node, dict):
        return key
    if not isinstance(node, list):
        raise ValueError(
            f"override {quoted(override)}: {where} is {node!r}, which has no keys; set {where}=... instead"
        )
    names = [item["name"] if isinstance(item, dict) and isinstance(item.get("name"), str) else None for item in node]
    if key in names:
        return names.index(key)
    if key.isdecimal() and int(key) < len(node):
        return int(key)
    known_names = [name for name in names if name]
    allowed = f"0 to {len(node) - 1}" if node else "nothing, it is empty"
    if known_names:
        allowed += f" or by name: {', '.join(known_names)}"
    hint = did_you_mean(key, known_names)
    raise ValueError(f"override {quoted(override)}: {where} has no item {key!r}; choose from {allowed}{hint}")
