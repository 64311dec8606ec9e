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
from embrew.passport.texts import REFERENCE_TEXTS
from embrew.storage.parts import context_sha256
from embrew.text.tokens import Row, Segment, Tokens


@dataclass(frozen=True)
class ContextPrompt:
    """One context in a stock folder.

    Attributes:
        prompt: string before a text there: markers, words, and the template's words before the text.
        ids: token ids of the context's positions by its tokenizer.
        rows: input embedding `(hidden,)` of each marker, by id.
        room: maximum number of tokens of a text with its instruction.
    """

    prompt: str
    ids: list[int]
    rows: dict[int, Tensor]
    room: int


def context_prompt(
    encoder: Encoder, tokenizer: PreTrainedTokenizerBase, name: str, context: PreparedContext
) -> ContextPrompt:
    """Add the markers of a context to a stock tokenizer; return the context.

    Raises:
        ValueError: the tokenizer cannot give the same tokens as the encoder, or the context leaves no room for a text.
    """
    row, instruction, limit = context.row, context.context.instruction, encoder.max_seq_length
    room = limit - len(row.ids)
    if room < 16:
        raise ValueError(
            f"context {name} takes {len(row.ids)} of the {limit} tokens of a text in a stock folder, where all "
            f"count; export with --max-length {limit + len(row.ids)}, or give fewer demonstrations"
        )
    stem = f"{name}.{context_sha256(context)[:16]}"
    if any(token.startswith(f"<|{stem}.") for token in tokenizer.get_vocab()):
        raise ValueError(f"the tokenizer has tokens that begin with <|{stem} already")
    words, markers = _words_and_markers(tokenizer, row, stem)
    added = tokenizer.get_added_vocab()
    ids, rows = list(row.ids), {}
    if row.ids:
        with torch.no_grad():
            tokens = Tokens.pad([row]).with_soft(context.vectors).to(encoder.device)
            embedded = encoder.backbone.embed(tokens)[0]
        for position, marker in markers.items():
            ids[position] = added[marker]
            rows[ids[position]] = embedded[position]
    before = encoder.template.around(instruction)[0]
    for prompt in (words + before, f"{words} {before}"):  # some tokenizers begin a text with a space
        if _reproduces(encoder, tokenizer, row, ids, instruction, prompt, room):
            return ContextPrompt(prompt, ids, rows, room)
    raise ValueError(
        f"context {name} cannot be exported: after a marker, this tokenizer gives other tokens than at the beginning "
        "of a text"
    )


def _words_and_markers(tokenizer: PreTrainedTokenizerBase, row: Row, stem: str) -> tuple[str, dict[int, str]]:
    """Return a context as words and markers, and the marker of each position that has one.

    A run of tokens stays words where these become the same tokens between markers. A context ends with a marker, so
    that the following text is tokenised separately.
    """
    words, markers = "", dict[int, str]()
    for segment, run in groupby(enumerate(row.segments), lambda pair: pair[1]):
        positions = [position for position, _ in run]
        if segment != Segment.SOFT:
            as_words = positions[:-1] if positions[-1] + 1 == len(row.ids) else positions
            plain = _words_between_markers(tokenizer, stem, [row.ids[i] for i in as_words], first=positions[0] == 0)
            if plain is not None:
                words, positions = words + plain, positions[len(as_words) :]
        for position in positions:
            markers[position] = _marker(tokenizer, stem, len(markers))
            words += markers[position]
    return words, markers


def _marker(tokenizer: PreTrainedTokenizerBase, stem: str, number: int) -> str:
    """Return a marker by number: no special token, since those stay text in a text, but parsed first."""
    name = f"<|{stem}.{number}|>"
    if name not in tokenizer.get_added_vocab():  # a few; get_vocab makes a dictionary of all tokens
        tokenizer.add_tokens([AddedToken(name, special=False, normalized=False, lstrip=False, rstrip=False)])
    return name


def _words_between_markers(tokenizer: PreTrainedTokenizerBase, stem: str, ids: list[int], *, first: bool) -> str | None:
    """Return words that become these tokens between markers, or before one; None: there are none."""
    if not ids:
        return ""
    marker = _marker(tokenizer, stem, 0)
    (marker_id,) = tokenizer(marker, add_special_tokens=False)["input_ids"]
    decoded = str(tokenizer.decode(ids, clean_up_tokenization_spaces=False))
    for words in (decoded, f" {decoded}"):
        tokens = tokenizer(("" if first else marker) + words + marker, add_special_tokens=False)["input_ids"]
        if tokens == [*([] if first else [marker_id]), *ids, marker_id]:
            return words
    return None


def _reproduces(
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
    rows = template.rows(REFERENCE_TEXTS, instruction=instruction, max_length=room)
    for text, with_context in zip(REFERENCE_TEXTS, insert(rows, row, template), strict=True):
        expected = [*stock, *with_context.ids[begin + len(stock) : len(with_context.ids) - end]]
        if tokenizer(prompt + text, add_special_tokens=False)["input_ids"][: len(expected)] != expected:
            return False
    return True
