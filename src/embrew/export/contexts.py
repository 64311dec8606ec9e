"""Contexts as rows of a vocabulary: prompts with demonstrations in a folder that needs no code of embrew.

Every vector of a context becomes a row of the embedding matrix with a new token, a *marker*, and the context becomes
a prompt: a string of markers and words. Markers are parsed anywhere in a text, so their names hold a hash that no text
holds by chance; the tokenizer's own special tokens stay text in a user's text, as ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from tokenizers import AddedToken
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from embrew.encoder import Encoder
from embrew.model.contexts import PreparedContext, insert
from embrew.storage.parts import digest
from embrew.storage.verification import TEXTS
from embrew.text.tokens import Row, Segment, Tokens


@dataclass(frozen=True)
class Baked:
    """One context in a stock folder.

    Attributes:
        prompt: the prompt before a text there: markers, words, and the template's words before the text.
        ids: what its tokenizer makes of the context's positions, one each.
        rows: `(markers, hidden)` what goes into the embedding matrix, by id.
        room: maximum number of tokens of a text with its instruction.
    """

    prompt: str
    ids: list[int]
    rows: dict[int, Tensor]
    room: int


def bake(encoder: Encoder, tokenizer: PreTrainedTokenizerBase) -> dict[str, Baked]:
    """Add the markers of an encoder's contexts to a stock tokenizer; return the contexts by name.

    Raises:
        ValueError: the tokenizer cannot give the same tokens as the encoder, or a context leaves no room for a text.
    """
    return {name: _baked(encoder, tokenizer, name, context) for name, context in encoder.contexts.items()}


def _baked(encoder: Encoder, tokenizer: PreTrainedTokenizerBase, name: str, context: PreparedContext) -> Baked:
    instruction, limit = context.context.instruction, encoder.max_seq_length
    room = limit - len(context.row.ids)
    if room < 16:
        raise ValueError(
            f"context {name} takes {len(context.row.ids)} of the {limit} tokens of a text in a stock folder, where all "
            f"count; export with --max-length {limit + len(context.row.ids)}, or give fewer demonstrations"
        )
    with torch.no_grad():
        tokens = Tokens.pad([context.row]).with_soft(context.vectors) if context.row.ids else None
        embedded = None if tokens is None else encoder.backbone.embed(tokens.to(encoder.device))[0]
    maker = _Markers(tokenizer, f"{name}.{digest(context)[:16]}")
    if any(token.startswith(f"<|{maker.stem}.") for token in tokenizer.get_vocab()):
        raise ValueError(f"the tokenizer has tokens that begin with <|{maker.stem} already")
    words, ids, rows = "", list(context.row.ids), {}
    runs = [(segment, [i for i, _ in run]) for segment, run in groupby(enumerate(context.row.segments), lambda p: p[1])]
    for number, (segment, places) in enumerate(runs):
        last = number + 1 == len(runs)
        kept: list[int] = []
        if segment != Segment.SOFT:
            kept = (
                places[:-1] if last else places
            )  # end with a marker, so that the following text is tokenised separately
            found = maker.words([ids[i] for i in kept], first=number == 0)
            kept, words = ([], words) if found is None else (kept, words + found)
        for place in places[len(kept) :]:
            marker = maker.add()
            words += marker
            ids[place] = tokenizer.get_added_vocab()[marker]
            assert embedded is not None
            rows[ids[place]] = embedded[place]
    before = encoder.template.around(instruction)[0]
    for prompt in (words + before, f"{words} {before}"):  # some tokenizers begin a text with a space
        if _same(encoder, tokenizer, context.row, ids, instruction, prompt, room):
            return Baked(prompt, ids, rows, room)
    raise ValueError(
        f"context {name} cannot be exported: after a marker, this tokenizer gives other tokens than at the beginning "
        "of a text"
    )


def _same(
    encoder: Encoder,
    tokenizer: PreTrainedTokenizerBase,
    row: Row,
    stock: Sequence[int],
    instruction: str,
    prompt: str,
    room: int,
) -> bool:
    """Return whether a prompt gives the encoder's tokens before every text; special tokens are verified later."""
    template = encoder.template
    begin, end = len(template.first_ids), len(template.suffix(instruction).ids)
    rows = template.rows(TEXTS, instruction=instruction, max_length=room)
    for text, own in zip(TEXTS, insert(rows, row, template), strict=True):
        wanted = [*stock, *own.ids[begin + len(stock) : len(own.ids) - end]]
        if tokenizer(prompt + text, add_special_tokens=False)["input_ids"][: len(wanted)] != wanted:
            return False
    return True


class _Markers:
    """Makes markers, and words between markers."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stem: str) -> None:
        self.tokenizer = tokenizer
        self.stem = stem
        self.count = 0

    def add(self) -> str:
        """Return the next marker."""
        self.count += 1
        return self._made(self.count - 1)

    def _made(self, number: int) -> str:
        """Return a marker by number: no special token, since those stay text in a text, but parsed first."""
        name = f"<|{self.stem}.{number}|>"
        if name not in self.tokenizer.get_added_vocab():  # a few; get_vocab makes a dictionary of all tokens
            self.tokenizer.add_tokens([AddedToken(name, special=False, normalized=False, lstrip=False, rstrip=False)])
        return name

    def words(self, ids: list[int], *, first: bool) -> str | None:
        """Return words that become these tokens between markers, or before one; None: none were found."""
        if not ids:
            return ""
        mark = self._made(0)  # which is there by the end: a context ends with a marker
        (own,) = self.tokenizer(mark, add_special_tokens=False)["input_ids"]
        decoded = str(self.tokenizer.decode(ids, clean_up_tokenization_spaces=False))
        for words in (decoded, f" {decoded}"):
            found = self.tokenizer(("" if first else mark) + words + mark, add_special_tokens=False)["input_ids"]
            if found == [*([] if first else [own]), *ids, own]:
                return words
        return None
