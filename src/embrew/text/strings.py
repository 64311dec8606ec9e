"""A fast tokenizer, called directly: strings to tokens, and the tokens of a text within the words around it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from tokenizers import Encoding
from transformers import PreTrainedTokenizerBase

from embrew.text.tokens import Row, Segment


def check_vocabulary(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise where a tokenizer has no vocabulary: transformers opens a folder without its files as an empty one.

    Raises:
        ValueError: two different sentences get the same tokens, or none.
    """
    one, other = tokenizer(["A plain sentence.", "another 1"], add_special_tokens=False, verbose=False)["input_ids"]
    if not one or one == other:
        raise ValueError(
            f"{type(tokenizer).__name__} of {tokenizer.name_or_path or 'this model'} has {len(tokenizer)} tokens and "
            "gives different texts the same ones: its vocabulary was not found; the folder needs tokenizer.json, or "
            "the vocabulary files of its kind (vocab.json and merges.txt, vocab.txt, tokenizer.model)"
        )


def first_of(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return what comes before every text: BOS, or CLS; nothing (Qwen, GPT-NeoX, Phi)."""
    first = list(tokenizer("a").input_ids)[:1]
    begins = first and first[0] in (tokenizer.bos_token_id, tokenizer.cls_token_id)
    return first if begins else []


def last_of(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the SEP of BERT-type tokenizers, which have a CLS too; nothing for those of causal LMs."""
    sep, last = tokenizer.sep_token_id, list(tokenizer("a").input_ids)[-1:]
    is_bert = tokenizer.cls_token_id is not None and sep is not None and last == [sep]
    return last if is_bert else []


class Strings:
    """A fast tokenizer, called directly: what transformers builds around it takes twice as long as tokenising.

    Raises:
        ValueError: the tokenizer has no character offsets, or no vocabulary.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise ValueError(
                f"{type(tokenizer).__name__} has no character offsets; embrew needs a fast tokenizer "
                "(a folder with tokenizer.json)"
            )
        check_vocabulary(tokenizer)
        self.tokenizer = tokenizer

    def encode(self, strings: list[str], *, places: bool) -> list[Encoding]:
        """Return the token ids of strings; with character offsets on request."""
        backend = self.tokenizer.backend_tokenizer
        if not backend.encode_special_tokens:
            backend.encode_special_tokens = True
        if backend.truncation is not None:
            backend.no_truncation()
        if backend.padding is not None:
            backend.no_padding()
        encode = backend.encode_batch if places else backend.encode_batch_fast
        encodings: list[Encoding] = encode(strings, add_special_tokens=False)
        return encodings

    def first(self, words: str) -> list[int]:
        """Return ids of words at the beginning of a text."""
        return list(self.encode([words], places=False)[0].ids) if words else []

    def behind(self, words: str) -> list[tuple[int, int]]:
        """Return the tokens of words that follow a text: ids, and the character at which each ends.

        That is without the leading-space piece that some tokenizers add.
        """
        for stem in ("a", "0", ".", "。", "\n", ""):
            (encoded,) = self.encode([stem + words], places=True)
            size, offsets = len(stem), encoded.offsets
            if all(start >= size or end <= size for start, end in offsets):
                break  # no token holds a character of both
        pairs = zip(encoded.ids, offsets, strict=True)
        return [(i, end - size) for i, (start, end) in pairs if start >= size]


class Frame(NamedTuple):
    """A text and the words around it; with `between`, the text is repeated after these words."""

    before: str
    text: str
    between: str | None
    after: str


def whole_rows(strings: Strings, frames: Sequence[Frame], segment: Segment) -> list[Row]:
    """Return each frame as one string in tokens, without special tokens.

    A token that touches the text is labelled `segment` (ECHO in its repetition), even if it holds a character of other
    words; everything else is PROMPT.
    """
    rendered = []
    for before, text, between, after in frames:
        rendered.append(before + text + ("" if between is None else between + text) + after)
    encodings = strings.encode(rendered, places=True) if rendered else []
    return [_labelled(frame, encoding, segment) for frame, encoding in zip(frames, encodings, strict=True)]


def _labelled(frame: Frame, encoding: Encoding, segment: Segment) -> Row:
    begin, size = len(frame.before), len(frame.text)
    first, last = touching(encoding, begin, begin + size)
    labels = [int(Segment.PROMPT)] * first + [int(segment)] * (last - first)
    if frame.between is not None:
        begin += size + len(frame.between)
        start, stop = touching(encoding, begin, begin + size)
        start, stop = max(start, last), max(stop, last)
        labels += [int(Segment.PROMPT)] * (start - last) + [int(Segment.ECHO)] * (stop - start)
    ids = encoding.ids
    return Row(ids, labels + [int(Segment.PROMPT)] * (len(ids) - len(labels)))


def touching(encoding: Encoding, begin: int, end: int) -> tuple[int, int]:
    """Return the tokens that touch the characters from `begin` up to `end`: index of the first, and after the last.

    Byte-level tokenizers leave a space at the edge of a token out of its offsets; such a space touches nothing.
    """
    stop = bisect_left(encoding.offsets, (end, 0))
    if begin == end:
        return stop, stop
    first = tokens_before(encoding, begin)
    return first, max(first, stop)


def characters_kept(encoding: Encoding, begin: int, size: int, count: int) -> int:
    """Return the number of characters of a text at `begin` that its first `count` tokens hold completely."""
    first, last = touching(encoding, begin, begin + size)
    if first + count >= last:
        return size
    return min(max(encoding.offsets[first + count][0] - begin, 0), size)


def tokens_before(encoding: Encoding, begin: int) -> int:
    """Return the number of tokens that end at or before character `begin`; a token beyond it belongs to the text."""
    first = encoding.char_to_token(begin)
    if first is None:  # nothing follows, or a character that the tokenizer drops
        first = next((i for i, (_, end) in enumerate(encoding.offsets) if end > begin), len(encoding.ids))
    return int(first)
