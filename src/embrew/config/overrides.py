"""`key.path=value` overrides on top of a YAML file's values."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from embrew.config.suggestions import did_you_mean, quoted
from embrew.config.yaml_files import MAX_DEPTH, TOO_DEEP, parse_yaml

logger = logging.getLogger(__name__)

KeysOf = Callable[[Any], Collection[str] | None]


def parse_override(text: str) -> tuple[list[str], Any]:
    """Split `key.path=value`; the value is read as YAML, a mapping written as `{key: value}`.

    >>> parse_override("stages.0.training.learning_rate=5e-5")
    (['stages', '0', 'training', 'learning_rate'], 5e-05)
    """
    path, equals, value = text.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys) or any(key != key.strip() or key.startswith("-") for key in keys):
        raise ValueError(f"override {quoted(text)}; write key.path=value, for example encoder.max_length.query=256")
    if len(keys) > MAX_DEPTH:
        raise ValueError(f"override {quoted(text)}: {len(keys):,} nested keys; {TOO_DEEP}")
    if ": " in f"{value} " and value[:1].isalnum():  # `encoder.prompts.query=Find this: ` is a text, not a mapping
        return keys, value
    return keys, parse_yaml(value, source=f"override {quoted(text)}")


def apply_overrides(
    values: Mapping[str, Any], overrides: Sequence[str], keys_of: KeysOf | None = None
) -> dict[str, Any]:
    """Return a copy of `values` with each `key.path=value` set, in order.

    A list is entered by number or, where its items have a `name`, by that name: `stages.compress.batch.size=64`.
    A missing mapping is created; whether its key is valid is checked later, by the recipe.

    Args:
        values: of the file.
        overrides: each a `key.path=value`.
        keys_of: keys of an objective by its type. Where an override changes the `type` of an objective, keys of the
            file that the new type lacks are dropped. Those of other overrides stay. None: nothing is dropped, and for a
            type without keys neither.

    Raises:
        ValueError: not `key.path=value`, or the path does not exist in a list or below a value.
    """
    result: dict[str, Any] = _copy(dict(values))
    if keys_of is not None:
        _drop_lacking(result, overrides, keys_of)
    for text in overrides:
        keys, value = parse_override(text)
        node: Any = result
        for depth, key in enumerate(keys):
            last = depth == len(keys) - 1
            where = ".".join(keys[:depth])
            if isinstance(node, list):
                place: Any = _place(node, key, where=where, override=text)
            elif isinstance(node, dict):
                place = key
                if not last and node.get(key) is None:
                    node[key] = {}
            else:
                raise ValueError(
                    f"override {quoted(text)}: {where} is {node!r}, which has no keys; set {where}=... instead"
                )
            if last:
                node[place] = value
            else:
                node = node[place]
    return result


def _drop_lacking(values: dict[str, Any], overrides: Sequence[str], keys_of: KeysOf) -> None:
    """Drop from objectives whose type is overridden the keys that the new type lacks, and log which."""
    parsed = [(*parse_override(text), text) for text in overrides]
    types = {tuple(keys[:-1]): (kind, text) for keys, kind, text in parsed if keys[-1] == "type"}
    for path, (kind, text) in types.items():
        node: Any = values
        for depth, key in enumerate(path):
            if isinstance(node, list):
                node = node[_place(node, key, where=".".join(path[:depth]), override=text)]
            else:
                node = node.get(key) if isinstance(node, dict) else None
        changes = "objective" in path and isinstance(node, dict) and node.get("type") != kind
        allowed = keys_of(kind) if changes else None
        lacking = [] if allowed is None else [key for key in node if key not in allowed and key != "type"]
        for key in lacking:
            del node[key]
        if lacking:
            logger.warning(
                "%s.type=%s: dropped %s of the recipe, which %s does not have",
                ".".join(path), kind, ", ".join(lacking), kind,
            )  # fmt: skip


def _copy(value: Any) -> Any:
    """Return a deep copy in which YAML aliases are separate objects, so that an override changes one of them."""
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _place(items: list[Any], key: str, *, where: str, override: str) -> int:
    names = [item["name"] if isinstance(item, dict) and isinstance(item.get("name"), str) else None for item in items]
    if key in names:
        return names.index(key)
    if key.isdecimal() and int(key) < len(items):
        return int(key)
    known_names = [name for name in names if name]
    allowed = f"0 to {len(items) - 1}" if items else "nothing, it is empty"
    if known_names:
        allowed += f" or by name: {', '.join(known_names)}"
    hint = did_you_mean(key, known_names)
    raise ValueError(f"override {quoted(override)}: {where} has no item {key!r}; choose from {allowed}{hint}")
