"""Where a text is split into a context and its continuation: at a random token, or at a random sentence end."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from embrew.data.sentences import sentence_spans
from embrew.encoder import Encoder
from embrew.methods.targets import text_ids
from embrew.text.tokens import Row, Segment


class Fewest(NamedTuple):
    """The smallest numbers of text tokens of a context (without BOS) and of a continuation."""

    context: int
    continuation: int


class Parts(NamedTuple):
    """Rows of several texts.

    Attributes:
        contexts: what the encoder reads, memory tokens included.
        read: what the original LM reads in place of the memory, after BOS.
        targets: what is predicted, by the suffix of the target's name in a batch.
    """

    contexts: list[Row]
    read: list[Row]
    targets: dict[str, list[Row]]


def bos_row(encoder: Encoder) -> Row:
    """Return BOS, or nothing if the tokenizer has none."""
    return Row.of(encoder.template.bos_ids, Segment.PROMPT)


def split_texts(
    texts: Sequence[str], encoder: Encoder, *, where: Literal["token", "sentence"] | None, fewest: Fewest, seed: int = 0
) -> list[tuple[list[int], list[int]]]:
    """Return token ids of context and continuation of each text, truncated where it exceeds the length limit.

    Args:
        texts: the texts.
        encoder: its tokenizer, template and length limit of documents.
        where: the context ends at a random token, or at a random sentence end if there is one where the text may be
            split; None: it is as long as the limit allows, and the continuation empty.
        fewest: smallest sizes of both.
        seed: of the draw, which depends on it and on the text.

    Raises:
        ValueError: a text is too short.
    """
    most, room = room_of(encoder)
    ends: list[list[int]] = sentence_ends(texts, encoder) if where == "sentence" else [[]] * len(texts)
    parts = []
    for whole, stops in zip(text_ids(texts, encoder), ends, strict=True):
        ids = whole[:most]
        sizes = context_sizes(len(ids), room=room, fewest=fewest)
        size = sizes[-1] if where is None else drawn_size(ids, sizes, seed=seed, ends=stops)
        parts.append((ids[:size], [] if where is None else ids[size:]))
    return parts


def count_without_end(texts: Sequence[str], encoder: Encoder, *, fewest: Fewest) -> int:
    """Return the number of texts without an inner sentence end where they may be split; errors as `split_texts`."""
    most, room = room_of(encoder)
    found = 0
    for ids, ends in zip(text_ids(texts, encoder), sentence_ends(texts, encoder), strict=True):
        sizes = context_sizes(min(len(ids), most), room=room, fewest=fewest)
        found += not any(end in sizes for end in ends)
    return found


def room_of(encoder: Encoder) -> tuple[int, int]:
    """Return the largest numbers of tokens of a text without BOS, and of a context besides the template's tokens."""
    limit = encoder.max_length["document"]
    return limit - len(encoder.template.bos_ids), limit - len(encoder.template.rows([[]])[0].ids)


def read_by_teacher(made: Sequence[Row], contexts: Sequence[Any], encoder: Encoder) -> list[list[int]]:
    """Return what the teacher reads in place of the memory: split texts, or rows without what comes first and last.

    A row ends with memory tokens, EOS and SEP. After an EOS the teacher would predict the target as another text.
    """
    first, last = len(encoder.template.first_ids), len(encoder.template.tail_ids)
    return [
        context if isinstance(context, list) else row.ids[first : len(row.ids) - last]
        for row, context in zip(made, contexts, strict=True)
    ]


def context_sizes(tokens: int, *, room: int, fewest: Fewest) -> range:
    """Return the numbers of tokens that the context of a text may have.

    Args:
        tokens: of the text.
        room: the most tokens of a context.
        fewest: of context and continuation.

    Raises:
        ValueError: there is none.
    """
    last = min(tokens - fewest.continuation, room)
    if last < fewest.context:
        raise ValueError(
            f"a text of {tokens} tokens with room for a context of {room} cannot be split into a context of "
            f"{fewest.context} or more tokens and a continuation of {fewest.continuation} or more; raise max_length or "
            "leave out short texts (min_chars)"
        )
    return range(fewest.context, last + 1)


def drawn_size(ids: Sequence[int], sizes: range, *, seed: int, ends: Sequence[int] = ()) -> int:
    """Return the number of tokens of the context; seed and text decide it.

    Args:
        ids: of the text.
        sizes: from which it is drawn.
        seed: of the draw.
        ends: numbers of tokens at which sentences end; one of those among `sizes` is drawn, if there is any.
    """
    draw = random.Random(f"{seed} {list(ids)}")
    stops = [size for size in ends if size in sizes]
    return draw.choice(stops) if stops else draw.randint(sizes[0], sizes[-1])


def sentence_ends(texts: Sequence[str], encoder: Encoder) -> list[list[int]]:
    """Return, for each text, the numbers of tokens after which a sentence ends and another one follows.

    A token that holds the last character of a sentence belongs to it, whatever else it holds. Tokens are those of
    `text_ids`.
    """
    if not texts:
        return []
    encoded = encoder.tokenizer(
        list(texts),
        add_special_tokens=False,
        split_special_tokens=True,
        return_attention_mask=False,
        return_offsets_mapping=True,
        verbose=False,
    )
    found = []
    for text, places in zip(texts, encoded["offset_mapping"], strict=True):
        starts = [start for start, _ in places]
        found.append(sorted({bisect_left(starts, end) for _, end in sentence_spans(text)[:-1]}))
    return found
