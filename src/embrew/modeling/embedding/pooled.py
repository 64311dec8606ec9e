"""Labelled tokens to pooled vectors, before anything is truncated or normalised."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from embrew.modeling.embedding.pooling import Pooling
from embrew.modeling.model.attention import Attention
from embrew.modeling.model.backbone import Backbone
from embrew.modeling.model.prefix import Shared
from embrew.modeling.text.inputs import Text
from embrew.modeling.text.template import Template
from embrew.modeling.text.tokens import Segment, Tokens


class Pooled(nn.Module):
    """The computing side of `Encoder`, which sets all that is declared here.

    Attributes:
        head: what token states pass through before they are pooled (`LatentAttention`), or None.
        templates: one; or several, and the embedding is the mean over them, before normalising (MetaEOL).
        max_length: limits in tokens, of a query's row and of a document's.
    """

    backbone: Backbone
    templates: list[Template]
    attention: Attention
    pooling: Pooling
    head: nn.Module | None
    max_length: dict[str, int]

    @property
    def template(self) -> Template:
        """The template; the first, where there are several."""
        return self.templates[0]

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.backbone.device

    @property
    def max_seq_length(self) -> int:
        """The longer of the two limits, in tokens."""
        return max(self.max_length.values())

    def tokens(
        self, texts: Sequence[Text], *, instruction: str | Sequence[str] = "", max_length: int | None = None
    ) -> Tokens:
        """A padded batch on the encoder's device, as the template makes it."""
        limit = self.max_seq_length if max_length is None else max_length
        return Tokens.pad(self.template.rows(texts, instruction=instruction, max_length=limit)).to(self.device)

    def hidden_states(self, tokens: Tokens, *, num_layers: int | None = None) -> Tensor:
        """Final hidden states `(batch, tokens, hidden)` under the encoder's attention."""
        return self.backbone.hidden_states(tokens, self.attention, num_layers=num_layers)

    def forward(self, tokens: Tokens, *, num_layers: int | None = None, shared: Shared | None = None) -> Tensor:
        """Pooled embeddings, float32 `(batch, dimensions)`, neither truncated nor normalised.

        `num_layers` and `shared` as in `Backbone.hidden_states`.
        """
        if shared is None:
            return self.pool(self.backbone.hidden_states(tokens, self.attention, num_layers=num_layers), tokens)
        before, states = self.backbone.split_states(tokens, self.attention, shared, num_layers=num_layers)
        return self.pool(states, tokens, before)

    def pool(self, states: Tensor, tokens: Tokens, before: Tensor | None = None) -> Tensor:
        """States `(batch, tokens, hidden)` to float32 `(batch, dimensions)`, through the head if there is one.

        `before` as in `Pooling`.
        """
        if self.head is not None:
            states, before = self.head(states), None if before is None else self.head(before)
        return self.pooling(states, tokens, before)

    def layers(self, tokens: Tokens) -> Tensor:
        """Pooled embeddings of every layer, float32 `(layers, batch, hidden)`; [i − 1] is `forward(num_layers=i)`."""
        return torch.stack(self.backbone.read_layers(tokens, self.attention, lambda states: self.pool(states, tokens)))

    def raw_layers(self, tokens: Tokens) -> Tensor:
        """Pooled hidden states as the library returns them, float32 `(layers + 1, batch, hidden)`.

        The first is the embedding layer's; those below the last lack the final norm, where the model has one. Nothing
        but comparison with other code needs these: see `layers`.
        """
        states = self.backbone.raw_states(tokens, self.attention)
        return torch.stack([self.pool(layer, tokens) for layer in states])

    def memory(self, tokens: Tokens) -> Tensor:
        """States of the memory tokens: `(texts, k, hidden)`; packed rows hold several texts."""
        self.template.check_all_memory("a tensor of memory states")
        states = self.hidden_states(tokens)
        return states[tokens.where(Segment.MEMORY)].view(-1, len(self.template.memory_ids), states.shape[-1])
