"""From a text to a labelled row of tokens; only the text itself is ever truncated."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import ceil

from transformers import PreTrainedTokenizerBase

from embrew.text.pattern import HOLE, WordsAfter, check_learned, check_words_after, split_pattern
from embrew.text.strings import Frame, Strings, characters_kept, first_of, last_of, tokens_before, whole_rows
from embrew.text.texts import PREPARATIONS, Preparation, check_text
from embrew.text.tokens import Row, Segment


def memory_count(tokens: int, *, ratio: float, bank: int, room: int | None = None) -> int:
    """Return Z = ⌈|X| / R⌉, at least 1 and at most `bank`: *Learn Before Represent*, section 3.2, R = |X| / |Z|.

    Args:
        tokens: |X|, the tokens of the text.
        ratio: R.
        bank: number of memory tokens to choose from.
        room: tokens for text and memory together. Only what is left of a truncated text is covered: the fewest tokens Z
            with Z · R >= min(|X|, room − Z).

    >>> [memory_count(tokens, ratio=100, bank=8) for tokens in (1, 100, 101, 5000)]
    [1, 1, 2, 8]
    """
    needed = ceil(tokens / ratio)
    if room is not None:
        needed = min(needed, ceil(room / (ratio + 1)))
    return min(max(needed, 1), bank)


def with_fewer(suffix: Row, before: Row, segment: Segment, *, ratio: float, max_length: int | None) -> Row:
    """Return the suffix of a text with as many memory tokens as its length requires: the last ones of the bank.

    So the last memory token is the same for every text, and the embedding can be read there.

    Args:
        suffix: words, then the whole bank, then what ends the row.
        before: what the row has before it; only the text counts, neither BOS nor instruction nor words of the template.
        segment: label of the text's tokens.
        ratio: R.
        max_length: of the whole row.
    """
    bank = suffix.segments.count(Segment.MEMORY)
    first = suffix.segments.index(Segment.MEMORY)
    text = before.segments.count(segment)
    room = None if max_length is None else max_length - (len(before.ids) - text) - (len(suffix.ids) - bank)
    left_out = bank - memory_count(text, ratio=ratio, bank=bank, room=room)
    remaining = slice(first + left_out, None)
    return Row(suffix.ids[:first] + suffix.ids[remaining], suffix.segments[:first] + suffix.segments[remaining])


def truncated(head: Row, room: int, segment: Segment) -> Row:
    """Return the first `room` positions of a row that ends with its text.

    Raises:
        ValueError: nothing of the text would be left.
    """
    start = _start(head, segment)
    if start >= room:
        raise ValueError(
            f"max_length leaves {room} tokens before the suffix, and BOS with the instruction already takes {start}; "
            "raise max_length or shorten the instruction"
        )
    return Row(head.ids[:room], head.segments[:room])


def repeated(
    head: Row, between: Row, again: Sequence[int] | None, suffix: Row, *, max_length: int | None, segment: Segment
) -> Row:
    """Return a row with its text twice; both copies lose the same number of tokens where the limit requires it.

    Args:
        head: a row that ends with its text.
        between: the words between both copies.
        again: ids of the second copy; None: those of the first.
        suffix: what follows the second copy.
        max_length: limit of the whole row.
        segment: label of the first copy; the second is ECHO.

    Raises:
        ValueError: the limit leaves no token for one of the copies.
    """
    start = _start(head, segment)
    text = head.ids[start:]
    again = text if again is None else again
    if max_length is not None:
        room = max_length - start - len(between.ids) - len(suffix.ids)
        if room < 2:
            raise ValueError(
                f"max_length={max_length} leaves {max(room, 0)} tokens for the text and its repetition after the "
                f"template's own {max_length - room}; raise max_length or shorten the instruction"
            )
        text, again = text[: room // 2], again[: room // 2]
    before = Row(head.ids[:start], head.segments[:start])
    return before + Row.labelled(text, segment) + between + Row.labelled(again, Segment.ECHO) + suffix


def _start(row: Row, segment: Segment) -> int:
    """Return the position at which the text of a row begins."""
    return next((i for i, label in enumerate(row.segments) if label == segment), len(row.ids))


class Template:
    """Turns texts into rows by a pattern such as `"{instruction}{text}{memory}"`.

    The words before `{text}` (and the instruction) are tokenised together with the text, as one string. Positions are
    labelled by character offsets: a token that touches the text is TEXT. Words after the text, and an instruction
    there, belong to the same string (`joined`) or are tokenised separately (`separate`); they are never truncated.
    `{echo}` is the text a second time. `{memory}` and `{eos}` come last. BOS (or CLS) comes first if the tokenizer adds
    it, followed by the `{soft_prompt}`, and a BERT-type tokenizer's SEP comes last. Special tokens in a user's text
    stay text, and no chat template is applied.

    Args:
        pattern: the pattern; fields are `{soft_prompt}`, `{instruction}`, `{text}` (required, once), `{echo}`,
            `{memory}`, `{eos}`.
        tokenizer: a fast Hugging Face tokenizer.
        memory_ids: ids of the memory tokens, in order.
        soft_prompt_ids: ids of the soft prompt's tokens, in order.
        preparation: what is done to a text first; see `PREPARATIONS`.
        memory_ratio: tokens of a text for each memory token; a text gets as many of them as its length requires, the
            last ones, and never none. Without it every text gets all.
        words_after: how words after the text are tokenised. `joined`: a row is one string, tokenised once, as long as
            it fits; where it does not, the text loses its last tokens, and the words are tokenised as with `separate`
            (the repetition of a text still together with the words before it). `separate`: on their own, in every row,
            as a stock tokenizer does it; both copies of a text are then the same tokens. By default `joined` where the
            pattern ends with words or `{echo}`; see `text.pattern`. Around a text given as ids they are
            separate.
    """

    def __init__(
        self,
        pattern: str,
        tokenizer: PreTrainedTokenizerBase,
        memory_ids: Sequence[int] = (),
        soft_prompt_ids: Sequence[int] = (),
        *,
        preparation: Preparation = "none",
        memory_ratio: float | None = None,
        words_after: WordsAfter | None = None,
    ) -> None:
        self.pattern = pattern
        self.words_after = check_words_after(words_after, [pattern])
        self.tokenizer, self.strings = tokenizer, Strings(tokenizer)
        self.memory_ids, self.soft_prompt_ids = list(memory_ids), list(soft_prompt_ids)
        self._memory_set, self._suffixes = set(self.memory_ids), dict[str, list[int]]()
        self.preparation = preparation
        self.memory_ratio = memory_ratio
        self.parts = parts = split_pattern(pattern)
        self.before, self.between, self.after, self.tail = parts.before, parts.between, parts.after, parts.tail
        check_learned(pattern, len(self.memory_ids), len(self.soft_prompt_ids))
        if "eos" in self.tail and tokenizer.eos_token_id is None:
            raise ValueError(f"template={pattern!r} ends with {{eos}}, but the tokenizer has no EOS token")

    @cached_property
    def bos_ids(self) -> list[int]:
        """What the tokenizer puts before every text by itself; see `strings.first_of`."""
        return first_of(self.tokenizer)

    @property
    def first_ids(self) -> list[int]:
        """What comes first in every row: BOS or CLS, then the soft prompt."""
        return self.bos_ids + self.soft_prompt_ids

    @cached_property
    def sep_ids(self) -> list[int]:
        """What a BERT-type tokenizer puts after every text by itself; see `strings.last_of`."""
        return [] if "eos" in self.tail else last_of(self.tokenizer)

    def most_memory(self, max_length: int) -> int:
        """Return the largest number of memory tokens of a text, in rows of `max_length` tokens."""
        if self.memory_ratio is None:
            return len(self.memory_ids)
        room = max_length - len(self.first_ids) - self.tail.count("eos") - len(self.sep_ids)
        return memory_count(room, ratio=self.memory_ratio, bank=len(self.memory_ids), room=room)

    def check_all_memory(self, what: str) -> None:
        """Raise if texts get some of the memory tokens only; `what` needs all of them."""
        if self.memory_ratio is not None:
            raise ValueError(
                f"memory_ratio={self.memory_ratio} gives texts different numbers of memory tokens, and {what} "
                f"needs all {len(self.memory_ids)}; leave encoder.memory_ratio out"
            )

    @property
    def suffix_ids(self) -> list[int]:
        """Tokens after the text: the pattern's own words, then `{memory}` and `{eos}` in the pattern's order.

        An instruction after the text is left out; see `suffix`.
        """
        return self.suffix("")

    def suffix(self, instruction: str) -> list[int]:
        """Return tokens after a text whose words are separate, with an instruction in its place if that is there."""
        ids = self._suffixes.get(instruction)
        if ids is None:
            ids = self._suffixes[instruction] = self.after_text(self.around(instruction)[1]) + self.tail_ids
        return list(ids)

    def around(self, instruction: str) -> tuple[str, str]:
        """Return the words before and after a text, with the instruction filled in; see `Pattern.around`."""
        return self.parts.around(instruction)

    def with_words(self, instruction: str) -> str:
        """Return the pattern with an instruction written into it."""
        head, _, rest = instruction.partition(HOLE) if "{instruction}" in self.before else (instruction, "", "")
        head, rest = (words.replace("{", "{{").replace("}", "}}") for words in (head, rest))
        return self.pattern.replace("{text}", "{text}" + rest).replace("{instruction}", head)

    def words(self, words: str) -> list[int]:
        """Return ids of words at the beginning of a text, without special tokens."""
        return self.strings.first(words)

    def text_ids(self, texts: Sequence[str], *, limit: int, after: bool = False) -> list[list[int]]:
        """Return ids of texts alone, at most `limit` each; with `after`, as they follow other texts."""
        for number, text in enumerate(texts):
            check_text(text, number)
        prepared = [PREPARATIONS[self.preparation](text) for text in texts]
        return [(self.after_text(text) if after else self.words(text))[:limit] for text in prepared]

    def after_text(self, words: str) -> list[int]:
        """Return ids of words that follow a text: without the leading-space piece that some tokenizers add."""
        return [i for i, _ in self.strings.behind(words)] if words else []

    def rows(
        self,
        texts: Sequence[str | Sequence[int]],
        *,
        instruction: str | Sequence[str] = "",
        max_length: int | None = None,
        segment: Segment = Segment.TEXT,
        first: int = 0,
    ) -> list[Row]:
        """Return one row per text.

        Args:
            texts: strings, or lists of token ids, which are not changed (a split document is never tokenised
                twice).
            instruction: what fills `{instruction}`; one for all texts, or one per text.
            max_length: limit in tokens for the whole row, everything included; longer texts lose their end.
            segment: label of the text's positions.
            first: number of the first text, for error messages.

        Raises:
            ValueError: a text is not valid Unicode, or the limit leaves no room for the text.
        """
        instructions = [instruction] * len(texts) if isinstance(instruction, str) else list(instruction)
        if len(instructions) != len(texts):
            raise ValueError(f"{len(instructions)} instructions for {len(texts)} texts; give one, or one per text")
        suffixes = self._suffix_rows(instructions)
        for i, text in enumerate(texts):
            if not isinstance(text, list | tuple):
                check_text(text, first + i)
        if self.preparation != "none":
            prepare = PREPARATIONS[self.preparation]
            texts = [prepare(text) if isinstance(text, str) else text for text in texts]
        begin = Row.labelled(self.first_ids, Segment.PROMPT)
        joined = self.words_after == "joined"
        rows = self._joined_rows(begin, texts, instructions, segment, max_length) if joined else {}
        left = [i for i in range(len(texts)) if i not in rows]
        bodies = self._bodies([texts[i] for i in left], [instructions[i] for i in left], segment)
        for i, body in zip(left, bodies, strict=True):
            suffix = suffixes[i]
            if self.between is not None:
                rows[i] = self._repeated(begin + body, texts[i], suffix, max_length, segment)
                continue
            if self.memory_ratio is not None:
                suffix = with_fewer(suffix, begin + body, segment, ratio=self.memory_ratio, max_length=max_length)
            if max_length is not None and len(begin.ids) + len(body.ids) + len(suffix.ids) > max_length:
                row = truncated(begin + body, max_length - len(suffix.ids), segment) + suffix
            else:  # in one go: these lists are most of what Python does here
                row = Row(begin.ids + body.ids + suffix.ids, begin.segments + body.segments + suffix.segments)
            if not row.ids:
                row = self._nothing()
            rows[i] = row
        return [rows[i] for i in range(len(texts))]

    def _joined_rows(
        self,
        begin: Row,
        texts: Sequence[str | Sequence[int]],
        instructions: list[str],
        segment: Segment,
        max_length: int | None,
    ) -> dict[int, Row]:
        """Rows, by number, that are one string with the words after their text: those that fit their limit."""
        frames = {}
        for i, text in enumerate(texts):
            before, after = self.around(instructions[i])
            if isinstance(text, str) and (after or self.between is not None):
                frames[i] = Frame(before, text, self.between, after)
        rows = {}
        for i, body in zip(frames, whole_rows(self.strings, list(frames.values()), segment), strict=True):
            row, tail = begin + body, self._tail
            if self.memory_ratio is not None:
                tail = with_fewer(tail, row, segment, ratio=self.memory_ratio, max_length=max_length)
            if max_length is None or len(row.ids) + len(tail.ids) <= max_length:
                rows[i] = row + tail
        return rows

    @cached_property
    def _tail(self) -> Row:
        """What follows the words after a text: memory tokens and EOS, and SEP."""
        return self._labelled(self.tail_ids)

    @cached_property
    def tail_ids(self) -> list[int]:
        """All memory tokens, EOS and SEP: what comes last in every row."""
        ids: list[int] = []
        for field in self.tail:
            ids += self.memory_ids if field == "memory" else [self.tokenizer.eos_token_id]
        return ids + self.sep_ids

    def _labelled(self, ids: list[int]) -> Row:
        labels = [Segment.MEMORY if i in self._memory_set else Segment.PROMPT for i in ids]
        return Row(ids, [int(label) for label in labels])

    def _suffix_rows(self, instructions: list[str]) -> list[Row]:
        """Return what follows each text, labelled; rows are shared where the instruction makes no difference."""
        rows: dict[str, Row] = {}
        follows = "{instruction}" in self.after or any(HOLE in instruction for instruction in instructions)
        for instruction in instructions if follows else instructions[:1]:
            if instruction not in rows:
                rows[instruction] = self._labelled(self.suffix(instruction if follows else ""))
        return [rows[i] for i in instructions] if follows else list(rows.values()) * len(instructions)

    def adds_nothing(self, instruction: str = "") -> bool:
        """Return whether rows hold the tokens of their text only; an empty text gets an EOS (or padding) token."""
        before, after = self.around(instruction)
        return not (self.first_ids or before or after or self.between is not None or self.tail_ids)

    def _nothing(self) -> Row:
        """Return the row of an empty text where the template adds nothing: one EOS (or padding) token."""
        fallback = self.tokenizer.eos_token_id
        if fallback is None:
            fallback = self.tokenizer.pad_token_id
        return Row.labelled([0 if fallback is None else fallback], Segment.PROMPT)

    def _repeated(
        self, head: Row, text: str | Sequence[int], suffix: Row, max_length: int | None, segment: Segment
    ) -> Row:
        """Return the text, the words between, and the text again.

        The second copy is the tokens of the first; or, where words are joined, what follows the words between them.
        """
        words, again = Row.labelled(self._between_ids, Segment.PROMPT), None
        if self.words_after == "joined" and isinstance(text, str):
            pieces = self.strings.behind((self.between or "") + text)
            size = sum(end <= len(self.between or "") for _, end in pieces)
            words = Row.labelled([i for i, _ in pieces[:size]], Segment.PROMPT)
            again = [i for i, _ in pieces[size:]]
        return repeated(head, words, again, suffix, max_length=max_length, segment=segment)

    @cached_property
    def _between_ids(self) -> list[int]:
        return self.after_text(self.between or "")

    def _bodies(self, texts: Sequence[str | Sequence[int]], instructions: list[str], segment: Segment) -> list[Row]:
        prefixes = [self.around(filled)[0] for filled in instructions]
        strings = [i for i, text in enumerate(texts) if isinstance(text, str)]
        rendered = [prefixes[i] + texts[i] for i in strings]  # type: ignore[operator]
        encodings = dict(zip(strings, self.strings.encode(rendered, places=any(prefixes)), strict=True))
        bodies = []
        for i, text in enumerate(texts):
            if i in encodings:
                ids = encodings[i].ids
                before = tokens_before(encodings[i], len(prefixes[i])) if prefixes[i] else 0
                bodies.append(Row(ids, [int(Segment.PROMPT)] * before + [int(segment)] * (len(ids) - before)))
            else:
                prefix = self.words(prefixes[i])
                bodies.append(Row.labelled(prefix, Segment.PROMPT) + Row.labelled(text, segment))  # type: ignore[arg-type]
        return bodies


def split_where_truncated(
    template: Template, texts: Sequence[str], rows: Sequence[Row], *, instruction: str = ""
) -> list[tuple[str, str]]:
    """Return the part of each text that its row holds, and the part removed; together they are the prepared text.

    A character of which only some tokens are left counts as removed. For templates whose words after the text are
    `separate`.
    """
    prepared = [PREPARATIONS[template.preparation](text) for text in texts]
    before = template.around(instruction)[0]
    encodings = template.strings.encode([before + text for text in prepared], places=True)
    halves = []
    for text, row, encoding in zip(prepared, rows, encodings, strict=True):
        size = characters_kept(encoding, len(before), len(text), row.segments.count(Segment.TEXT))
        halves.append((text[:size], text[size:]))
    return halves
