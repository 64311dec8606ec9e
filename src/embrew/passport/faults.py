"""Vectors of texts under deliberate faults of a runtime, by which a checker without the model names a fault.

Each fault is applied to the rows, the attention, the pooling, the adapter or the weights of an encoder, as a runtime
would make it: BOS left out or added twice, the last token left out, another pooling, the adapter left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import get_pattern_key
from torch import Tensor, nn

from embrew.float32 import full_float32
from embrew.identity import adapters_to_replay
from embrew.model.adapters import KEY_PREFIX, AdapterState, Factors, lora_factors
from embrew.model.attention import Attention
from embrew.model.encoder_module import EncoderModule
from embrew.model.forward import bidirectional_by
from embrew.model.pooling import embed
from embrew.settings.encoder import AttentionMode, Pooling
from embrew.text.tokens import Row, Segment, Tokens

POOLINGS: tuple[Pooling, ...] = tuple(Pooling(mode) for mode in ("mean", "cls", "last", "weighted_mean"))
LENGTHS = (64, 128, 256, 512)
SAME = 1e-6  # largest difference of unit vectors that count as the same
WITH_POOLINGS = ("", "eos_missing", "bos_missing+eos_missing")  # faults of tokens that come with a wrong pooling too
BLOCK = 32  # weights that share a scale where 4 bits are simulated
Vectors = dict[str, np.ndarray]
Change = Callable[[Tensor], Tensor]


def pools_last_token(encoder: EncoderModule) -> bool:
    """Return whether pooling reads one memory token at the very end: its state is the last token's."""
    return (
        encoder.pooling.over == "memory"
        and len(encoder.template.memory_ids) == 1
        and encoder.template.tail[-1] == "memory"
    )


@dataclass(frozen=True)
class Side:
    """A prompt as an encoder applies it.

    Attributes:
        instruction: the prompt.
        limit: limit in tokens of a text with everything that is added.
    """

    instruction: str
    limit: int


class Faults:
    """Applies faults to an encoder with one template, to short texts with each of some prompts.

    Args:
        encoder: the encoder; it is not changed.
        sides: the prompts.
        texts: the texts, which are within the limit.
    """

    def __init__(self, encoder: EncoderModule, sides: Sequence[Side], texts: Sequence[str]) -> None:
        self.encoder, self.sides, self.texts, template = encoder, sides, texts, encoder.template
        self.bos, self.end, tokenizer = template.bos_ids, template.suffix(sides[0].instruction).ids, encoder.tokenizer
        self.other_bos = [] if self.bos or tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
        has_eos = tokenizer.eos_token_id is None or tokenizer.eos_token_id in self.end
        self.other_eos = [] if has_eos else [tokenizer.eos_token_id]
        self.right = Pooling("last") if pools_last_token(encoder) else encoder.pooling
        self.rows = self._rows(str, str)

    def vectors(self) -> Vectors:
        """Return unit vectors `(sides · texts, dimensions)` by fault; the first ones, named "", are right."""
        mode, backbone = self.encoder.attention.mode, self.encoder.backbone
        by_fault, rows = Vectors(), dict(self._changed_rows())
        together = self._pooled([row for each in rows.values() for row in each], mode)
        for pooling, vectors in together.items():
            for name, part in zip(rows, np.split(vectors, len(rows)), strict=True):
                if not pooling or name in WITH_POOLINGS:
                    by_fault["+".join(filter(None, (name, pooling)))] = part
        for other in ("causal", "bidirectional"):
            if other != mode and not backbone.is_bert_type and bidirectional_by(backbone.inner):
                by_fault[f"attention_{other}"] = self._pooled(self.rows, other)[""]
        for name, factors in self._adapters().items():
            with added_to(self.encoder, factors):
                by_fault[name] = self.vectors_of(self.rows)
        return by_fault

    def _changed_rows(self) -> Iterator[tuple[str, list[Row]]]:
        """Yield the rows by faults of tokens, prompts and texts; those named "" are right."""
        for name, change in self._frames():
            if not name or all(len(row.ids) > 1 for row in self.rows):
                rows = [change(row) for row in self.rows]
                if self._can_pool(rows):
                    yield name, rows
        changes: dict[str, tuple[Callable[[str], str], Callable[[str], str]]] = {"lower_case": (str.lower, str.lower)}
        if any(side.instruction for side in self.sides):
            changes["prompt_doubled"] = str, lambda words: words + words
        for name, prompt in self.encoder.prompts.items():
            if prompt and any(side.instruction != prompt for side in self.sides):
                changes[f"prompt_added_{name}"] = str, prompt.__add__
        for name, (change_text, change_prompt) in changes.items():
            with suppress(ValueError):  # the limit has no room for two prompts
                yield name, self._rows(change_text, change_prompt)
        if getattr(self.encoder.tokenizer, "chat_template", None):
            yield "chat_template", [self._as_chat(text, side) for side in self.sides for text in self.texts]

    def truncated(self, text: str) -> Vectors:
        """Return the vector `(dimensions,)` of a long text with the first prompt, truncated elsewhere, by fault.

        With `_no_end`, it also loses what follows a text. The first one, named "", is right.
        """
        side, end = self.sides[0], len(self.end)
        limit, positions = side.limit, int(min(self.encoder.backbone.max_positions, 10**9))
        make = partial(self.encoder.template.rows, [text], instruction=side.instruction)
        (row,), rows = make(max_length=positions), {"": make(max_length=limit)[0]}
        size, around = len(row.ids), len(row.ids) - row.segments.count(Segment.TEXT)
        for length in sorted({limit // 2, *LENGTHS}):
            if around < length < min(limit, size):
                rows[f"truncated_{length}"] = make(max_length=length)[0]
        if limit < size:
            first = len(self.encoder.template.first_ids)
            rows["truncated_left"] = cut(row, 0, first) + cut(row, size - limit + first)
            rows["not_truncated"] = row
            if end and self._can_pool([cut(row, 0, limit)]):
                rows[f"truncated_{limit}_no_end"] = cut(row, 0, limit)
        return {name: self.vectors_of([each])[0] for name, each in rows.items()} if len(rows) > 1 else {}

    def with_weights(self, weight: Change, output: Change) -> np.ndarray:
        """Return vectors of the rows by linear layers with changed weights and outputs."""

        def changed(layer: nn.Module, inputs: tuple[Tensor, ...], result: Tensor) -> Tensor:
            base: Any = layer.get_base_layer() if isinstance(layer, BaseTunerLayer) else layer
            change = weight(base.weight.float()).sub_(base.weight)
            return output(result + nn.functional.linear(inputs[0].float(), change).to(result.dtype))

        with hooked((layer, changed) for layer in outermost_linears(self.encoder.backbone.inner).values()):
            return self.vectors_of(self.rows)

    def _frames(self) -> Iterator[tuple[str, Callable[[Row], Row]]]:
        """Yield changes of what precedes and what follows a text, by fault."""
        bos, end = len(self.bos), len(self.end)
        yield "", lambda row: row
        if bos:
            yield "bos_missing", lambda row: cut(row, bos)
            yield "bos_doubled", lambda row: cut(row, 0, bos) + row
        if self.other_bos:
            yield "bos_added", lambda row: Row.labelled(self.other_bos, Segment.PROMPT) + row
        if end:
            yield "eos_missing", lambda row: cut(row, 0, -1)
            yield "eos_doubled", lambda row: row + cut(row, -1)
        if end > 1:
            yield "end_missing", lambda row: cut(row, 0, -end)
        if self.other_eos:
            yield "eos_added", lambda row: row + Row.labelled(self.other_eos, Segment.PROMPT)
        if bos and end:
            yield f"bos_missing+{'eos' if end == 1 else 'end'}_missing", lambda row: cut(row, bos, -end)

    def _can_pool(self, rows: Sequence[Row]) -> bool:
        """Whether rows have all positions that are concatenated, if they are."""
        count = len(self.encoder.template.memory_ids)
        return self.right.mode != "concat" or all(row.segments.count(Segment.MEMORY) == count for row in rows)

    def _as_chat(self, text: str, side: Side) -> Row:
        """Return the row of a text that a runtime puts into the tokenizer's chat template."""
        messages = [{"role": "user", "content": self.encoder.template.around(side.instruction)[0] + text}]
        rendered: Any = self.encoder.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids: Any = self.encoder.tokenizer(rendered, add_special_tokens=False, split_special_tokens=False)["input_ids"]
        return self.encoder.template.rows([list(ids)], max_length=side.limit)[0]

    def _adapters(self) -> dict[str, list[Factors]]:
        """Return what is added to linear layers where adapters are left out, or the last one is there twice."""
        backbone, active = self.encoder.backbone, None
        if isinstance(backbone.model, PeftModel):
            active = lora_factors(backbone.model)
            if active is None:
                return {}
        replayed = [] if backbone.is_quantized else [factors_of(state) for state in adapters_to_replay(self.encoder)]
        every = [*replayed, *([active] if active else [])]
        if not every:
            return {}
        missing = {"adapter_missing": [scaled(factors, -1.0) for factors in every]}
        if len(every) > 1:
            missing["adapter_missing_last"] = [scaled(every[-1], -1.0)]
        return {**missing, "adapter_doubled": [every[-1]]}

    def _pooled(self, rows: Sequence[Row], mode: AttentionMode) -> Vectors:
        """Return vectors of rows in the right pooling, named "", and in others."""
        tokens = Tokens.pad(rows).to(self.encoder.device)
        has_layers = self.encoder.head is not None or self.encoder.center is not None
        others = () if has_layers else (pooling for pooling in POOLINGS if pooling != self.right)
        with torch.inference_mode(), full_float32(self.encoder.device.type):
            states = self.encoder.backbone.hidden_states(tokens, Attention(mode))
            wrong = {f"pooling_{pooling.mode}": self._unit(pooling, states, tokens) for pooling in others}
            return {"": self._unit(self.right, states, tokens), **wrong}

    def _rows(self, change: Callable[[str], str], change_prompt: Callable[[str], str]) -> list[Row]:
        """Return the rows of all texts with each prompt, after changes of both."""
        texts = [change(text) for text in self.texts]
        rows = [
            self.encoder.template.rows(texts, instruction=change_prompt(side.instruction), max_length=side.limit)
            for side in self.sides
        ]
        return [row for each in rows for row in each]

    def vectors_of(self, rows: Sequence[Row]) -> np.ndarray:
        """Return unit vectors of rows, `(rows, dimensions)`."""
        return self._pooled(rows, self.encoder.attention.mode)[""]

    def _unit(self, pooling: Pooling, states: Tensor, tokens: Tokens) -> np.ndarray:
        vectors = embed(self.encoder.head, pooling, states, tokens)
        vectors = vectors if self.encoder.center is None else self.encoder.center(vectors)
        vectors = vectors[:, : self.encoder.get_embedding_dimension()]
        return np.asarray(nn.functional.normalize(vectors.float(), dim=-1).cpu())


def cut(row: Row, start: int, stop: int | None = None) -> Row:
    """Return a part of a row."""
    return Row(row.ids[start:stop], row.segments[start:stop])


def differs(vectors: np.ndarray, right: np.ndarray) -> bool:
    """Return whether vectors are finite, not zero and others than the right ones, of as many dimensions."""
    is_valid = bool(np.isfinite(vectors).all() and vectors.any(-1).all())
    return is_valid and vectors.shape == right.shape and bool(np.abs(vectors - right).max() > SAME)


def rounded(weight: Tensor, bits: int) -> Tensor:
    """Return weights in 8 bits with a scale per row, or in 4 bits with one per `BLOCK` of a row; symmetric."""
    width = weight.shape[1]
    size = BLOCK if bits == 4 and width % BLOCK == 0 else width
    blocks, largest = weight.reshape(len(weight), -1, size), 2 ** (bits - 1) - 1
    scale = blocks.abs().amax(-1, keepdim=True).clamp_min(1e-12) / largest
    return ((blocks / scale).round().clamp(-largest, largest) * scale).view_as(weight)


def outermost_linears(model: nn.Module) -> dict[str, nn.Module]:
    """Return the linear layers of a model by name, each with the LoRA on it, without those in 4 bits."""
    layers: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        base = module.get_base_layer() if isinstance(module, BaseTunerLayer) else module
        if type(base) is nn.Linear and ".lora_" not in name and not name.endswith(".base_layer"):
            layers[name] = module
    return layers


@contextmanager
def hooked(hooks: Iterable[tuple[nn.Module, Callable[..., Tensor]]]) -> Iterator[None]:
    """Within this context, change the outputs of layers."""
    handles = [layer.register_forward_hook(change) for layer, change in hooks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def added_to(encoder: EncoderModule, adapters: Sequence[Factors]) -> Iterator[None]:
    """Within this context, add LoRAs to the outputs of an encoder's linear layers."""

    def adding(down: Tensor, up: Tensor) -> Callable[..., Tensor]:
        def change(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            states = inputs[0].float()
            return output + (states @ down.to(states).T @ up.to(states).T).to(output.dtype)

        return change

    model: Any = encoder.backbone.model
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    layers = dict(base.named_modules())
    hooks = [
        (layers[name], adding(down, up))
        for factors in adapters
        for name, (down, up) in factors.items()
        if name in layers
    ]
    with hooked(hooks):
        yield


def factors_of(state: AdapterState) -> Factors:
    """Return the factors of a saved LoRA by the name of the layer, scaled; none where it is more than a sum."""
    config, factors = state.config, Factors()
    for key, down in state.tensors.items():
        name = key.removeprefix(KEY_PREFIX).removesuffix(".lora_A.weight")
        up = state.tensors.get(key.replace(".lora_A.", ".lora_B."))
        if not key.endswith(".lora_A.weight") or up is None or down.ndim != 2 or config.get("use_dora"):
            continue
        patterns = config.get("alpha_pattern") or {}
        alpha = float(patterns.get(get_pattern_key(list(patterns), name), config["lora_alpha"]))
        scale = alpha / (math.sqrt(len(down)) if config.get("use_rslora") else len(down))
        factors[name] = down.float(), up.float() * scale
    return factors


def scaled(factors: Factors, factor: float) -> Factors:
    """Return a LoRA times a factor."""
    return {name: (down, up * factor) for name, (down, up) in factors.items()}
