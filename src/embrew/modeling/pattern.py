"""The pattern of a template, such as `"{instruction}{text}{memory}"`; plain strings only, no tokenizer."""

from __future__ import annotations

import string
from typing import NamedTuple

FIELDS = ("soft_prompt", "instruction", "text", "echo", "memory", "eos")


class Pattern(NamedTuple):
    """A pattern in its parts.

    Attributes:
        before: what stands before the text, `{instruction}` included.
        between: the words between the text and its repetition; None without `{echo}`.
        after: the words after the text, or after its repetition; `{instruction}` included, where it stands there.
        tail: the fields at the end, `memory` and `eos`, in order.
        soft_prompt: whether learned tokens come first.
    """

    before: str
    between: str | None
    after: str
    tail: list[str]
    soft_prompt: bool = False

    @property
    def has_instruction(self) -> bool:
        """Whether there is a place for an instruction, before or after the text."""
        return "{instruction}" in self.before + self.after


def split_pattern(pattern: str) -> Pattern:
    """Split a template pattern into what stands before the text, the words after it, and the fields at the end.

    >>> split_pattern('{instruction}"{text}" means:{memory}')
    Pattern(before='{instruction}"', between=None, after='" means:', tail=['memory'], soft_prompt=False)

    Raises:
        ValueError: not one `{text}`, an unknown field, or fields out of order.
    """
    try:
        pieces = list(string.Formatter().parse(pattern))
    except ValueError as error:
        raise ValueError(f"template={pattern!r} is not a valid pattern: {error}") from None
    fields = [field for _, field, _, _ in pieces if field is not None]
    for field in fields:
        if field not in FIELDS:
            raise ValueError(
                f"template={pattern!r} has the field {{{field}}}; choose from {{" + "}, {".join(FIELDS) + "}"
            )
    if fields.count("text") != 1:
        raise ValueError(f"template={pattern!r} has {{text}} {fields.count('text')} times; it must stand there once")
    before, after = "", ""
    between: str | None = None
    tail: list[str] = []
    seen_text = soft_prompt = False
    for literal, name, _, _ in pieces:
        if literal and tail:
            raise ValueError(f"template={pattern!r} has words after {{{tail[-1]}}}; {{memory}} and {{eos}} come last")
        if seen_text:
            after += literal
        else:
            before += literal
        if name == "text":
            seen_text = True
        elif name == "soft_prompt":
            if before or seen_text or soft_prompt:
                raise ValueError(f"template={pattern!r}: {{soft_prompt}} stands once, at the very beginning")
            soft_prompt = True
        elif name == "instruction":
            if tail or "{instruction}" in before + after:
                raise ValueError(
                    f"template={pattern!r}: {{instruction}} stands once, before {{text}} or between it and the end"
                )
            before, after = (before, after + "{instruction}") if seen_text else (before + "{instruction}", after)
        elif name == "echo":
            if not seen_text or between is not None or tail or "{instruction}" in after:
                raise ValueError(f"template={pattern!r}: {{echo}} stands once, after {{text}}")
            between, after = after, ""
        elif name in ("memory", "eos"):
            if not seen_text or name in tail:
                raise ValueError(f"template={pattern!r}: {{{name}}} stands once, after {{text}}")
            tail.append(name)
    return Pattern(before, between, after, tail, soft_prompt)
