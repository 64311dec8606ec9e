"""From labelled tokens to pooled vectors, neither truncated to their leading dimensions nor normalised."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from embrew.model.adapter_state import AdapterState
from embrew.model.attention import Attention
from embrew.model.backbone import Backbone
from embrew.model.base import Base
from embrew.model.cost import Cost
from embrew.model.demonstrator import Demonstrator
from embrew.model.layers import layers_of
from embrew.model.pool import new_head, pool
from embrew.model.prefix import Shared
from embrew.settings.encoder import AttentionMode, EncoderSettings
from embrew.settings.pooling import Pooling
from embrew.text.indexing import at
from embrew.text.inputs import Text
from embrew.text.template import Template
from embrew.text.tokens import Segment, Tokens


class EmbeddingModel(nn.Module):
    """A causal LM, or a BERT-type encoder, with a template, an attention pattern and pooling.

    Attributes:
        settings: how it reads texts and what it makes of them.
        base: the LM under it.
        head: module applied to token states before pooling (`LatentAttention`), or None.
        demonstrator: the trained part of demonstrations, with their settings; None: it cannot read any.
        templates: one; or several, and the embedding is the mean over them, before normalising (MetaEOL).
        truncate_dim: how many leading dimensions embeddings keep; None: all.
        num_layers: number of layers kept by `cutting`; None: all.
        chain: adapters of earlier stages that were merged into the base's weights, in order.
        merged_to_encode: whether the last of `chain` was merged when the encoder was opened, to encode faster; it is
            saved as the adapter that a stage may continue.
        steps: optimiser steps trained so far.
        arithmetic: dtype of the matrix products in the last training, or None.
        recipe: the resolved recipe it was made by, as YAML, or None.
        record: facts about data and scores of the training, for the model card, or None.
        base_folder: folder of a base without a public name; it is read again when the encoder is saved.
        trust_remote_code: whether code that came with the LM was run.
    """

    base_folder: Path | None = None
    trust_remote_code: bool = False

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: PreTrainedTokenizerBase,
        base: Base,
        settings: EncoderSettings | None = None,
        **given: Any,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.tokenizer = tokenizer
        self.base = base
        self.settings = (settings or EncoderSettings()).replace(**given)
        self.settings.check_learned_tokens(len(backbone.memory_ids), len(backbone.soft_prompt_ids))
        self.templates = self.make_templates(tokenizer, backbone.memory_ids)
        self.use_attention(self.settings.attention)
        if self.pooling.slots is not None or self.pooling.mode == "concat":
            how_many = "some of them" if self.pooling.slots is not None else "their concatenated states"
            self.template.check_all_memory(f"pooling over {how_many}")
        head = new_head(self.pooling, backbone.hidden_size)
        self.head = None if head is None else head.to(backbone.device)
        self.demonstrator: Demonstrator | None = None
        if self.settings.demonstrations is not None:
            backbone.check_decoder("a prompt with demonstrations")
            self.demonstrator = Demonstrator(self.settings.demonstrations, backbone.hidden_size).to(backbone.device)
        self.check_longest()
        self.truncate_dim: int | None = None
        self.num_layers: int | None = None
        self.chain: list[AdapterState] = []
        self.merged_to_encode = False
        self.steps = 0
        self.arithmetic: str | None = None
        self.recipe: str | None = None
        self.record: dict[str, Any] | None = None

    def check_longest(self) -> None:
        """Raise where `max_length` exceeds the model's positions."""
        longest = self.max_seq_length
        self.backbone.check_longest(longest, f"max_length={longest}", "set max_length to that or less")

    def make_templates(self, tokenizer: PreTrainedTokenizerBase, memory_ids: Sequence[int]) -> list[Template]:
        """Return the templates that the settings ask for, on a tokenizer and memory tokens."""
        learned = memory_ids, self.backbone.soft_prompt_ids
        options = self.settings.template_options
        return [Template(pattern, tokenizer, *learned, **options) for pattern in self.settings.templates]

    def with_settings(self, **given: Any) -> Self:
        """Return the same model, on the same weights, with other settings.

        Raises:
            ValueError: settings that do not go together, or that trained weights belong to (`pooling.latents`,
                `demonstrations`).
        """
        made = copy.copy(self)
        made.settings = self.settings.replace(**given)
        if _head(made.pooling) != _head(self.pooling):
            raise ValueError("pooling.latents, heads and head_width belong to trained weights; build another encoder")
        if made.settings.demonstrations != self.settings.demonstrations:
            raise ValueError("demonstrations belong to trained weights; build another encoder")
        made.check_longest()
        made.settings.check_learned_tokens(len(self.template.memory_ids), len(self.template.soft_prompt_ids))
        if not {"template", *self.settings.template_options}.isdisjoint(given):
            made.templates = made.make_templates(self.tokenizer, self.template.memory_ids)
        if "attention" in given:
            made.use_attention(made.settings.attention)
        return made

    @property
    def pooling(self) -> Pooling:
        """How token states become one vector."""
        return self.settings.pooling

    @property
    def prompts(self) -> dict[str, str]:
        """What fills `{instruction}`, by name. Can be assigned, as in Sentence-Transformers."""
        return self.settings.prompts

    @prompts.setter
    def prompts(self, prompts: Mapping[str, str]) -> None:
        self.settings = self.settings.replace(prompts=prompts)

    @property
    def max_length(self) -> dict[str, int]:
        """Limits in tokens, of a query's row and of a document's. Can be assigned."""
        return self.settings.max_length

    @max_length.setter
    def max_length(self, max_length: int | Mapping[str, int]) -> None:
        self.settings = self.with_settings(max_length=max_length).settings

    @property
    def normalize(self) -> bool:
        """Whether embeddings have unit length. Can be assigned."""
        return self.settings.normalize

    @normalize.setter
    def normalize(self, normalize: bool) -> None:
        self.settings = self.settings.replace(normalize=normalize)

    @property
    def default_prompt_name(self) -> str | None:
        """The prompt that is used where none is named. Can be assigned, as in Sentence-Transformers."""
        return self.settings.default_prompt_name

    @default_prompt_name.setter
    def default_prompt_name(self, name: str | None) -> None:
        self.settings = self.settings.replace(default_prompt_name=name)

    def use_attention(self, mode: AttentionMode) -> None:
        """Set the attention, and measure that the model follows it.

        Raises:
            ValueError: a BERT-type encoder has one only, or the model does not follow it.
        """
        if self.backbone.is_encoder and mode != "bidirectional":
            raise ValueError(
                f"attention={mode}, but {type(self.backbone.causal_lm).__name__} is a BERT-type encoder, where every "
                "token reads every other; set attention: bidirectional"
            )
        attention = Attention(mode)
        self.backbone.check_attention(attention)
        self.attention = attention
        self.settings = self.settings.replace(attention=mode)

    @property
    def cost(self) -> Cost:
        """What a forward pass takes, in training or not."""
        return Cost.of(layers_of(self.backbone.inner), training=self.training)

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

    @property
    def width(self) -> int:
        """Dimensions of a pooled vector: those of a state, or of the concatenated states of all memory tokens."""
        return self.pooling.dimensions(self.backbone.hidden_size, len(self.backbone.memory_ids))

    def get_embedding_dimension(self) -> int:
        """Return dimensions of an embedding."""
        return self.width if self.truncate_dim is None else self.truncate_dim

    def tokens(
        self, texts: Sequence[Text], *, instruction: str | Sequence[str] = "", max_length: int | None = None
    ) -> Tokens:
        """Return a padded batch on the encoder's device, as the template makes it."""
        limit = self.max_seq_length if max_length is None else max_length
        return Tokens.pad(self.template.rows(texts, instruction=instruction, max_length=limit)).to(self.device)

    def hidden_states(self, tokens: Tokens, *, num_layers: int | None = None) -> Tensor:
        """Return final hidden states `(batch, tokens, hidden)` under the encoder's attention."""
        return self.backbone.hidden_states(tokens, self.attention, num_layers=num_layers)

    def forward(self, tokens: Tokens, *, num_layers: int | None = None, shared: Shared | None = None) -> Tensor:
        """Return pooled embeddings, float32 `(batch, dimensions)`, neither truncated nor normalised.

        `num_layers` and `shared` as in `Backbone.hidden_states`.
        """
        if shared is None:
            return self.pool(self.backbone.hidden_states(tokens, self.attention, num_layers=num_layers), tokens)
        before, states = self.backbone.split_states(tokens, self.attention, shared, num_layers=num_layers)
        return self.pool(states, tokens, before)

    def pool(self, states: Tensor, tokens: Tokens, before: Tensor | None = None) -> Tensor:
        """Pool states `(batch, tokens, hidden)` to float32 `(batch, dimensions)`, through the head if there is one.

        `before` as in `Pooling`.
        """
        if self.head is not None:
            states, before = self.head(states), None if before is None else self.head(before)
        return pool(self.pooling, states, tokens, before)

    def layers(self, tokens: Tokens) -> Tensor:
        """Return pooled embeddings of every layer, float32 `(layers, batch, hidden)`; i: `forward(num_layers=i)`."""
        return torch.stack(self.backbone.read_layers(tokens, self.attention, lambda states: self.pool(states, tokens)))

    def raw_layers(self, tokens: Tokens) -> Tensor:
        """Return pooled hidden states as the library returns them, float32 `(layers + 1, batch, hidden)`.

        The first is the embedding layer's; those below the last lack the final norm, where the model has one. Nothing
        but comparison with other code needs these: see `layers`.
        """
        states = self.backbone.raw_states(tokens, self.attention)
        return torch.stack([self.pool(layer, tokens) for layer in states])

    def memory(self, tokens: Tokens) -> Tensor:
        """Return states of the memory tokens: `(texts, k, hidden)`."""
        self.template.check_all_memory("a tensor of memory states")
        states = self.hidden_states(tokens)
        return at(states, tokens.host.where(Segment.MEMORY)).view(-1, len(self.template.memory_ids), states.shape[-1])


def _head(pooling: Pooling) -> tuple[int | None, ...]:
    return pooling.latents, pooling.heads, pooling.head_width
