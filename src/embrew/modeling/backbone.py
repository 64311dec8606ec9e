"""A language model with or without an adapter: hidden states, learned tokens, and the frozen LM inside."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, Self

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel

from embrew.modeling.adapters import AdapterSwitch, attach_lora, check_rounding, merge
from embrew.modeling.attention import Attention
from embrew.modeling.dropout import set_attention_dropout
from embrew.modeling.frozen import FrozenLM
from embrew.modeling.own_weights import Noted
from embrew.modeling.passes import (
    bidirectional_by,
    check_attention,
    forward,
    layers_of,
    raw_states,
    read_layers,
    try_two_calls,
    view,
    write_soft,
)
from embrew.modeling.positions import check_positions, max_positions
from embrew.modeling.prefix import Shared
from embrew.modeling.tokens import Segment, Tokens

MemoryInit = Literal["vocab", "noise", "mean"]


class Backbone(nn.Module):
    """A Hugging Face causal LM, or a BERT-type encoder, that reads labelled tokens.

    Memory tokens, and those of a soft prompt, are rows of parameters of their own, addressed by the ids that follow the
    vocabulary. The base model's embedding matrix and head are never resized, so with the adapter off it is the
    original LM, to the bit.

    Attributes:
        memory: `(k, hidden)` float32, on the scale of the embedding matrix, or None.
        soft_prompt: `(tokens, hidden)`, likewise.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model: PreTrainedModel | PeftModel = model.requires_grad_(False)
        self.memory: nn.Parameter | None = None
        self.soft_prompt: nn.Parameter | None = None
        self.owns_weights = False  # whether its weights, apart from an adapter, are saved whole and not as the base's
        self.from_disk = False  # whether the weights are those that a reader gets, as long as they are as noted
        self._noted = Noted(model)
        self._changed = False  # whether an adapter was merged, or trained weights were opened
        self.switches = 0  # between training and evaluation; part of `state_of`, since training may have come between
        self._switch: AdapterSwitch | None = None
        self._clone: list[Any] = []  # in a list, so that it is neither trained, saved nor wrapped

    @property
    def causal_lm(self) -> Any:
        """The model itself (a `PreTrainedModel`), adapter layers included."""
        return self.model.get_base_model() if isinstance(self.model, PeftModel) else self.model

    @property
    def holds_original(self) -> bool:
        """Whether the original LM is inside: nothing was merged, and weights that may be trained have not changed."""
        return not self._changed and (not self.owns_weights or self._noted.equal_those_of(self.model))

    def note_weights(self, *, own: bool = False) -> None:
        """Remember the weights as those that a reader gets: of the base with `Encoder.chain`, or `own` ones."""
        self._noted, self.from_disk = Noted(self.causal_lm), True
        self.owns_weights |= own
        self._changed |= own

    @property
    def is_as_opened(self) -> bool:
        """Whether the weights under the adapter can be taken for what a reader gets without looking."""
        return self.from_disk and not self.owns_weights and self._noted.are_those_of(self.causal_lm)

    @property
    def is_encoder(self) -> bool:
        """Whether it is a BERT-type encoder: without a head, and every token reads every other."""
        return self.causal_lm.get_output_embeddings() is None

    def train(self, mode: bool = True) -> Self:
        """Set the mode as `nn.Module` does, and count the switches."""
        self.switches += mode != self.training
        return super().train(mode)

    def check_attention(self, attention: Attention) -> None:
        """Measure that the model follows an attention pattern; raise ValueError where it does not."""
        check_attention(self.inner, attention)

    @property
    def bidirectional_by(self) -> Literal["flag", "mask"] | None:
        """How the model is made bidirectional: by the library's flag, an explicit mask, or not at all (None)."""
        return bidirectional_by(self.inner)

    def use_two_calls(self) -> bool:
        """Train a bottleneck by two causal attention calls where the model follows them; whether that is so."""
        return try_two_calls(self.inner)

    def check_decoder(self, what: str) -> None:
        """Raise where something that needs a causal LM meets an encoder."""
        if self.is_encoder:
            raise ValueError(
                f"{what} reads next-token predictions, and {type(self.causal_lm).__name__} is a BERT-type encoder "
                "without them; give a causal LM (Llama, Qwen, Mistral, …)"
            )

    @property
    def inner(self) -> Any:
        """The LM without its head (a `PreTrainedModel`)."""
        return self.causal_lm.base_model

    @property
    def vocab_size(self) -> int:
        """Rows of the base model's embedding matrix; memory tokens are numbered from here."""
        return int(self.causal_lm.get_input_embeddings().weight.shape[0])

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
        """How many tokens a row may have; infinity where positions are rotary, or a bias by distance."""
        return max_positions(self.inner)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.causal_lm.device

    @property
    def dtype(self) -> torch.dtype:
        """The weights' dtype."""
        return self.causal_lm.dtype

    @property
    def memory_ids(self) -> list[int]:
        """Ids of the memory tokens."""
        return list(range(self.vocab_size, self.vocab_size + (0 if self.memory is None else len(self.memory))))

    @property
    def soft_prompt_ids(self) -> list[int]:
        """Ids of the soft prompt's tokens; they follow those of the memory tokens."""
        first = self.vocab_size + len(self.memory_ids)
        return list(range(first, first + (0 if self.soft_prompt is None else len(self.soft_prompt))))

    @property
    def learned(self) -> dict[str, nn.Parameter]:
        """Learned tokens by what they are, in the order of their ids."""
        both = {"memory": self.memory, "soft_prompt": self.soft_prompt}
        return {name: rows for name, rows in both.items() if rows is not None}

    def add_memory(self, k: int, init: MemoryInit = "vocab", *, seed: int = 0) -> None:
        """Create k memory tokens.

        Args:
            k: how many.
            init: `vocab`: distinct rows of the embedding matrix; `noise`: normal with the matrix' mean and standard
                deviation per dimension; `mean`: every row the matrix' mean (what resizing with
                `mean_resizing=True` gives; under bidirectional attention such rows stay alike).
            seed: of the draw.
        """
        self.memory = nn.Parameter(self._rows(k, init, seed).to(self.device))

    def add_soft_prompt(self, tokens: int, init: MemoryInit = "vocab", *, seed: int = 0) -> None:
        """Create the tokens of a soft prompt; `init` and `seed` as in `add_memory`."""
        self.soft_prompt = nn.Parameter(self._rows(tokens, init, seed + 1).to(self.device))

    def _rows(self, k: int, init: MemoryInit, seed: int) -> Tensor:
        weight = self.causal_lm.get_input_embeddings().weight.detach().float().cpu()
        generator = torch.Generator().manual_seed(seed)
        if init == "vocab":
            rows = weight[torch.randperm(len(weight), generator=generator)[:k]]
        elif init == "noise":
            rows = weight.mean(0) + weight.std(0) * torch.randn(k, weight.shape[1], generator=generator)
        elif init == "mean":
            rows = weight.mean(0).expand(k, -1)
        else:
            raise ValueError(f"memory_init={init!r}; choose from vocab, noise, mean")
        return rows.clone()

    def add_lora(self, settings: Mapping[str, Any], *, train_embeddings: bool = False) -> None:
        """Attach a fresh LoRA and freeze everything else but the memory tokens."""
        if isinstance(self.model, PeftModel):
            raise ValueError("the model already carries an adapter; merge it first, or continue it")
        self.model = attach_lora(self.model, settings, train_embeddings=train_embeddings)
        self._switch = None

    @property
    def trains_all(self) -> bool:
        """Whether the base weights themselves are trained (full fine-tuning)."""
        return not isinstance(self.model, PeftModel) and any(p.requires_grad for p in self.model.parameters())

    def train_all(self) -> None:
        """Full fine-tuning: every weight that an embedding depends on, so all but a head of its own.

        Objectives whose loss reads that head train it too, by `train_head`. From here on all weights are saved,
        whatever adapters follow.
        """
        self.owns_weights = True
        self.model.requires_grad_(True)
        head, embeddings = self.causal_lm.get_output_embeddings(), self.causal_lm.get_input_embeddings()
        if head is not None and head.weight is not embeddings.weight:
            head.requires_grad_(False)

    def train_head(self) -> None:
        """Under full fine-tuning, train a head of its own as well; a LoRA leaves it frozen."""
        if self.trains_all:
            self.causal_lm.get_output_embeddings().requires_grad_(True)

    def use_adapter(self, model: PeftModel) -> None:
        """Take a model that carries an adapter in place of the plain one."""
        self.model = model
        self._switch = None

    def merge_adapter(self, *, rounds_to: torch.dtype | None = None) -> None:
        """Add the adapter to the weights; from here on the original LM is no longer inside.

        Args:
            rounds_to: the dtype that the sum is given afterwards, where it is not the weights' own.
        """
        if isinstance(self.model, PeftModel):
            opened = self.is_as_opened
            check_rounding(self.model, rounds_to or self.dtype)
            self.model = merge(self.model)
            self._changed, self._switch = True, None
            if opened:
                self.note_weights()

    def embed(self, tokens: Tokens) -> Tensor:
        """Input embeddings `(batch, tokens, hidden)`: vocabulary rows, memory rows, given vectors on SOFT."""
        embedding = self.causal_lm.get_input_embeddings()
        soft = tokens.where(Segment.SOFT)  # whose ids are none of the vocabulary
        is_memory = (tokens.input_ids >= self.vocab_size) & ~soft
        embedded = embedding(tokens.input_ids.masked_fill(is_memory | soft, 0)).to(self.dtype)
        if self.learned:
            scale = getattr(embedding, "scalar_embed_scale", 1.0)  # Gemma scales its embeddings by sqrt(hidden)
            learned = torch.cat(list(self.learned.values()))
            rows = learned[tokens.input_ids[is_memory] - self.vocab_size] * scale
            embedded = embedded.masked_scatter(is_memory[..., None], rows.to(embedded.dtype))
        return write_soft(embedded, tokens)

    def hidden_states(
        self,
        tokens: Tokens,
        attention: Attention,
        *,
        num_layers: int | None = None,
        shared: Shared | None = None,
    ) -> Tensor:
        """Final hidden states, after the final norm: `(batch, tokens, hidden)`.

        Args:
            tokens: a batch.
            attention: who reads whom.
            num_layers: run only the first so many layers and then the final norm; equals the model cut to them.
            shared: a beginning that all rows have in common and that is computed once; equals the pass without it,
                under causal attention alone.

        Raises:
            ValueError: a shared beginning under another attention.
        """
        if shared is None:
            return forward(self.inner, self.embed(tokens), tokens, attention, num_layers)
        before, rest = self.split_states(tokens, attention, shared, num_layers=num_layers)
        return torch.cat([before.expand(len(rest), -1, -1), rest], dim=1)

    def split_states(
        self, tokens: Tokens, attention: Attention, shared: Shared, *, num_layers: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Final hidden states of a shared beginning `(1, count, hidden)`, and of what follows `(batch, rest, hidden)`.

        Arguments and errors as in `hidden_states`.
        """
        if not attention.is_causal or tokens.position_ids is not None:
            raise ValueError(
                f"a shared beginning can be computed once under causal attention only, not {attention.mode}: there it "
                "depends on what follows"
            )
        check_positions(self.inner, tokens)
        return shared.states(view(self.inner, is_causal=True, num_layers=num_layers), self.embed, tokens)

    def read_layers(self, tokens: Tokens, attention: Attention, read: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """What `read` makes of every layer's states in one pass, the first layer's first.

        "Layer i" is the model cut to i layers, final norm included: what `num_layers=i` gives. `read` is called as soon
        as a layer is done, so that pooled vectors are kept and not all states of all layers (unless the backward pass
        needs them).

        Args:
            tokens: a batch.
            attention: who reads whom.
            read: from `(batch, tokens, hidden)` to what is kept.
        """
        return read_layers(self.inner, self.embed(tokens), tokens, attention, read)

    def raw_states(self, tokens: Tokens, attention: Attention) -> list[Tensor]:
        """The library's `hidden_states`: the embedding layer's and every layer's `(batch, tokens, hidden)`."""
        return raw_states(self.inner, self.embed(tokens), tokens, attention)

    def set_attention_dropout(self, probability: float) -> None:
        """Set the dropout on attention weights in every layer (SimCSE's noise).

        Raises:
            ValueError: the family has no such dropout.
        """
        set_attention_dropout(self.inner, probability)

    def keep_frozen_lm(self, reopen: Callable[[], PreTrainedModel] | None = None) -> None:
        """Make sure the original LM stays at hand in training.

        With a LoRA it is the same weights with the adapter off; for full fine-tuning a frozen clone is made once. Where
        an earlier stage changed the weights it is opened again.

        Args:
            reopen: opens the original LM.

        Raises:
            ValueError: the original LM is gone, and there is no way to open it; an encoder has none.
        """
        self.check_decoder("this objective")
        if self._clone or (self.holds_original and isinstance(self.model, PeftModel)):
            return
        if not self.holds_original and reopen is None:
            raise ValueError(
                "this objective needs the original LM, but an earlier stage merged its adapter into the weights, or "
                "trained them; put the stage first, or train a LoRA and hand over with adapter: continue"
            )
        model = copy.deepcopy(self.model) if self.holds_original or reopen is None else reopen()
        self._clone = [model.requires_grad_(False).eval()]

    def round_frozen_lm(self, dtype: torch.dtype) -> None:
        """Keep the second copy of the original LM, where there is one, in this dtype: it is never trained."""
        for model in self._clone:
            model.to(dtype)

    @contextmanager
    def adapter_off(self) -> Iterator[None]:
        """The encoder without its adapter, memory tokens kept."""
        if not isinstance(self.model, PeftModel):
            yield
            return
        if self._switch is None:
            self._switch = AdapterSwitch(self.model)
        with self._switch.off():
            yield

    @contextmanager
    def frozen_lm(self) -> Iterator[FrozenLM]:
        """The original LM on the same weights, adapters off and dropout zero.

        What is computed inside must also be differentiated inside: recomputation under activation checkpointing
        would otherwise run with the adapter on. Adapter flags are state of the modules, so no other thread may encode
        meanwhile.
        """
        if self._clone:
            yield FrozenLM(self._clone[0].to(self.device))
            return
        with self.adapter_off():
            yield FrozenLM(self.causal_lm)
