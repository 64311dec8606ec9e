"""Values of other libraries' columns as plain texts: Tevatron's passages and ms-swift's messages.

| column | value | becomes |
|---|---|---|
| `positive_passages`, `negative_passages` (Tevatron) | a list of `{docid, title, text}` | title and text of each |
| `messages` (ms-swift) | a list of `{role, content}` | the user's message; the system's message is the instruction |
| `positive_messages`, `negative_messages` (ms-swift) | a list of such lists | the user's message of each |
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

PASSAGES = ("positive_passages", "negative_passages")
MESSAGES = ("positive_messages", "negative_messages")
SYSTEM = "messages of the system"
"""Key under which `plain_values` stores the instruction of `messages`."""
MULTIMODAL = re.compile(r"<(image|video|audio)>")


def plain_values(values: Mapping[str, Any], columns: Collection[str], *, one: bool, where: str) -> Mapping[str, Any]:
    """Return a row with plain texts in place of passages and messages; other rows unchanged.

    Args:
        values: of the row.
        columns: those that are read.
        one: `positive_messages` are one text, not a list.
        where: the row, for messages.

    Raises:
        ValueError: a value has another form than the library's.
    """
    found: dict[str, Any] = {}
    for column, value in values.items():
        name = column.strip().lower()
        if column not in columns:
            continue
        if name in PASSAGES:
            found[column] = [_passage(item, f"{where}: column {column!r}") for item in _list(value, column, where)]
        elif name == "messages":
            found[column], found[SYSTEM] = _conversation(value, f"{where}: column {column!r}")
        elif name in MESSAGES:
            parts = [_conversation(item, f"{where}: column {column!r}") for item in _list(value, column, where)]
            if any(system is not None for _, system in parts):
                raise ValueError(
                    f"{where}: column {column!r} has a system message, and documents take the encoder's own prompt; "
                    "remove it, and set encoder.prompts.document"
                )
            texts = [text for text, _ in parts]
            found[column] = texts[0] if one and len(texts) == 1 else texts
    return {**values, **found} if found else values


def _list(value: Any, column: str, where: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{where}: column {column!r} holds a {type(value).__name__}, not a list; repair the row")
    return value


def _passage(value: Any, where: str) -> str:
    """Return title and text, joined by a space as in Tevatron."""
    text = value.get("text") if isinstance(value, Mapping) else None
    title = value.get("title") if isinstance(value, Mapping) else None
    if not isinstance(text, str) or not isinstance(title, str | None):
        raise ValueError(f'{where} holds {value!r:.80}, not a passage; write {{"docid": …, "title": …, "text": …}}')
    return f"{title} {text}" if title else text


def _conversation(value: Any, where: str) -> tuple[str, str | None]:
    """Return the user's message, and the system's message if there is one."""
    roles: dict[str, str] = {}
    for message in value if isinstance(value, list) else [None]:
        role, content = (message.get("role"), message.get("content")) if isinstance(message, Mapping) else (None, None)
        if role not in ("system", "user") or role in roles or not isinstance(content, str):
            role = None
            break
        roles[role] = content
    if role is None or "user" not in roles:
        raise ValueError(
            f"{where} holds {value!r:.120}; an embedding is trained on one user message, after a system message if "
            'there is an instruction: write [{"role": "user", "content": …}]'
        )
    tag = MULTIMODAL.search(roles["user"])
    if tag:
        raise ValueError(f"{where} holds {tag.group()}; embrew reads text only: remove the row")
    return roles["user"], f"{roles['system']} " if "system" in roles else None
