"""A language model that reads labelled tokens: input embeddings, attention, hidden states of every layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from embrew.model.attention import Attention
from embrew.model.bottleneck import use
from embrew.model.continuations import check_branches
from embrew.model.dropout import set_attention_dropout
from embrew.model.forward import (
    bidirectional_by,
    check_attention,
    forward,
    raw_states,
    read_layers,
    try_two_calls,
    write_soft,
)
from embrew.model.layers import layers_of, view
from embrew.model.positions import check_longest, check_positions, max_positions
from embrew.model.prefix import Shared
from embrew.model.weights import Weights
from embrew.text.indexing import take, upload, write_at
from embrew.text.tokens import Segment, Tokens


class Backbone(Weights):
    """A Hugging Face causal LM, or a BERT-type encoder, that reads labelled tokens."""

    def check_attention(self, attention: Attention) -> None:
        """Measure that the model follows an attention pattern; raise ValueError where it does not."""
        check_attention(self.inner, attention)

    def check_branches(self, blocks: tuple[int, int], longest: int) -> None:
        """Raise ValueError unless two continuations in one row get the states that each gets alone."""
        check_branches(self.inner, blocks, longest)

    @property
    def bidirectional_by(self) -> Literal["flag", "mask"] | None:
        """How the model is made bidirectional: by the library's flag, an explicit mask, or not at all (None)."""
        return bidirectional_by(self.inner)

    def use_own_sdpa(self) -> None:
        """Replace the library's sdpa by embrew's, which is faster in training on a CPU."""
        if self.device.type == "cpu":
            use(self.inner)

    def use_two_calls(self) -> bool:
        """Switch to the two-call kernel of a bottleneck where the model supports it; return True if it is active."""
        return try_two_calls(self.inner)

    @property
    def hidden_size(self) -> int:
        """Width of a hidden state, and of an embedding."""
        projection = getattr(getattr(self.inner, "decoder", None), "project_out", None)  # of some OPT models
        return int(self.inner.config.hidden_size if projection is None else projection.out_features)

    @property
    def num_layers(self) -> int:
        """Transformer layers of the model."""
        return len(layers_of(self.inner))

    @property
    def max_positions(self) -> float:
        """Largest number of tokens of a row; infinity where positions are rotary, or a bias by distance."""
        return max_positions(self.inner)

    def check_longest(self, longest: float, what: str, advice: str) -> None:
        """Raise ValueError where the longest row that settings allow has more tokens than there are positions."""
        check_longest(self.inner, longest, what, advice)

    def embed(self, tokens: Tokens) -> Tensor:
        """Return input embeddings `(batch, tokens, hidden)`: vocabulary rows, memory rows, given vectors on SOFT."""
        embedding = self.causal_lm.get_input_embeddings()
        host = tokens.host
        soft = host.where(Segment.SOFT)  # whose ids are none of the vocabulary
        is_memory = (host.input_ids >= self.vocab_size) & ~soft
        words = tokens.input_ids
        if bool(soft.any()) or bool(is_memory.any()):
            words = upload(host.input_ids.masked_fill(is_memory | soft, 0), tokens.device)
        embedded = embedding(words).to(self.dtype)
        if self.learned:
            scale = getattr(embedding, "scalar_embed_scale", 1.0)  # Gemma scales its embeddings by sqrt(hidden)
            learned = torch.cat(list(self.learned.values()))
            rows = take(learned, host.input_ids[is_memory] - self.vocab_size) * scale
            embedded = write_at(embedded, is_memory, rows.to(embedded.dtype))
        return write_soft(embedded, tokens)

    def hidden_states(
        self,
        tokens: Tokens,
        attention: Attention,
        *,
        num_layers: int | None = None,
        shared: Shared | None = None,
    ) -> Tensor:
        """Return final hidden states, after the final norm: `(batch, tokens, hidden)`.

        Args:
            tokens: a batch.
            attention: who reads whom.
            num_layers: run only that many layers, from the first, and the final norm; equals the model with these only.
            shared: a prefix of all rows that is computed once; equals the forward pass without it,
                under causal attention alone.

        Raises:
            ValueError: a shared prefix under another attention.
        """
        if shared is None:
            return forward(self.inner, self.embed(tokens), tokens, attention, num_layers)
        before, rest = self.split_states(tokens, attention, shared, num_layers=num_layers)
        return torch.cat([before.expand(len(rest), -1, -1), rest], dim=1)

    def split_states(
        self, tokens: Tokens, attention: Attention, shared: Shared, *, num_layers: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return final states of a shared prefix `(1, count, hidden)`, and of what follows `(batch, rest, hidden)`.

        Arguments and errors as in `hidden_states`.
        """
        if not attention.is_causal or tokens.position_ids is not None:
            raise ValueError(
                f"a shared prefix can be computed once under causal attention only, not {attention.mode}: there it "
                "depends on what follows"
            )
        check_positions(self.inner, tokens)
        seen = view(self.inner, is_causal=True, num_layers=num_layers)
        return shared.states(seen, self.embed, tokens)

    def read_layers(self, tokens: Tokens, attention: Attention, read: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """Return what `read` makes of every layer's states in one forward pass, the first layer's first.

        "Layer i" is the model with i layers only, final norm included: what `num_layers=i` gives. `read` is called as
        soon as a layer is done, so that pooled vectors are kept and not all states of all layers (unless the backward
        pass needs them).

        Args:
            tokens: a batch.
            attention: who reads whom.
            read: from `(batch, tokens, hidden)` to what is kept.
        """
        return read_layers(self.inner, self.embed(tokens), tokens, attention, read)

    def raw_states(self, tokens: Tokens, attention: Attention) -> list[Tensor]:
        """Return the library's `hidden_states`: the embedding layer's and every layer's `(batch, tokens, hidden)`."""
        return raw_states(self.inner, self.embed(tokens), tokens, attention)

    def set_attention_dropout(self, probability: float) -> None:
        """Set the dropout on attention weights in every layer (SimCSE's noise).

        Raises:
            ValueError: the family has no such dropout.
        """
        set_attention_dropout(self.inner, probability)
