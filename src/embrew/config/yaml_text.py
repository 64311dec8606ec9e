"""YAML of recipes, suites and sweeps: plain scalars as in YAML 1.2, no duplicate keys, and limits on size."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml

MAX_CHARACTERS = 1_000_000  # of a YAML text; shipped files have up to 10,000
MAX_DEPTH = 50  # of nested lists and mappings; shipped files are up to 7 deep
MAX_VALUES = 20_000  # values of a YAML text, aliases expanded
TOO_DEEP = f"lists and mappings are more than {MAX_DEPTH} deep"


class Loader(yaml.SafeLoader):
    """YAML loader: plain scalars as in YAML 1.2, string keys, no duplicate keys, limits on depth and on aliases."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.depth = self.values = 0
        self.sizes: dict[str, int] = {}  # values below each anchor

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node; count values with aliases expanded."""
        event: Any = self.peek_event()
        is_alias, before = type(event) is yaml.AliasEvent, self.values
        anchor = event.anchor
        if is_alias:
            if anchor in self.anchors and anchor not in self.sizes:
                raise yaml.composer.ComposerError(
                    None, None, f"the anchor {anchor!r} contains itself", event.start_mark
                )
            self.values += self.sizes.get(anchor, 1)
        else:
            self.values += 1
        if self.values > MAX_VALUES:
            problem = f"more than {MAX_VALUES:,} values, aliases written out; use fewer aliases"
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise yaml.composer.ComposerError(None, None, TOO_DEEP, event.start_mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        if anchor is not None and not is_alias:
            self.sizes[anchor] = self.values - before
        return node

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:
        """Refuse deep nesting of `[` and `{` here, since the scanner runs far ahead of the composer."""
        if self.flow_level > MAX_DEPTH:
            raise yaml.scanner.ScannerError(None, None, TOO_DEEP, self.get_mark())
        super().fetch_flow_collection_start(TokenClass)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return the value of a node."""
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, LookupError, AttributeError, ArithmeticError, TypeError):  # `!!int x`, 5000 digits
            tag, shown = node.tag.rpartition(":")[2], str(node.value)
            shown = shown if len(shown) <= 40 else shown[:37] + "..."
            raise yaml.constructor.ConstructorError(
                None, None, f"{shown!r} cannot be read as {tag}", node.start_mark
            ) from None


class Dumper(yaml.SafeDumper):
    """YAML dumper whose output `Loader` reads back unchanged."""


# Types of plain scalars, as in YAML 1.2: `5e-5` is a float, `1:30` and `no` and `2024-01-01` are strings.
_PLAIN = {
    "bool": (r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    "int": (r"^[-+]?(?:0|[1-9][0-9]*)$", "-+0123456789"),
    "float": (
        r"^(?:[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan)$",
        "-+0123456789.",
    ),
}
for _class in (Loader, Dumper):
    _class.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] not in (*_PLAIN, "timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    for _name, (_pattern, _first) in _PLAIN.items():
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(_pattern), list(_first))


def _mapping(loader: Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        if key_node.tag.endswith(":merge"):  # `<<: *anchor`
            continue
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            problem = f"the key {key!r} is not a string; put it in quotes"
            raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} occurs twice", key_node.start_mark)
        seen.add(key)
    loader.flatten_mapping(node)
    return {
        loader.construct_object(key, deep=True): loader.construct_object(value, deep=True) for key, value in node.value
    }


def _string(dumper: Dumper, value: str) -> yaml.ScalarNode:
    # Double quotes preserve these; otherwise PyYAML treats them as line ends and writes spaces.
    style = '"' if re.search("[\x85\u2028\u2029]", value) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
Dumper.add_representer(str, _string)


def parse_yaml(text: str, *, source: str = "YAML") -> Any:
    """Return the value of a YAML text.

    >>> parse_yaml("learning_rate: 5e-5")
    {'learning_rate': 5e-05}

    Raises:
        ValueError: invalid YAML, a duplicate key, or over the limits; names `source` and the line.
    """
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"{source}: {len(text):,} characters; a YAML text may have {MAX_CHARACTERS:,}")
    try:
        return yaml.load(text, Loader=Loader)  # noqa: S506 -- it is a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{source}:{mark.line + 1}" if mark else source
        raise ValueError(f"{place}: {error.problem or error.context}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ValueError(f"{source}:{line}: the character U+{error.character:04X} is not allowed in YAML") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{source}: {error}") from None


def dump_yaml(value: Any) -> str:
    """Return YAML text that `parse_yaml` reads back to the same value."""
    return yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)


def line_of(text: str, path: Sequence[str | int]) -> int | None:
    """Return the line number (from 1) of `path` in a YAML text, or of its nearest parent in it."""
    node = yaml.compose(text, Loader=Loader)
    line = None
    for key in path:
        if isinstance(node, yaml.MappingNode):
            found = next(((k, v) for k, v in node.value if k.value == key), None)
            if found is None:
                return line
            line, node = found[0].start_mark.line + 1, found[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
            node = node.value[key]
            line = node.start_mark.line + 1
        else:
            return line
    return line
