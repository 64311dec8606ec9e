"""A tokenizer's vocabulary as key values of a GGUF file.

llama.cpp finds names of special tokens in texts (llama-server always), and SentencePiece's merges can spell them. In an
encoder they stay text. Special tokens are therefore written as unused ones, under names with a space: no text becomes
such a name, since both kinds of tokenizer replace spaces first, and llama.cpp looks for no unused token.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from embrew.export.runtimes.llama_cpp.pre_tokenizer import Kind

NORMAL, USER_DEFINED, UNUSED, BYTE = 1, 4, 5, 6  # gguf.TokenType
BYTES = frozenset(f"<0x{byte:02X}>" for byte in range(256))
PREPARATION = "embrew.text_preparation"  # key of our own


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by id.

    Attributes:
        tokens: their names.
        types: their types.
        scores: for SentencePiece, priorities of merging; empty otherwise.
        merges: for byte-level BPE, pairs with a space between; empty otherwise.
    """

    tokens: list[str]
    types: list[int]
    scores: list[float]
    merges: list[str]


def vocabulary_of(tokenizer: PreTrainedTokenizerBase, kind: Kind, rows: int) -> Vocabulary:
    """Return the vocabulary of a tokenizer, filled up to the rows of the embedding matrix.

    Raises:
        ValueError: llama.cpp would merge its tokens in another order, or other ones.
    """
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    names = {i: token for token, i in backend["model"]["vocab"].items()}
    added = {token["id"]: token for token in backend["added_tokens"]}
    merges = [tuple(pair.split(" ") if isinstance(pair, str) else pair) for pair in backend["model"]["merges"]]
    plain = {name for i, name in names.items() if i not in added}
    ranks = _ranks(plain, merges) if kind.model == "llama" else {}
    tokens, types, scores = [], [], []
    for i in range(rows):
        name, kept = names.get(i), NORMAL
        if i in added and added[i]["special"]:
            name, kept = f"{added[i]['content']} (special token {i})", UNUSED
        elif i in added:
            name, kept = added[i]["content"], USER_DEFINED
        elif name is None:
            name, kept = f"unused row {i}", UNUSED
        elif kind.model == "llama" and name in BYTES:
            kept = BYTE
        elif kind.model == "llama" and len(name) > 1 and name not in ranks:
            name, kept = f"{name} (no merge makes it, {i})", UNUSED
        tokens.append(name)
        types.append(kept)
        scores.append(-float(ranks.get(name, 0)))
    if kind.model == "llama":
        return Vocabulary(tokens, types, scores, [])
    return Vocabulary(tokens, types, [], [" ".join(pair) for pair in merges])


def write_vocabulary(writer: Any, vocabulary: Vocabulary, kind: Kind, *, first: int | None, last: int | None) -> None:
    """Write a vocabulary, and which token comes first and last in every text; None: no token does.

    A token that llama.cpp does not add still has an id there: without one it would be token 1, 2 or 11.
    """
    writer.add_tokenizer_model(kind.model)
    writer.add_tokenizer_pre(kind.pre)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    if vocabulary.scores:
        writer.add_token_scores(vocabulary.scores)
    if vocabulary.merges:
        writer.add_token_merges(vocabulary.merges)
    writer.add_add_space_prefix(kind.space_prefix)
    writer.add_add_bos_token(first is not None)
    writer.add_add_eos_token(last is not None)
    if first is not None:
        writer.add_bos_token_id(first)
    if last is not None:
        writer.add_eos_token_id(last)
    writer.add_array(PREPARATION, list(kind.preparation) or ["none"])


def _ranks(plain: set[str], merges: Sequence[tuple[str, ...]]) -> dict[str, int]:
    """Return the rank of every token that merges make.

    llama.cpp merges two neighbours if they spell a token, and takes the token with the highest score first. That is
    BPE if all pairs that spell a token are merges, one after another in their order.
    """
    pairs, previous = set(merges), None
    ranks: dict[str, int] = {}
    for rank, pair in enumerate(merges):
        made = "".join(pair)
        if made in ranks and made != previous:
            raise ValueError(
                f"its tokenizer's merges make {made!r} at ranks {ranks[made]} and {rank}, with others between; "
                "llama.cpp has one rank per token"
            )
        ranks.setdefault(made, rank)
        previous = made
    for made in ranks:
        for i in range(1, len(made)):
            left, right = made[:i], made[i:]
            known = (len(left) == 1 or left in ranks) and (len(right) == 1 or right in ranks)
            if known and (left, right) not in pairs:
                raise ValueError(
                    f"its tokenizer does not merge {left!r} and {right!r} to {made!r}, and llama.cpp would"
                )
    missing = sorted(made for made in ranks if made not in plain)
    if missing:
        raise ValueError(f"its tokenizer's merges make {missing[0]!r}, which is no plain token")
    return ranks
