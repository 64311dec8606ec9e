"""From a text to a labelled row of tokens; only the text itself is ever truncated."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import ceil

from tokenizers import Encoding
from transformers import PreTrainedTokenizerBase

from embrew.text.pattern import TEXT_FIELD, WordsAfter, check_learned, check_words_after, split_pattern
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

    Examples:
        >>> [memory_count(tokens, ratio=100, bank=8) for tokens in (1, 100, 101, 5000)]
        [1, 1, 2, 8]
    """
    needed = ceil(tokens / ratio)
    if room is not None:
        needed = min(needed, ceil(room / (ratio + 1)))
    return min(max(needed, 1), bank)


def with_fewer_memory_tokens(
    suffix: Row, before: Row, segment: Segment, *, ratio: float, max_length: int | None
) -> Row:
    """Return the suffix of a text with as many memory tokens as its length requires: the last ones of the bank.

    So the last memory token is the same for every text, and the embedding can be read there.

    Args:
        suffix: words, then the whole bank, then what ends the row.
        before: row before the suffix; only its text counts, neither BOS nor instruction nor words of the template.
        segment: label of the text's tokens.
        ratio: R.
        max_length: limit in tokens of the whole row.
    """
    bank = suffix.segments.count(Segment.MEMORY)
    first = suffix.segments.index(Segment.MEMORY)
    text = before.segments.count(segment)
    room = None if max_length is None else max_length - (len(before.ids) - text) - (len(suffix.ids) - bank)
    left_out = bank - memory_count(text, ratio=ratio, bank=bank, room=room)
    remaining = slice(first + left_out, None)
    return Row(suffix.ids[:first] + suffix.ids[remaining], suffix.segments[:first] + suffix.segments[remaining])


def truncate(head: Row, room: int, segment: Segment) -> Row:
    """Return the first `room` positions of a row that ends with its text.

    Raises:
        ValueError: nothing of the text would be left.
    """
    start = len(head.ids) - head.segments.count(segment)
    if start >= room:
        raise ValueError(
            f"max_length leaves {room} tokens before the suffix, and BOS with the instruction already takes {start}; "
            "raise max_length or shorten the instruction"
        )
    return Row(head.ids[:room], head.segments[:room])


def tokens_touching(encoding: Encoding, begin: int, end: int) -> tuple[int, int]:
    """Return the tokens that touch the characters from `begin` up to `end`: index of the first, and after the last.

    Byte-level tokenizers leave a space at the edge of a token out of its offsets; such a space touches nothing.
    """
    stop = bisect_left(encoding.offsets, (end, 0))
    if begin == end:
        return stop, stop
    first = tokens_before(encoding, begin)
    return first, max(first, stop)


def tokens_before(encoding: Encoding, begin: int) -> int:
    """Return the number of tokens that end at or before character `begin`; a token beyond it belongs to the text."""
    first = encoding.char_to_token(begin)
    if first is None:  # nothing follows, or a character that the tokenizer drops
        first = next((i for i, (_, end) in enumerate(encoding.offsets) if end > begin), len(encoding.ids))
    return int(first)


def ids_added_after(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids that a tokenizer itself adds after every text, such as EOS or SEP."""
    alone, with_special = (list(tokenizer("a", add_special_tokens=added).input_ids) for added in (False, True))
    starts = (i for i in range(len(with_special) - len(alone) + 1) if with_special[i : i + len(alone)] == alone)
    return with_special[next(starts, len(with_special)) + len(alone) :]


class Template:
    """Turns texts into rows by a pattern such as `"{instruction}{text}{memory}"`.

    The words before `{text}` (and the instruction) are tokenised together with the text, as one string. Positions are
    labelled by character offsets: a token that touches the text is TEXT. Words after the text, and an instruction
    there, belong to the same string (`joined`) or are tokenised separately (`separate`); they are never truncated.
    `{echo}` is the text a second time. `{memory}`, `{eos}` and `{end}` (what the tokenizer itself adds after a text)
    come last. BOS (or CLS) comes first if the tokenizer adds it, followed by the `{soft_prompt}`, and a BERT-type
    tokenizer's SEP comes last. Special tokens in a user's text stay text, and no chat template is applied.

    Args:
        pattern: the pattern; fields are `{soft_prompt}`, `{instruction}`, `{text}` (required, once), `{echo}`,
            `{memory}`, `{eos}`, `{end}`.
        tokenizer: a fast Hugging Face tokenizer.
        memory_ids: ids of the memory tokens, in order.
        soft_prompt_ids: ids of the soft prompt's tokens, in order.
        preparation: change of a text before it is tokenised; see `PREPARATIONS`.
        memory_ratio: tokens of a text for each memory token; a text gets as many of them as its length requires, the
            last ones, and never none. Without it every text gets all.
        words_after: tokenisation of words after the text. `joined`: a row is one string, tokenised once, as long as
            it fits; where it does not, the text loses its last tokens, and the words are tokenised as with `separate`
            (the repetition of a text still together with the words before it). `separate`: on their own, in every row,
            as a stock tokenizer does it; both copies of a text are then the same tokens. By default `joined` where the
            pattern ends with words or `{echo}`; see `text.pattern`. Around a text given as ids they are
            separate.

    Attributes:
        bos_ids: ids that the tokenizer puts before every text by itself: BOS, or CLS; none for Qwen, GPT-NeoX, Phi.
        start_row: row that a decoder reads first where no text precedes: BOS; where the tokenizer adds none, EOS, or
            else the padding token. A model attends to its first position wherever it needs nothing else; a state that
            it has never read does not serve for that.
        sep_ids: ids that a BERT-type tokenizer puts after every text by itself: SEP; none for those of causal LMs.
        first_ids: first ids of every row: BOS or CLS, then those of the soft prompt.
        tail_row: last positions of every row: memory tokens and EOS, and the SEP of a BERT-type tokenizer.

    Raises:
        ValueError: the tokenizer has no character offsets, no vocabulary, or not the EOS of the pattern.
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
        if not getattr(tokenizer, "is_fast", False):
            raise ValueError(
                f"{type(tokenizer).__name__} has no character offsets; embrew needs a fast tokenizer "
                "(a folder with tokenizer.json)"
            )
        probes = ["A plain sentence.", "another 1"]
        first, second = tokenizer(probes, add_special_tokens=False, verbose=False)["input_ids"]
        if not first or first == second:  # transformers opens a folder without the vocabulary's files as an empty one
            raise ValueError(
                f"{type(tokenizer).__name__} of {tokenizer.name_or_path or 'this model'} has {len(tokenizer)} tokens "
                "and gives different texts the same ones: its vocabulary was not found; the folder needs "
                "tokenizer.json, or the vocabulary files of its kind (vocab.json and merges.txt, vocab.txt, "
                "tokenizer.model)"
            )
        self.pattern = pattern
        self.words_after = check_words_after(words_after, [pattern])
        self.tokenizer = tokenizer
        self.memory_ids, self.soft_prompt_ids = list(memory_ids), list(soft_prompt_ids)
        self.preparation = preparation
        self.memory_ratio = memory_ratio
        self.before, self.between, self.after, self.tail, _ = split_pattern(pattern)
        check_learned(pattern, len(self.memory_ids), len(self.soft_prompt_ids))
        if "eos" in self.tail and tokenizer.eos_token_id is None:
            raise ValueError(f"template={pattern!r} ends with {{eos}}, but the tokenizer has no EOS token")
        ids, sep, cls = list(tokenizer("a").input_ids), tokenizer.sep_token_id, tokenizer.cls_token_id
        self.bos_ids = ids[:1] if ids and ids[0] in (tokenizer.bos_token_id, cls) else []
        other = tokenizer.pad_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id
        self.start_row = Row.labelled(self.bos_ids or [other or 0], Segment.PROMPT)
        self.first_ids = self.bos_ids + self.soft_prompt_ids
        self.tail_row = Row([], [])
        for field in self.tail:
            last = self.memory_ids if field == "memory" else [tokenizer.eos_token_id]
            last = ids_added_after(tokenizer) if field == "end" else last
            self.tail_row += Row.labelled(last, Segment.MEMORY if field == "memory" else Segment.PROMPT)
        is_bert = None not in (sep, cls) and ids[-1:] == [sep]
        self.sep_ids = [sep] if is_bert and not {"eos", "end"} & set(self.tail) else []
        self.tail_row += Row.labelled(self.sep_ids, Segment.PROMPT)
        self._suffixes: dict[str, Row] = {}
        self._between = Row.labelled(self.after_text(self.between or ""), Segment.PROMPT)

    def max_memory_tokens(self, max_length: int) -> int:
        """Return the largest number of memory tokens of a text, in rows of `max_length` tokens."""
        if self.memory_ratio is None:
            return len(self.memory_ids)
        room = max_length - len(self.first_ids) - self.tail_row.segments.count(Segment.PROMPT)
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
        return self.suffix("").ids

    def suffix(self, instruction: str) -> Row:
        """Return what follows a text whose words are separate, with an instruction in its place if that is there."""
        words = self.around(instruction)[1]
        if words not in self._suffixes:
            self._suffixes[words] = Row.labelled(self.after_text(words), Segment.PROMPT) + self.tail_row
        return self._suffixes[words]

    def around(self, instruction: str) -> tuple[str, str]:
        """Return the words before and after a text, with the instruction filled in.

        An instruction before the text may itself hold `{text}` once, and then surrounds it, as in bge-en-icl:
        `"<instruct>Find the answer <query>{text} <response>"`.
        """
        if "{instruction}" in self.after:
            return self.before, self.after.replace("{instruction}", instruction)
        if "{instruction}" not in self.before:
            return self.before, self.after
        head, _, rest = instruction.partition(TEXT_FIELD)
        return self.before.replace("{instruction}", head), rest + self.after

    def with_words(self, instruction: str) -> str:
        """Return the pattern with an instruction written into it."""
        head, _, rest = instruction.partition(TEXT_FIELD) if "{instruction}" in self.before else (instruction, "", "")
        head, rest = (words.replace("{", "{{").replace("}", "}}") for words in (head, rest))
        return self.pattern.replace("{text}", "{text}" + rest).replace("{instruction}", head)

    def adds_nothing(self, instruction: str = "") -> bool:
        """Return whether rows hold the tokens of their text only; an empty text gets an EOS (or padding) token."""
        before, after = self.around(instruction)
        return not (self.first_ids or before or after or self.between is not None or self.tail_row.ids)

    def encode(self, strings: list[str], *, offsets: bool) -> list[Encoding]:
        """Return strings in tokens, without special tokens; with character offsets on request.

        The fast tokenizer is called directly: what transformers builds around it takes twice as long as tokenising.
        """
        backend = self.tokenizer.backend_tokenizer
        if not backend.encode_special_tokens:
            backend.encode_special_tokens = True
        if backend.truncation is not None:
            backend.no_truncation()
        if backend.padding is not None:
            backend.no_padding()
        encode = backend.encode_batch if offsets else backend.encode_batch_fast
        encodings: list[Encoding] = encode(strings, add_special_tokens=False)
        return encodings

    def words(self, words: str) -> list[int]:
        """Return ids of words at the beginning of a text, without special tokens."""
        return list(self.encode([words], offsets=False)[0].ids) if words else []

    def after_text(self, words: str) -> list[int]:
        """Return ids of words that follow a text: without the leading-space piece that some tokenizers add."""
        return [i for i, _ in self._tokens_after(words)] if words else []

    def _tokens_after(self, words: str) -> list[tuple[int, int]]:
        """Return the tokens of words that follow a text: ids, and the character at which each ends."""
        for stem in ("a", "0", ".", "。", "\n", ""):
            (encoded,) = self.encode([stem + words], offsets=True)
            size, offsets = len(stem), encoded.offsets
            if all(start >= size or end <= size for start, end in offsets):
                break  # no token holds a character of both
        pairs = zip(encoded.ids, offsets, strict=True)
        return [(i, end - size) for i, (start, end) in pairs if start >= size]

    def text_ids(self, texts: Sequence[str], *, limit: int, after: bool = False) -> list[list[int]]:
        """Return ids of texts alone, at most `limit` each; with `after`, as they follow other texts."""
        for number, text in enumerate(texts):
            check_text(text, number)
        prepared = [PREPARATIONS[self.preparation](text) for text in texts]
        return [(self.after_text(text) if after else self.words(text))[:limit] for text in prepared]

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
        for i, text in enumerate(texts):
            if not isinstance(text, list | tuple):
                check_text(text, first + i)
        if self.preparation != "none":
            prepare = PREPARATIONS[self.preparation]
            texts = [prepare(text) if isinstance(text, str) else text for text in texts]
        words = {prompt: (self.around(prompt), self.suffix(prompt)) for prompt in set(instructions)}
        begin = Row.labelled(self.first_ids, Segment.PROMPT)
        rows: dict[int, Row] = {}
        if self.words_after == "joined":
            frames = [words[prompt][0] for prompt in instructions]
            rows = self._joined_rows(begin, texts, frames, segment, max_length)
        remaining = [i for i in range(len(texts)) if i not in rows]
        before = [words[instructions[i]][0][0] for i in remaining]
        for i, body in zip(remaining, self._bodies([texts[i] for i in remaining], before, segment), strict=True):
            suffix = words[instructions[i]][1]
            if self.between is not None:
                rows[i] = self._repeated(begin + body, texts[i], suffix, max_length, segment)
                continue
            if self.memory_ratio is not None:
                suffix = with_fewer_memory_tokens(
                    suffix, begin + body, segment, ratio=self.memory_ratio, max_length=max_length
                )
            if max_length is not None and len(begin.ids) + len(body.ids) + len(suffix.ids) > max_length:
                rows[i] = truncate(begin + body, max_length - len(suffix.ids), segment) + suffix
            else:  # in one go: these lists are most of what Python does here
                rows[i] = Row(begin.ids + body.ids + suffix.ids, begin.segments + body.segments + suffix.segments)
            if not rows[i].ids:  # an empty text where the template adds nothing
                tokens = self.tokenizer.eos_token_id, self.tokenizer.pad_token_id, 0
                rows[i] = Row.labelled([next(i for i in tokens if i is not None)], Segment.PROMPT)
        return [rows[i] for i in range(len(texts))]

    def _bodies(self, texts: Sequence[str | Sequence[int]], before: Sequence[str], segment: Segment) -> list[Row]:
        """Return the words before each text, and the text, as rows."""
        strings = [i for i, text in enumerate(texts) if isinstance(text, str)]
        rendered = [before[i] + texts[i] for i in strings]  # type: ignore[operator]
        encodings = dict(zip(strings, self.encode(rendered, offsets=any(before)), strict=True))
        bodies = []
        for i, text in enumerate(texts):
            if i in encodings:
                ids = encodings[i].ids
                count = tokens_before(encodings[i], len(before[i])) if before[i] else 0
                bodies.append(Row(ids, [int(Segment.PROMPT)] * count + [int(segment)] * (len(ids) - count)))
            else:
                prefix = self.words(before[i])
                bodies.append(Row.labelled(prefix, Segment.PROMPT) + Row.labelled(text, segment))  # type: ignore[arg-type]
        return bodies

    def _joined_rows(
        self,
        begin: Row,
        texts: Sequence[str | Sequence[int]],
        frames: Sequence[tuple[str, str]],
        segment: Segment,
        max_length: int | None,
    ) -> dict[int, Row]:
        """Return rows, by number, that are one string with the words around their text: those that fit their limit.

        A token that touches the text is labelled `segment` (ECHO in its repetition), even if it holds a character of
        other words; everything else is PROMPT.
        """
        strings: dict[int, str] = {}
        for i, (text, (before, after)) in enumerate(zip(texts, frames, strict=True)):
            if isinstance(text, str) and (after or self.between is not None):
                repetition = "" if self.between is None else self.between + text
                strings[i] = before + text + repetition + after
        rows = {}
        encodings = self.encode(list(strings.values()), offsets=True) if strings else []
        for i, encoding in zip(strings, encodings, strict=True):
            begin_text, size = len(frames[i][0]), len(texts[i])
            start, stop = tokens_touching(encoding, begin_text, begin_text + size)
            labels = [int(Segment.PROMPT)] * start + [int(segment)] * (stop - start)
            if self.between is not None:
                begin_text += size + len(self.between)
                start, stop = (max(index, stop) for index in tokens_touching(encoding, begin_text, begin_text + size))
                labels += [int(Segment.PROMPT)] * (start - len(labels)) + [int(Segment.ECHO)] * (stop - start)
            row = begin + Row(encoding.ids, labels + [int(Segment.PROMPT)] * (len(encoding.ids) - len(labels)))
            tail = self.tail_row
            if self.memory_ratio is not None:
                tail = with_fewer_memory_tokens(tail, row, segment, ratio=self.memory_ratio, max_length=max_length)
            if max_length is None or len(row.ids) + len(tail.ids) <= max_length:
                rows[i] = row + tail
        return rows

    def _repeated(
        self, head: Row, text: str | Sequence[int], suffix: Row, max_length: int | None, segment: Segment
    ) -> Row:
        """Return the text, the words between, and the text again; both copies lose as many tokens where they must.

        The second copy is the tokens of the first; or, where words are joined, what follows the words between them.
        """
        start, words = len(head.ids) - head.segments.count(segment), self._between
        first_copy = second_copy = head.ids[start:]
        if self.words_after == "joined" and isinstance(text, str):
            ids_and_ends = self._tokens_after((self.between or "") + text)
            size = sum(end <= len(self.between or "") for _, end in ids_and_ends)
            words = Row.labelled([token_id for token_id, _ in ids_and_ends[:size]], Segment.PROMPT)
            second_copy = [token_id for token_id, _ in ids_and_ends[size:]]
        if max_length is not None:
            room = max_length - start - len(words.ids) - len(suffix.ids)
            if room < 2:
                raise ValueError(
                    f"max_length={max_length} leaves {max(room, 0)} tokens for the text and its repetition after the "
                    f"template's own {max_length - room}; raise max_length or shorten the instruction"
                )
            first_copy, second_copy = first_copy[: room // 2], second_copy[: room // 2]
        before = Row(head.ids[:start], head.segments[:start])
        copies = Row.labelled(first_copy, segment) + words + Row.labelled(second_copy, Segment.ECHO)
        return before + copies + suffix


def split_where_truncated(
    template: Template, texts: Sequence[str], rows: Sequence[Row], *, instruction: str = ""
) -> list[tuple[str, str]]:
    """Return the part of each text that its row holds, and the part removed; together they are the prepared text.

    A character of which only some tokens are left counts as removed. For templates whose words after the text are
    `separate`.
    """
    prepared = [PREPARATIONS[template.preparation](text) for text in texts]
    before = template.around(instruction)[0]
    begin = len(before)
    halves = []
    for text, row, encoding in zip(
        prepared, rows, template.encode([before + text for text in prepared], offsets=True), strict=True
    ):
        first, last = tokens_touching(encoding, begin, begin + len(text))
        end = first + row.segments.count(Segment.TEXT)
        size = len(text) if end >= last else min(max(encoding.offsets[end][0] - begin, 0), len(text))
        halves.append((text[:size], text[size:]))
    return halves
