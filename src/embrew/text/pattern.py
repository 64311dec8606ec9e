"""The pattern of a template, such as `"{instruction}{text}{memory}"`; plain strings only, no tokenizer."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

FIELDS = ("soft_prompt", "instruction", "text", "echo", "memory", "eos", "end")
TEXT_FIELD = "{text}"  # the position of the text in an instruction that continues after it
WordsAfter = Literal["joined", "separate"]


class Pattern(NamedTuple):
    """A pattern in its parts.

    Attributes:
        before: the words before the text, `{instruction}` included.
        between: the words between the text and its repetition; None without `{echo}`.
        after: the words after the text, or after its repetition; `{instruction}` included, if it is there.
        tail: the fields at the end, `memory`, and `eos` or `end`, in order.
        soft_prompt: whether learned tokens come first.
    """

    before: str
    between: str | None
    after: str
    tail: list[str]
    soft_prompt: bool = False

    @property
    def has_instruction(self) -> bool:
        """Whether the pattern has `{instruction}`, before or after the text."""
        return "{instruction}" in self.before + self.after


def split_pattern(pattern: str) -> Pattern:
    """Split a template pattern into the words before the text, the words after it, and the fields at the end.

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
        raise ValueError(f"template={pattern!r} has {{text}} {fields.count('text')} times; give it once")
    before, after = "", ""
    between: str | None = None
    tail: list[str] = []
    seen_text = soft_prompt = False
    for literal, name, _, _ in pieces:
        if literal and tail:
            raise ValueError(
                f"template={pattern!r} has words after {{{tail[-1]}}}; {{memory}}, {{eos}} and {{end}} come last"
            )
        if seen_text:
            after += literal
        else:
            before += literal
        if name == "text":
            seen_text = True
        elif name == "soft_prompt":
            if before or seen_text or soft_prompt:
                raise ValueError(f"template={pattern!r}: give {{soft_prompt}} once, at the very beginning")
            soft_prompt = True
        elif name == "instruction":
            if tail or "{instruction}" in before + after:
                raise ValueError(
                    f"template={pattern!r}: give {{instruction}} once, before {{text}} or between it and the end"
                )
            before, after = (before, after + "{instruction}") if seen_text else (before + "{instruction}", after)
        elif name == "echo":
            if not seen_text or between is not None or tail or "{instruction}" in after:
                raise ValueError(f"template={pattern!r}: give {{echo}} once, after {{text}}")
            between, after = after, ""
        elif name in ("memory", "eos", "end"):
            if not seen_text or name in tail:
                raise ValueError(f"template={pattern!r}: give {{{name}}} once, after {{text}}")
            tail.append(name)
            if {"eos", "end"} <= set(tail):
                raise ValueError(f"template={pattern!r}: {{end}} is what the tokenizer adds, EOS included; give one")
    return Pattern(before, between, after, tail, soft_prompt)


def check_learned(pattern: str, memory_tokens: int, soft_prompt_tokens: int) -> None:
    """Raise unless a pattern has `{memory}` just where there are memory tokens, and `{soft_prompt}` likewise."""
    parts = split_pattern(pattern)
    for field, wanted, name, count in (
        ("memory", "memory" in parts.tail, "memory_tokens", memory_tokens),
        ("soft_prompt", parts.soft_prompt, "soft_prompt_tokens", soft_prompt_tokens),
    ):
        if wanted != bool(count):
            raise ValueError(
                f"template={pattern!r} and {name}={count} do not go together; a template with {{{field}}} needs {name} "
                "of 1 or more, one without needs 0"
            )


def check_words_after(choice: WordsAfter | None, patterns: Sequence[str]) -> WordsAfter:
    r"""Return how words after the text are tokenised: as asked, or `joined` if all patterns end with words or `{echo}`.

    Patterns with words at the end are prompts for a language model, one string in their authors' code. Where learned
    tokens, EOS, the instruction or white space follow the text, they are tokenised separately, and can be exported.

    >>> check_words_after(None, ['"{text}" means in one word:"']), check_words_after(None, ["{text}\n{memory}"])
    ('joined', 'separate')

    Raises:
        ValueError: an unknown value.
    """
    if choice is not None and choice not in get_args(WordsAfter):
        raise ValueError(f"words_after={choice!r}; choose from {', '.join(get_args(WordsAfter))}")
    if choice is not None:
        return choice
    parts = [split_pattern(pattern) for pattern in patterns]
    prompts = bool(parts) and all((part.after.strip() or part.between is not None) and not part.tail for part in parts)
    follows = any("{instruction}" in part.after for part in parts)
    return "joined" if prompts and not follows else "separate"
