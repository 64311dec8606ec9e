"""Memory and operations of a training step, counted on an encoder without values."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from embrew.modeling.embedding.batching import groups_by_length
from embrew.modeling.encoder import Encoder
from embrew.modeling.model.cost import BFLOAT16, by_shape
from embrew.modeling.model.layers import layers_of, path_of_layers
from embrew.modeling.model.quantized import quantized_layers
from embrew.modeling.text.tokens import Segment, Tokens
from embrew.objectives import Objective
from embrew.shaped import Ledger, counting, shaped, shaped_modules, shaped_of
from embrew.training.gradcache import Chunks
from embrew.training.step import TrainStep

FRAGMENTS = 1.05  # bytes that an allocator holds, of those that are asked for
DEPTHS = 2, 3  # layers of the models that are counted; the first one differs where the embeddings are frozen


@dataclass(frozen=True)
class StepCost:
    """What one forward and backward pass of a training step takes, in bytes beyond the weights.

    Attributes:
        forward: largest number of bytes held at a time until the loss is there.
        saved: bytes that are kept for the backward pass.
        backward: largest number of bytes held at a time in the backward pass, gradients included.
        gradients: bytes of gradients of weights.
        copies: bytes of copies of weights that are kept for later steps.
        flop: floating-point operations.
        positions: tokens whose activations are held at a time, padding included: of a chunk with gradient caching.
        tokens: that pass through the layers with a gradient, padding included.
        layer: bytes that one layer keeps for the backward pass.
    """

    forward: float
    saved: float
    backward: float
    gradients: float
    copies: float
    flop: float
    positions: float
    tokens: float
    layer: float = 0.0

    @property
    def activations(self) -> float:
        """Largest number of bytes held at a time, gradients of weights apart, as an allocator holds them."""
        return FRAGMENTS * max(self.forward, self.backward - self.gradients)

    def scaled(self, share: float, other: StepCost) -> StepCost:
        """Return this cost, and `share` of what the other takes more."""
        pairs = {field.name: (getattr(self, field.name), getattr(other, field.name)) for field in fields(self)}
        return StepCost(**{name: one + share * (two - one) for name, (one, two) in pairs.items()})


@dataclass(frozen=True, kw_only=True)
class How:
    """How a step is computed.

    Attributes:
        kind: type of the device that it is counted for.
        autocast: dtype of matrix products; None: that of the weights.
        recompute: activation checkpointing.
        chunks: of gradient caching.
    """

    kind: str
    autocast: torch.dtype | None = None
    recompute: bool = False
    chunks: Chunks | None = None


def step_cost(encoder: Encoder, objective: Objective, batch: Mapping[str, Any], how: How) -> StepCost:
    """Return the cost of a step, from those of models with the encoder's first layers; layers are taken to be alike.

    Args:
        encoder: with or without values; it is not computed with, and not changed.
        objective: what is trained.
        batch: as the objective collates it, on the CPU.
        how: how the step is computed.
    """
    layers = encoder.backbone.num_layers
    two = counted(without_values(encoder, min(layers, DEPTHS[1])), objective, batch, how)
    if layers == 1:
        return replace(two, layer=two.saved)
    one = counted(without_values(encoder, min(layers, DEPTHS[1]) - 1), objective, batch, how)
    return _deeper(one, two, max(0, layers - DEPTHS[1]))


def _deeper(one: StepCost, two: StepCost, further: int) -> StepCost:
    """Return the cost of `further` layers more than in `two`, which has one more than `one`.

    The fullest moment of a deeper model may be another one. So a peak is taken to grow per layer by the largest of: its
    own growth from one to two, what a layer saves, its gradients.
    """
    found, layer = one.scaled(1 + further, two), two.saved - one.saved
    most = max(layer, two.gradients - one.gradients)
    forward, backward = (
        last + further * max(last - first, most)
        for first, last in ((one.forward, two.forward), (one.backward, two.backward))
    )
    return replace(found, forward=forward, backward=backward, layer=layer)


def counted(encoder: Encoder, objective: Objective, batch: Mapping[str, Any], how: How) -> StepCost:
    """Return the cost of a step on an encoder that `without_values` made; arguments as `step_cost`."""
    encoder.backbone.use_own_sdpa()
    _group_rows_as_on(how, encoder)
    step = TrainStep(encoder, objective, how.chunks)
    if how.recompute:
        step.activation_checkpointing_enable()
    seen: list[int] = []
    handle = layers_of(encoder.backbone.inner)[0].register_forward_pre_hook(
        lambda _, args, named: _note(seen, args[0] if args else named["hidden_states"]), with_kwargs=True
    )
    try:
        with counting(how.kind) as ledger, torch.random.fork_rng(devices=[]):
            ledger.is_there(_tensors(encoder))
            measure = _step if how.chunks is None else _cached_step
            return measure(step, batch, how, ledger, seen)
    finally:
        handle.remove()


def _step(step: TrainStep, batch: Mapping[str, Any], how: How, ledger: Ledger, seen: list[int]) -> StepCost:
    with _autocast(how):
        held = [step(**batch, progress=torch.tensor(0.0))["loss"]]
    return _backward(step, held, ledger, sum(seen))


def _cached_step(step: TrainStep, batch: Mapping[str, Any], how: How, ledger: Ledger, seen: list[int]) -> StepCost:
    """Return the cost of a gradient-cached step: memory of the largest chunk, operations of all."""
    objective: Any = step.objective  # one of embeddings, as TrainStep checks
    inputs, encoder, chunks = objective.inputs, step.encoder, how.chunks or Chunks()
    with _autocast(how):
        whole = inputs.complete(encoder, dict(batch))
        texts = [*inputs.texts(whole).values()]
        texts += [_with_vectors(tokens, encoder) for tokens in inputs.prompted(whole).values() if len(tokens)]
        limits: dict[str, Any] = {"batch_size": chunks.rows, "batch_tokens": chunks.tokens}
        grouped = [(tokens, groups_by_length(tokens, encoder.cost, **limits)) for tokens in texts]
        parts = [tokens.select(group) for tokens, groups in grouped for group in groups]
        largest = max(parts, key=lambda part: part.input_ids.numel())
        with torch.no_grad():
            inputs.embed(encoder, largest)
        held = [inputs.embed(encoder, largest).sum()]
    cost = _backward(step, held, ledger, sum(seen))
    times = sum(part.input_ids.numel() for part in parts) / largest.input_ids.numel()
    return replace(cost, flop=cost.flop * times, tokens=cost.tokens * times)


def _with_vectors(tokens: Tokens, encoder: Encoder) -> Tokens:
    ids = tokens.input_ids[tokens.where(Segment.SOFT)]
    count = int(ids.max()) + 1 if len(ids) else 1
    return tokens.with_soft(shaped_of((count, encoder.backbone.hidden_size), torch.float32))


def _backward(step: TrainStep, held: list[Tensor], ledger: Ledger, positions: int) -> StepCost:
    forward, saved = ledger.peak, ledger.now
    ledger.peak = ledger.now
    held.pop().backward()  # nothing else may keep the graph
    gradients = sum(weight.grad.nbytes for weight in step.parameters() if weight.grad is not None)
    return StepCost(
        forward=forward,
        saved=saved,
        backward=ledger.peak,
        gradients=gradients,
        copies=ledger.now - gradients,
        flop=ledger.flop,
        positions=positions,
        tokens=positions,
    )


def _autocast(how: How) -> torch.autocast:
    return torch.autocast("cpu", how.autocast or torch.bfloat16, enabled=how.autocast is not None)


def _tensors(encoder: Encoder) -> Iterator[Tensor]:
    models: tuple[Any, ...] = (encoder, *encoder.backbone._clone)
    for model in models:
        yield from (tensor.inside for tensor in (*model.parameters(), *model.buffers()))


def _note(seen: list[int], states: Tensor) -> None:
    if torch.is_grad_enabled():
        seen.append(states.shape[0] * states.shape[1])


def _group_rows_as_on(how: How, encoder: Encoder) -> None:
    """Group rows by the cost of a forward pass on the planned device, where none was measured."""
    size = sum(weight.numel() for weight in layers_of(encoder.backbone.inner)[0].parameters())
    overhead = by_shape(size, training=True, on_cpu=how.kind == "cpu")
    short = how.kind == "cpu" and how.autocast is not None
    encoder.backbone.overheads.setdefault("training", overhead * BFLOAT16 if short else overhead)


def without_values(encoder: Encoder, depth: int | None = None) -> Encoder:
    """Return a copy of an encoder whose weights have no values; with its first `depth` layers."""
    models: list[nn.Module] = [encoder, *encoder.backbone._clone]
    inners = [encoder.backbone.inner, *(copied.inner for copied in encoder.backbone._clone)]
    with _cut(inners, depth):
        memo: dict[int, Any] = {id(encoder.tokenizer): encoder.tokenizer}
        for model in models:
            for tensor in (*model.parameters(), *model.buffers()):
                memo[id(tensor)] = shaped(tensor)
        made = copy.deepcopy(encoder, memo)
    _without_blocks(made.backbone.model, encoder.backbone.dtype)
    for inner in (made.backbone.inner, *(copied.inner for copied in made.backbone._clone)):
        inner.config.num_hidden_layers = len(layers_of(inner))
    return made


def _without_blocks(model: Any, dtype: torch.dtype) -> None:
    """Replace layers with 4-bit weights by linear layers, whose products keep the same tensors."""
    for name, layer in quantized_layers(model).items():
        parent, _, child = name.rpartition(".")
        plain = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None, device="meta", dtype=dtype)
        setattr(model.get_submodule(parent), child, shaped_modules(plain.requires_grad_(False)))


@contextmanager
def _cut(inners: list[Any], depth: int | None) -> Iterator[None]:
    """Within this context, models have their first layers only."""
    held = []
    try:
        for inner in inners:
            holder, _, name = path_of_layers(inner).rpartition(".")
            held.append((inner.get_submodule(holder), name, getattr(inner.get_submodule(holder), name)))
            setattr(held[-1][0], name, nn.ModuleList(layers_of(inner)[:depth]))
        yield
    finally:
        for module, name, layers in held:
            setattr(module, name, layers)
