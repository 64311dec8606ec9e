"""Turn strings into token ids: no special token is added, and none is parsed in a string."""

from __future__ import annotations

from tokenizers import Encoding
from transformers import PreTrainedTokenizerBase

from embrew.text.vocabulary import check_vocabulary


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
        found = zip(encoded.ids, offsets, strict=True)
        return [(i, end - size) for i, (start, end) in found if start >= size]
