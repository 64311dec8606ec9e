"""From a text to a labelled row of tokens; only the text itself is ever truncated."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from transformers import PreTrainedTokenizerBase

from embrew.modeling.pattern import split_pattern
from embrew.modeling.tokens import Row, Segment


class Template:
    """Turns texts into rows by a pattern such as `"{instruction}{text}{memory}"`.

    What stands before `{text}` (words and the instruction) is rendered and tokenised together with the text, as one
    string, and positions are labelled by character offsets: a token that touches the text is TEXT. What stands after
    it is tokenised on its own, so that truncation can never reach it. `{memory}` and `{eos}` come last. BOS is put
    first when the tokenizer itself does so. No special token is ever read out of a user's text, and no chat template
    is applied.

    Args:
        pattern: the pattern; fields are `{instruction}`, `{text}` (required, once), `{memory}`, `{eos}`.
        tokenizer: a fast Hugging Face tokenizer.
        memory_ids: ids of the memory tokens, in order.
    """

    def __init__(self, pattern: str, tokenizer: PreTrainedTokenizerBase, memory_ids: Sequence[int] = ()) -> None:
        self.pattern = pattern
        self.tokenizer = tokenizer
        self.memory_ids = list(memory_ids)
        self.before, self.after, self.tail = split_pattern(pattern)
        if ("memory" in self.tail) != bool(self.memory_ids):
            raise ValueError(
                f"template={pattern!r} and memory_tokens={len(self.memory_ids)} do not go together; "
                "a template with {memory} needs memory_tokens of 1 or more, one without needs 0"
            )
        if not getattr(tokenizer, "is_fast", False):
            raise ValueError(
                f"{type(tokenizer).__name__} has no character offsets; embrew needs a fast tokenizer "
                "(a folder with tokenizer.json)"
            )
        if "eos" in self.tail and tokenizer.eos_token_id is None:
            raise ValueError(f"template={pattern!r} ends with {{eos}}, but the tokenizer has no EOS token")

    @cached_property
    def bos_ids(self) -> list[int]:
        """What the tokenizer puts before every text by itself: `[BOS]`, or nothing (Qwen, GPT-NeoX, Phi)."""
        bos = self.tokenizer.bos_token_id
        with_specials = self.tokenizer("a").input_ids
        return [bos] if bos is not None and with_specials[:1] == [bos] else []

    @cached_property
    def suffix_ids(self) -> list[int]:
        """Tokens after the text: the pattern's own words, then `{memory}` and `{eos}` in the pattern's order."""
        ids = self._after_text(self.after)
        for field in self.tail:
            ids += self.memory_ids if field == "memory" else [self.tokenizer.eos_token_id]
        return ids

    def _after_text(self, words: str) -> list[int]:
        """Ids of `words` as they stand behind a text: without the leading-space piece some tokenizers add."""
        if not words:
            return []
        for stem in ("a", "0", ".", "。", "\n"):
            encoded = self.tokenizer(
                stem + words, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True
            )
            offsets = encoded["offset_mapping"]
            if all(start >= len(stem) or end <= len(stem) for start, end in offsets):
                return [i for i, (start, _) in zip(encoded["input_ids"], offsets, strict=True) if start >= len(stem)]
        return list(self.tokenizer(words, add_special_tokens=False, split_special_tokens=True)["input_ids"])

    def rows(
        self,
        texts: Sequence[str | Sequence[int]],
        *,
        instruction: str | Sequence[str] = "",
        max_length: int | None = None,
        segment: Segment = Segment.TEXT,
        first: int = 0,
    ) -> list[Row]:
        """One row a text.

        Args:
            texts: strings, or lists of token ids that are taken as they are (a split document is never tokenised
                twice).
            instruction: what fills `{instruction}`; one for all texts, or one a text.
            max_length: limit in tokens for the whole row, everything included; longer texts lose their end.
            segment: label of the text's positions.
            first: number of the first text, for error messages.

        Raises:
            ValueError: a text is not valid Unicode, or the limit leaves no room for the text.
        """
        instructions = [instruction] * len(texts) if isinstance(instruction, str) else list(instruction)
        if len(instructions) != len(texts):
            raise ValueError(f"{len(instructions)} instructions for {len(texts)} texts; give one, or one a text")
        suffix = Row.of(self.suffix_ids, Segment.PROMPT)
        for i, token in enumerate(suffix.ids):
            if token in self._memory_set:
                suffix.segments[i] = int(Segment.MEMORY)
        for i, text in enumerate(texts):
            if not isinstance(text, list | tuple):
                check_text(text, first + i)
        bodies = self._bodies(texts, instructions, segment)
        rows = []
        for body in bodies:
            head = Row.of(self.bos_ids, Segment.PROMPT) + body
            if max_length is not None and len(head.ids) + len(suffix.ids) > max_length:
                head = self._truncate(head, max_length - len(suffix.ids), segment)
            row = head + suffix
            if not row.ids:
                row = self._nothing()
            rows.append(row)
        return rows

    @cached_property
    def _memory_set(self) -> set[int]:
        return set(self.memory_ids)

    def _nothing(self) -> Row:
        """The row of an empty text where the template adds nothing: one EOS (or padding) token, so that it exists."""
        fallback = self.tokenizer.eos_token_id
        if fallback is None:
            fallback = self.tokenizer.pad_token_id
        return Row.of([0 if fallback is None else fallback], Segment.PROMPT)

    def _truncate(self, head: Row, room: int, segment: Segment) -> Row:
        start = next((i for i, s in enumerate(head.segments) if s == segment), len(head.ids))
        if start >= room:
            raise ValueError(
                f"max_length leaves {room} tokens before the suffix, and BOS with the instruction already takes "
                f"{start}; raise max_length or shorten the instruction"
            )
        return Row(head.ids[:room], head.segments[:room])

    def _bodies(self, texts: Sequence[str | Sequence[int]], instructions: list[str], segment: Segment) -> list[Row]:
        prefixes = [self.before.replace("{instruction}", filled) for filled in instructions]
        strings = [(i, text) for i, text in enumerate(texts) if isinstance(text, str)]
        encoded_strings = {}
        if strings:
            encoded = self._encode([prefixes[i] + text for i, text in strings])
            for (i, _), ids, offsets in zip(strings, encoded["input_ids"], encoded["offset_mapping"], strict=True):
                begin = len(prefixes[i])
                labels = [int(segment if end > begin or begin == 0 else Segment.PROMPT) for _, end in offsets]
                encoded_strings[i] = Row(list(ids), labels)
        bodies = []
        for i, given in enumerate(texts):
            if isinstance(given, str):
                bodies.append(encoded_strings[i])
            else:
                prefix = self._encode([prefixes[i]])["input_ids"][0] if prefixes[i] else []
                bodies.append(Row.of(prefix, Segment.PROMPT) + Row.of(given, segment))
        return bodies

    def _encode(self, rendered: list[str]) -> dict[str, list]:
        return self.tokenizer(
            rendered,
            add_special_tokens=False,
            split_special_tokens=True,
            return_offsets_mapping=True,
            return_attention_mask=False,
            verbose=False,
        )


def check_text(text: object, place: int) -> None:
    """Refuse what cannot be tokenised: anything but a string, and strings that are not valid Unicode.

    Raises:
        TypeError: not a string.
        ValueError: a lone surrogate (half of a character, usually from a broken JSON escape).
    """
    if not isinstance(text, str):
        raise TypeError(f"text {place} is {type(text).__name__}; texts are strings")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"text {place} holds a lone surrogate ({text[error.start]!r} at character {error.start}), which is not "
            "valid Unicode; repair it, for instance with text.encode('utf-8', 'replace').decode()"
        ) from None
