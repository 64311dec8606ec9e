"""A language model that reads labelled tokens: weights, learned tokens, adapter, hidden states of every layer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Self

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel

from embrew.model.adapters import AdapterSwitch, attach_lora, check_rounding, dequantize, merge, quantized_layers
from embrew.model.attention import Attention, set_attention_dropout
from embrew.model.forward import check_attention, forward, pack, raw_states, read_layers, write_soft
from embrew.model.frozen import FrozenCopy, FrozenLM, check_head, original_states
from embrew.model.layers import check_positions, layers_of, max_positions, with_configuration
from embrew.model.prefix import PrefixCache, SharedPrefix
from embrew.model.weights import describe_difference, tensors_under_adapter, without_adapter
from embrew.text.tokens import Segment, Tokens, select_rows, upload, write_masked

MemoryInit = Literal["vocab", "noise", "mean"]


class Backbone(nn.Module):
    """A Hugging Face causal LM, or a BERT-type encoder, that reads labelled tokens.

    Memory tokens, and those of a soft prompt, are rows of separate parameters, addressed by the ids that follow the
    vocabulary. The base model's embedding matrix and head are never resized.

    States of the weights and of the adapter:

    - *Plain*: no adapter; every weight is frozen. The state after opening a base.
    - *Adapter on*: `model` is a `PeftModel` (`add_lora`, `use_adapter`); the LoRA is trained, the base is frozen.
    - *Adapter off*: within `adapter_off()`. It is then the original LM, to the bit, if no adapter was merged before;
      dropout is 0, and memory tokens are kept.
    - *Merged*: `merge_adapter()` added the LoRA to the weights (`merged`). The original LM is no longer inside.
      `Encoder.merged_adapters` keeps what was merged, so that saving writes the adapters and not the weights.
    - *Trained whole*: `train_all()`, full fine-tuning; all weights are saved (`owns_weights`).

    Objectives that compare with the original LM, or decode with it, call `frozen_lm()`: this model with the adapter
    off, or the second copy that `keep_frozen_lm` made where the original LM is not inside (merged, trained whole).

    Attributes:
        vocab_size: number of rows of the base model's embedding matrix; memory tokens are numbered from here.
        hidden_size: width of a hidden state.
        memory: memory tokens `(k, hidden)` float32, on the scale of the embedding matrix, or None.
        soft_prompt: soft prompt `(tokens, hidden)`, likewise.
        owns_weights: whether the weights under the adapter are saved whole, and not as the base's.
        merged: whether an adapter was merged into the weights, or trained weights were opened.
        prefix_cache: prefixes kept for further calls, while the model must not change (`Encoder.fixed`); else None.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model: PreTrainedModel | PeftModel = model.requires_grad_(False)
        self.vocab_size = int(self.causal_lm.get_input_embeddings().weight.shape[0])
        projection = getattr(getattr(self.inner, "decoder", None), "project_out", None)  # of some OPT models
        self.hidden_size = int(self.inner.config.hidden_size if projection is None else projection.out_features)
        self.memory: nn.Parameter | None = None
        self.soft_prompt: nn.Parameter | None = None
        self.owns_weights = False
        self.merged = False
        self.prefix_cache: PrefixCache | None = None
        self._switch: AdapterSwitch | None = None
        self._clone: list[FrozenCopy] = []  # in a list, so that it is neither trained nor saved

    @property
    def causal_lm(self) -> Any:
        """The model itself (a `PreTrainedModel`), adapter layers included."""
        return self.model.get_base_model() if isinstance(self.model, PeftModel) else self.model

    @property
    def inner(self) -> Any:
        """The LM without its head (a `PreTrainedModel`)."""
        return self.causal_lm.base_model

    @property
    def is_bert_type(self) -> bool:
        """Whether it is a BERT-type encoder: without a head, and every token reads every other."""
        return self.causal_lm.get_output_embeddings() is None

    @property
    def is_quantized(self) -> bool:
        """Whether linear layers have 4-bit weights."""
        return bool(quantized_layers(self.causal_lm))

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.causal_lm.device

    @property
    def dtype(self) -> torch.dtype:
        """The weights' dtype."""
        return self.causal_lm.dtype

    @property
    def num_layers(self) -> int:
        """Transformer layers of the model."""
        return len(layers_of(self.inner))

    @property
    def max_positions(self) -> float:
        """Largest number of tokens of a row; infinity where positions are rotary, or a bias by distance."""
        return max_positions(self.inner)

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
            rows = select_rows(learned, host.input_ids[is_memory] - self.vocab_size) * scale
            embedded = write_masked(embedded, is_memory, rows.to(embedded.dtype))
        return write_soft(embedded, tokens)

    def hidden_states(self, tokens: Tokens, attention: Attention, *, num_layers: int | None = None) -> Tensor:
        """Return final hidden states, after the final norm: `(batch, tokens, hidden)`.

        Args:
            tokens: a batch.
            attention: attention pattern.
            num_layers: run only that many layers, from the first, and the final norm; equals the model with these only.
        """
        packed = pack(self.inner, tokens, attention)
        return forward(self.inner, self.embed(tokens), tokens, attention, num_layers, packed=packed)

    def split_states(
        self, tokens: Tokens, attention: Attention, shared: SharedPrefix, *, num_layers: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return final states of a shared prefix `(1, count, hidden)`, and of what follows `(batch, rest, hidden)`.

        Args:
            tokens: a batch.
            attention: causal attention.
            shared: a prefix of all rows that is computed once; equals the forward pass without it.
            num_layers: as in `hidden_states`.

        Raises:
            ValueError: another attention.
        """
        if not attention.is_causal or tokens.position_ids is not None:
            raise ValueError(
                f"a shared prefix can be computed once under causal attention only, not {attention.mode}: there it "
                "depends on what follows"
            )
        check_positions(self.inner, tokens)
        model = with_configuration(self.inner, is_causal=True, num_layers=num_layers)
        return shared.states(model, self.embed, tokens)

    def read_layers(
        self,
        tokens: Tokens,
        attention: Attention,
        read: Callable[[Tensor], Tensor],
        *,
        num_layers: int | None = None,
    ) -> list[Tensor]:
        """Return what `read` makes of every layer's states in one forward pass, the first layer's first.

        "Layer i" is the model with i layers only, final norm included: what `num_layers=i` gives. `read` is called as
        soon as a layer is done, so that pooled vectors are kept and not all states of all layers (unless the backward
        pass needs them).

        Args:
            tokens: a batch.
            attention: attention pattern.
            read: from `(batch, tokens, hidden)` to what is kept.
            num_layers: number of layers to run, from the first; None: all.
        """
        return read_layers(self.inner, self.embed(tokens), tokens, attention, read, num_layers)

    def raw_states(self, tokens: Tokens, attention: Attention) -> list[Tensor]:
        """Return the library's `hidden_states`: the embedding layer's and every layer's `(batch, tokens, hidden)`."""
        return raw_states(self.inner, self.embed(tokens), tokens, attention)

    def check_decoder(self, what: str) -> None:
        """Raise if the model is a BERT-type encoder; `what` needs a causal LM."""
        if self.is_bert_type:
            raise ValueError(
                f"{what} reads next-token predictions, and {type(self.causal_lm).__name__} is a BERT-type encoder "
                "without them; give a causal LM (Llama, Qwen, Mistral, …)"
            )

    def check_attention(self, attention: Attention) -> None:
        """Measure that the model follows an attention pattern; raise ValueError where it does not."""
        check_attention(self.inner, attention, Attention("bidirectional" if self.is_bert_type else "causal"))

    def check_row_length(self, longest: float, what: str, advice: str) -> None:
        """Raise where the longest row that settings allow has more tokens than the model has positions.

        Args:
            longest: tokens of that row; infinity where nothing limits it.
            what: the settings and how many tokens they come to.
            advice: what to lower.

        Raises:
            ValueError: it has more.
        """
        limit = self.max_positions
        if longest > limit:
            raise ValueError(f"{what}, and {type(self.inner).__name__} has positions for {limit:g} tokens; {advice}")

    def set_attention_dropout(self, probability: float) -> None:
        """Set the dropout on attention weights in every layer (SimCSE's noise).

        Raises:
            ValueError: the family has no such dropout.
        """
        set_attention_dropout(self.inner, probability)

    def add_memory(self, k: int, init: MemoryInit | Sequence[int] = "vocab", *, seed: int = 0) -> None:
        """Create k memory tokens.

        Args:
            k: how many.
            init: `vocab`: distinct rows of the embedding matrix; `noise`: normal with the matrix' mean and standard
                deviation per dimension; `mean`: every row the matrix' mean (what resizing with
                `mean_resizing=True` gives; under bidirectional attention such rows stay alike); or k ids, whose rows
                they start as.
            seed: of the draw.
        """
        self.memory = nn.Parameter(_initial_rows(self.causal_lm, k, init, seed).to(self.device))

    def add_soft_prompt(self, tokens: int, init: MemoryInit | Sequence[int] = "vocab", *, seed: int = 0) -> None:
        """Create the tokens of a soft prompt; `init` and `seed` as in `add_memory`."""
        self.soft_prompt = nn.Parameter(_initial_rows(self.causal_lm, tokens, init, seed + 1).to(self.device))

    def add_lora(self, settings: Mapping[str, Any], *, train_embeddings: bool = False) -> None:
        """Attach a fresh LoRA and freeze everything else but memory tokens and soft prompt."""
        self.check_not_fixed("adding an adapter")
        if isinstance(self.model, PeftModel):
            raise ValueError("the model already carries an adapter; merge it first, or continue it")
        self.model = attach_lora(self.model, settings, train_embeddings=train_embeddings)
        self._switch = None

    def use_adapter(self, model: PeftModel) -> None:
        """Replace the model by one that carries an adapter."""
        self.check_not_fixed("adding an adapter")
        self.model = model
        self._switch = None

    def merge_adapter(self, *, rounds_to: torch.dtype | None = None) -> None:
        """Add the adapter to the weights; from here on the original LM is no longer inside.

        A reader gets these weights only if the adapter is kept as well: see `Encoder.merge_adapter`.
        4-bit layers keep the adapter beside their weights, in float32, since a sum in 4 bits would be another model.

        Args:
            rounds_to: the dtype that the sum is given afterwards, where it is not the weights' own.
        """
        self.check_not_fixed("merging an adapter")
        if isinstance(self.model, PeftModel):
            check_rounding(self.model, rounds_to or self.dtype)
            self.model = merge(self.model)
            self.merged, self._switch = True, None

    def dequantize(self) -> None:
        """Merge the adapter, and replace 4-bit layers by linear layers with the sum, added in float32."""
        self.merge_adapter()
        if self.is_quantized:
            dequantize(self.causal_lm, self.dtype)

    @property
    def trains_all(self) -> bool:
        """Whether the base weights themselves are trained (full fine-tuning)."""
        return not isinstance(self.model, PeftModel) and any(p.requires_grad for p in self.model.parameters())

    def train_all(self) -> None:
        """Train every weight that an embedding depends on (full fine-tuning), so all but an untied head.

        Objectives whose loss reads that head train it too, by `train_head`. From here on all weights are saved,
        whatever adapters follow.

        Raises:
            ValueError: the weights are quantised.
        """
        if self.is_quantized:
            raise ValueError(
                "4-bit weights cannot be trained; train a LoRA on them (encoder.lora in a recipe), or open the model "
                "without quantization"
            )
        self.owns_weights = True
        self.model.requires_grad_(True)
        head, embeddings = self.causal_lm.get_output_embeddings(), self.causal_lm.get_input_embeddings()
        if head is not None and head.weight is not embeddings.weight:
            head.requires_grad_(False)

    def train_head(self) -> None:
        """Under full fine-tuning, train an untied head as well; a LoRA leaves it frozen.

        Raises:
            ValueError: the family changes its logits after the head.
        """
        check_head(self.causal_lm)
        if self.trains_all:
            self.causal_lm.get_output_embeddings().requires_grad_(True)

    def keep_frozen_lm(self, original: PreTrainedModel | None = None) -> None:
        """Keep the original LM available in training.

        With a LoRA it is the same weights with the adapter off; where these are trained too (full fine-tuning, a LoRA
        with biases), or are no longer the original's, a frozen copy is kept.

        Args:
            original: the LM as it was opened, for a copy; None: it is not known, and what is inside is copied if no
                adapter was merged into it.

        Raises:
            ValueError: the original LM is gone; an encoder has none; the family changes its logits after the head.
        """
        self.check_decoder("this objective")
        check_head(self.causal_lm)
        if original is None and self.merged:
            raise ValueError(
                "this objective needs the original LM, but an earlier stage merged its adapter into the weights, or "
                "trained them; put the stage first, or train a LoRA and continue it with adapter: continue"
            )
        plain = without_adapter(self.causal_lm)
        if original is None or self.is_quantized:  # 4-bit weights are never trained
            is_original = not self.merged
        else:
            is_original = describe_difference(tensors_under_adapter(plain), original.state_dict(), exactly=True) is None
        trained = any(parameter.requires_grad for parameter in plain.parameters())
        if not self._clone and (trained or not is_original):
            self._clone = [FrozenCopy(copy.deepcopy(plain) if original is None else original)]

    @property
    def frozen_copy(self) -> FrozenCopy | None:
        """The second copy of the original LM, on this device; None where the original LM is inside."""
        if not self._clone:
            return None
        copied = self._clone[0]
        return copied if copied.model.device == self.device else copied.to(self.device)

    def original_states(self, tokens: Tokens) -> Tensor:
        """Return final states of the LM inside, as it is now, under causal attention."""
        return original_states(self.causal_lm, tokens)

    @contextmanager
    def adapter_off(self) -> Iterator[None]:
        """Within this context, the adapter is off; memory tokens are kept."""
        self.check_not_fixed("switching the adapter off")
        if not isinstance(self.model, PeftModel):
            yield
            return
        if self._switch is None:
            self._switch = AdapterSwitch(self.model)
        with self._switch.off():
            yield

    @contextmanager
    def frozen_lm(self) -> Iterator[FrozenLM]:
        """Give the original LM on the same weights, adapters off and dropout zero.

        What is computed inside must also be differentiated inside: recomputation under activation checkpointing
        would otherwise run with the adapter on. Adapter flags are state of the modules, so no other thread may encode
        at the same time.
        """
        if self.frozen_copy is not None:
            yield FrozenLM(self.frozen_copy.model, hidden_states=self.frozen_copy.original_states)
            return
        with self.adapter_off():
            yield FrozenLM(self.causal_lm, hidden_states=self.original_states)

    def train(self, mode: bool = True) -> Self:
        """Set the mode as `nn.Module` does."""
        if mode:
            self.check_not_fixed("training")
        return super().train(mode)

    def check_not_fixed(self, what: str) -> None:
        """Raise RuntimeError within `Encoder.fixed`, where the model must not change."""
        if self.prefix_cache is not None:
            raise RuntimeError(f"{what} within encoder.fixed(), where the model must not change; leave the block first")

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.check_not_fixed("loading weights")
        super()._load_from_state_dict(*args, **kwargs)


def _initial_rows(model: Any, k: int, init: MemoryInit | Sequence[int], seed: int) -> Tensor:
    weight = model.get_input_embeddings().weight.detach().float().cpu()
    generator = torch.Generator().manual_seed(seed)
    if init == "vocab":
        rows = weight[torch.randperm(len(weight), generator=generator)[:k]]
    elif init == "noise":
        rows = weight.mean(0) + weight.std(0) * torch.randn(k, weight.shape[1], generator=generator)
    elif init == "mean":
        rows = weight.mean(0).expand(k, -1)
    elif isinstance(init, str):
        raise ValueError(f"memory_init={init!r}; choose from vocab, noise, mean, {{words: TEXT}}")
    elif len(init) != k:
        raise ValueError(
            f"the words of memory_init make {len(init)} tokens, but there are {k} memory tokens; give words of as many"
        )
    else:
        rows = weight[list(init)]
    return rows.clone()
