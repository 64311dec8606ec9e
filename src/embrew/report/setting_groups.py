"""Settings that differ between models, in groups: those that explain scores first, hashes and versions last."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

# Group by a pattern of the dotted key; the first that matches counts.
_GROUPS = {
    "Hashes and versions": r"sha256|hash|(?<!dataset_)revision$|^versions\.|^hardware|^commit",
    "Prompts": r"prompt|template|instruction|context",
    "Pooling": r"pooling|memory|normalize",
    "Attention": r"attention|attn",
    "Lengths": r"max_length",
    "Precision and size of vectors": r"dtype|dim|layers",
    "Data": r"^data",
    "Model and training": "",
}
FOLDED = "Hashes and versions"
_ORDER = [*(name for name in _GROUPS if name != FOLDED), FOLDED]
_SHOWN = 12  # digits of a hash


class Setting(NamedTuple):
    """A setting with the value of each model, as text."""

    key: str
    values: tuple[str, ...]


def setting_groups(differing: Mapping[str, tuple[Any, ...]]) -> dict[str, list[Setting]]:
    """Return settings by group, without those that a sidecar repeats under another key."""
    groups: dict[str, list[Setting]] = {name: [] for name in _ORDER}
    for key, values in differing.items():
        group = next(name for name, pattern in _GROUPS.items() if re.search(pattern, key))
        setting = Setting(key, tuple(map(_text, values)))
        if not any(_last(known.key) == _last(key) and known.values == setting.values for known in groups[group]):
            groups[group].append(setting)
    return {name: settings for name, settings in groups.items() if settings}


def _last(key: str) -> str:
    return key.rpartition(".")[2]


def _text(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value == "":
        return "empty"
    return f"{value[:_SHOWN]}…" if isinstance(value, str) and re.fullmatch(r"[0-9a-f]{40,}", value) else str(value)
