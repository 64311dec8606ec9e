"""YAML files that users write, shipped or their own: reading with limits, plain scalars as in YAML 1.2."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

from embrew.files.names import from_home
from embrew.files.reading import content_of
from embrew.settings.validation import did_you_mean, join_with_or, quoted

MAX_CHARACTERS = 1_000_000  # characters of a YAML text; shipped files have up to 10,000
MAX_DEPTH = 50  # depth of nested lists and mappings; shipped files are up to 7 deep
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
            tag, text = node.tag.rpartition(":")[2], str(node.value)
            text = text if len(text) <= 40 else text[:37] + "..."
            raise yaml.constructor.ConstructorError(
                None, None, f"{text!r} cannot be read as {tag}", node.start_mark
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
    keys: set[Any] = set()
    for key_node, _ in node.value:
        if key_node.tag.endswith(":merge"):  # `<<: *anchor`
            continue
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            problem = f"the key {key!r} is not a string; put it in quotes"
            raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
        if key in keys:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} occurs twice", key_node.start_mark)
        keys.add(key)
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
        location = f"{source}:{mark.line + 1}" if mark else source
        raise ValueError(f"{location}: {error.problem or error.context}") from None
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
            item = next(((k, v) for k, v in node.value if k.value == key), None)
            if item is None:
                return line
            line, node = item[0].start_mark.line + 1, item[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
            node = node.value[key]
            line = node.start_mark.line + 1
        else:
            return line
    return line


MAX_LISTED = 15  # names that a message lists; for more, it names the command that lists them


def list_shipped(folder: str) -> list[str]:
    """Return the names of the files in a folder of the package, without suffix."""
    return sorted(name for name, _ in _files(resources.files("embrew") / folder))


def read_shipped(
    folder: str, name_or_path: str | Path, *, what: str, among: Sequence[str] | None = None
) -> tuple[str, str]:
    """Return the YAML text of a shipped or a user's file, and its source for messages.

    Args:
        folder: `recipes`, `suites` or `sweeps`.
        name_or_path: a file's path, or a shipped file's name.
        what: what such a file is called, for messages.
        among: the names to choose from, if not all files of the folder.

    Raises:
        FileNotFoundError: no such file or name; the message has the nearest ones.
        ValueError: a folder, a device, or a file that is empty, too large or not UTF-8.
    """
    name = str(name_or_path)
    try:
        path = from_home(name_or_path)
    except RuntimeError:  # `~nobody/recipe.yaml`
        raise FileNotFoundError(f"no file {quoted(name)}: there is no such user") from None
    if not name:
        raise FileNotFoundError(f"no {what} is named ''; give a {what}'s name or a YAML file")
    if path.is_file():
        return read_text(path, what=what), str(path)
    files = dict(_files(resources.files("embrew") / folder))
    shipped = {key: file for key, file in files.items() if among is None or key in among}
    if name in shipped:
        return shipped[name].read_text(encoding="utf-8"), f"{what} {name}"
    if path.is_dir():
        raise ValueError(f"{quoted(name)} is a folder; give a {what}'s YAML file, or the name of a {what}")
    if path.exists():
        raise ValueError(f"{quoted(name)} is a pipe or a device, not a file; give a {what}'s YAML file")
    if _looks_like_path(name, shipped):
        raise FileNotFoundError(f"no file {quoted(name)}{_near_path(path, shipped, what)}")
    hint = did_you_mean(name, files, limit=3)
    choices = f"give a YAML file, or choose from {', '.join(sorted(shipped))}"
    if len(shipped) > MAX_LISTED:
        choices = f"embrew recipe list shows all {len(shipped)}"
    raise FileNotFoundError(f"no {what} named {quoted(name)}{hint}; {choices}")


def read_text(path: Path, *, what: str) -> str:
    """Return the text of a user's YAML file.

    Raises:
        ValueError: the file is empty, too large, or not UTF-8 (`BrokenFile`).
    """
    size = path.stat().st_size
    if size > 4 * MAX_CHARACTERS:
        raise ValueError(f"{path}: {size:,} bytes; a {what} has at most {4 * MAX_CHARACTERS:,}")
    with content_of(path, repair=f"give a {what}'s YAML file"):
        text = path.read_text(encoding="utf-8")
    if not text.strip():
        raise ValueError(f"{path} is empty; give a {what}'s YAML file")
    return text


def _looks_like_path(name: str, shipped: dict[str, Traversable]) -> bool:
    if name.endswith((".yaml", ".yml", ".json")) or name.startswith((".", "/", "~", os.sep)) or "\\" in name:
        return True
    first = name.split("/")[0]
    return "/" in name and Path(first).is_dir() and not any(key.startswith(f"{first}/") for key in shipped)


def _near_path(path: Path, shipped: dict[str, Traversable], what: str) -> str:
    """Return `; did you mean …?` with similar files of the same folder, or a shipped name; or an empty string."""
    folder = path.parent
    names = [file.name for file in folder.iterdir() if file.suffix in (".yaml", ".yml")] if folder.is_dir() else []
    close = [repr(str(folder / name)) for name in difflib.get_close_matches(path.name, names, n=2)]
    stem = str(path).removesuffix(".yaml").removesuffix(".yml")
    if stem in shipped:
        close.append(f"the shipped {what} {stem!r}")
    return f"; did you mean {join_with_or(close)}?" if close else ""


def _files(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _files(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".yaml"):
            yield prefix + entry.name.removesuffix(".yaml"), entry
