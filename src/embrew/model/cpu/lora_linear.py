"""LoRA on linear layers, at the cost of its arithmetic.

peft draws a mask, copies the input and keeps both for each linear layer. Here, layers that read one input are one
function of it: the input is cast once, dropout keeps the positions that it sets to zero, and gradients for the input
are summed in the matrix products. Outputs, gradients and the distribution of masks are peft's.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from peft.tuners.lora import Linear as PeftLinear
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from embrew.model.cpu.dropout import Mask, room
from embrew.model.layers import CastWeight

Conditions = tuple[bool, torch.dtype, bool, bool, int | None]
TOGETHER = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("query", "key", "value"),
    ("q_lin", "k_lin", "v_lin"),
)
"""Names of linear layers of one module that read the same input in known families; checked at each call."""


class LoraLinear(PeftLinear):
    """peft's LoRA on a linear layer; computed together with the layers that read the same input.

    Falls back to peft's own arithmetic for what it does not cover: DoRA and other variants, several adapters, trained
    base weights, quantised layers, and training an adapter and a base of different dtypes without autocast.

    Attributes:
        together: layers that read the same input, this one among them, in the order in which the model calls them.
        cast_weight: base weight in the dtype of autocast.
    """

    together: Sequence[LoraLinear]
    cast_weight: CastWeight

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return base output plus adapter output, `(…, out)`; the base output where adapters are off."""
        dtype = None if args or kwargs else self._product_dtype(x)
        if dtype is None:
            output: Tensor = super().forward(x, *args, **kwargs)
            return output
        version = None if x.is_inference() else x._version  # inference tensors have none
        conditions = torch.is_grad_enabled(), dtype, self.disable_adapters, self.training, version
        precomputed = _PRECOMPUTED.pop(self, x, conditions)
        if precomputed is not None:
            return precomputed
        index = next(i for i, layer in enumerate(self.together) if layer is self)
        layers = [self, *(layer for layer in self.together[index + 1 :] if layer._product_dtype(x) == dtype)]
        masks = [(Mask.draw(x, p), p) if (p := layer.dropout_now) else None for layer in layers]
        outputs = _LoraProducts.apply(x, dtype, masks, *(part for layer in layers for part in layer.parts(dtype)))
        _PRECOMPUTED.store(layers, x, conditions, outputs)
        return outputs[0]

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """Return the output for the input silu(gate) ∘ up, of which `gate` and `up` are kept for the backward pass."""
        dtype = self._product_dtype(gate) if torch.is_grad_enabled() and gate.device.type == "cpu" else None
        if dtype is None or gate.dtype != up.dtype:
            output: Tensor = self(nn.functional.silu(gate) * up)
            return output
        drawn = (Mask.draw(gate, p), p) if (p := self.dropout_now) else None
        product: Tensor = _GatedLoraProducts.apply(gate, up, dtype, drawn, *self.parts(dtype))
        return product

    def _product_dtype(self, x: Tensor) -> torch.dtype | None:
        """Return the dtype of the matrix products, or None where this layer is left to peft."""
        base, active = self.base_layer, self.active_adapters
        if self.merged or len(active) != 1 or type(base) is not nn.Linear or active[0] not in self.lora_A:
            return None
        name = active[0]
        if name in self.lora_variant or self.lora_B[name].bias is not None:
            return None
        if base.weight.requires_grad or (base.bias is not None and base.bias.requires_grad):
            return None
        if torch.is_autocast_enabled(x.device.type):
            return torch.get_autocast_dtype(x.device.type)
        dtype = self.lora_A[name].weight.dtype
        rounded = dtype == torch.float32 and not self.training  # encoding rounds an adapter as autocast does
        return x.dtype if base.weight.dtype == x.dtype and (dtype == x.dtype or rounded) else None

    def parts(self, dtype: torch.dtype) -> tuple[Any, ...]:
        """Return weight and bias of the base in a dtype, A, B, scaling; no A and B where adapters are off."""
        name = self.active_adapters[0]
        weight: Any = self.base_layer.weight
        bias: Any = self.base_layer.bias
        base = self.cast_weight.cast(weight, dtype), None if bias is None else bias.to(dtype)
        if self.disable_adapters:
            return *base, None, None, 0.0
        return *base, self.lora_A[name].weight, self.lora_B[name].weight, self.scaling[name]

    @property
    def dropout_now(self) -> float:
        """Probability of dropout on the adapter's input in this call."""
        if self.disable_adapters:
            return 0.0
        dropout: Any = self.lora_dropout[self.active_adapters[0]]
        return float(dropout.p) if isinstance(dropout, nn.Dropout) and dropout.training else 0.0


def use_lora_linear(model: nn.Module) -> None:
    """Give every LoRA of a model on an `nn.Linear` this arithmetic; weights and their names stay."""
    for module in model.modules():
        children = dict(module.named_children())
        for child in children.values():
            if type(child) is PeftLinear:
                child.__class__ = LoraLinear
                child.__dict__ |= {"together": [child], "cast_weight": CastWeight()}
        for names in TOGETHER:
            together = [children[name] for name in names if isinstance(children.get(name), LoraLinear)]
            for child in together:
                child.__dict__["together"] = together


class _PrecomputedOutputs(threading.local):
    """Outputs that were computed for an input together with another layer's, until their layers are called.

    `conditions` is what outputs depend on besides the input: gradients, dtype, adapters on or off, training or not.
    """

    def __init__(self) -> None:
        self.x: Tensor | None = None
        self.conditions: Conditions | None = None
        self.outputs: dict[int, Tensor] = {}

    def store(self, layers: Sequence[LoraLinear], x: Tensor, conditions: Conditions, outputs: Sequence[Tensor]) -> None:
        self.x, self.conditions = x if len(layers) > 1 else None, conditions
        self.outputs = {id(layer): output for layer, output in zip(layers[1:], outputs[1:], strict=True)}

    def pop(self, layer: LoraLinear, x: Tensor, conditions: Conditions) -> Tensor | None:
        """Return the output of a layer for this very input, or None; nothing is kept after the last one."""
        if self.x is not x or self.conditions != conditions:
            self.x, self.outputs = None, {}
            return None
        output = self.outputs.pop(id(layer), None)
        if not self.outputs:
            self.x = None
        return output


_PRECOMPUTED = _PrecomputedOutputs()


class _Saved(NamedTuple):
    """What the backward pass of a linear layer with a LoRA reads besides its input; None where there is no adapter."""

    base: Tensor
    a: Tensor | None
    up: Tensor | None
    down: Tensor | None
    positions: Tensor | None


class _LoraProducts(torch.autograd.Function):
    """Outputs of linear layers with a LoRA on one input: x Wᵀ + b + s · (x ∘ mask) Aᵀ Bᵀ for each layer.

    *LoRA: Low-Rank Adaptation of Large Language Models* (Hu et al., 2021), Eq. 3, with dropout on the adapter's input
    as in peft. `parts` holds, for each layer, frozen weight and bias in `dtype`, A, B, and s.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, dtype: torch.dtype, masks: list[tuple[Mask, float] | None], *parts: Any
    ) -> tuple[Tensor, ...]:
        saved: list[Tensor | None] = []
        outputs, factors = [], []
        with torch.autocast(x.device.type, enabled=False):
            rows, layers = _rows(x, dtype), [parts[i : i + 5] for i in range(0, len(parts), 5)]
            downs = [_empty_down(len(rows), rows.dtype, layer[2]) for layer in layers]
            for drawn, down, layer in zip(masks, downs, layers, strict=True):
                output = room(rows, len(rows), len(layer[0]))
                layer_saved, factor = _adapted(rows, drawn, down, output, *layer)
                outputs.append(_shaped(output, x))
                saved += layer_saved
                factors.append(factor)
        adapted = any(a is not None for a in saved[1::5])
        ctx.save_for_backward(rows if adapted else None, *saved)
        ctx.factors, ctx.shape, ctx.dtype, ctx.rows_dtype = factors, x.shape, x.dtype, rows.dtype
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        rows, *saved = ctx.saved_tensors
        total: Tensor | None = None
        gradients: list[Any] = []
        with torch.autocast(grads[0].device.type, enabled=False):
            for i, (grad, factor) in enumerate(zip(grads, ctx.factors, strict=True)):
                wants = ctx.needs_input_grad[0], *ctx.needs_input_grad[3 + 5 * i + 2 : 3 + 5 * i + 4]
                layer_saved = _Saved(*saved[5 * i : 5 * i + 5])
                grad = _rows(grad, ctx.rows_dtype)
                narrow, for_a, for_b = _for_factors(grad, rows, layer_saved, factor, wants)
                total = _for_input(grad, narrow, layer_saved, total) if wants[0] else None
                gradients += [None, None, for_a, for_b, None]
        for_x = None if total is None else total[: ctx.shape[:-1].numel()].to(ctx.dtype).view(ctx.shape)
        return for_x, None, None, *gradients


class _GatedLoraProducts(torch.autograd.Function):
    """`_LoraProducts` of one layer whose input is silu(gate) ∘ up, which is computed again in the backward pass.

    Of the four wide tensors that a gated feed-forward part has, two are kept.
    """

    @staticmethod
    def forward(
        ctx: Any, gate: Tensor, up: Tensor, dtype: torch.dtype, drawn: tuple[Mask, float] | None, *layer: Any
    ) -> Tensor:
        with torch.autocast(gate.device.type, enabled=False):
            output = room(gate, _row_count(gate, dtype), len(layer[0]), dtype=dtype)
            down = _empty_down(len(output), dtype, layer[2])
            act = torch.ops.aten.silu.out(gate, out=room(gate, *gate.shape))
            rows = _rows(act.mul_(up), dtype)
            layer_saved, ctx.factor = _adapted(rows, drawn, down, output, *layer, reuses_rows=True)
        ctx.save_for_backward(gate, up, *layer_saved)
        ctx.rows_dtype = rows.dtype
        return _shaped(output, gate)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        gate, up, *saved = ctx.saved_tensors
        layer_saved, wants = _Saved(*saved), (True, *ctx.needs_input_grad[6:8])
        with torch.autocast(gate.device.type, enabled=False):
            grad, act = _rows(grads[0], ctx.rows_dtype), nn.functional.silu(gate)
            rows = _rows(act * up, ctx.rows_dtype) if layer_saved.a is not None else None
            narrow, for_a, for_b = _for_factors(grad, rows, layer_saved, ctx.factor, wants, reuses_rows=True)
            del rows
            total = (
                _for_input(grad, narrow, layer_saved, None)[: gate.shape[:-1].numel()].to(gate.dtype).view(gate.shape)
            )
            for_up = act.mul_(total)
            for_gate = torch.ops.aten.silu_backward.grad_input(total.mul_(up), gate, grad_input=total)
        return for_gate, for_up, None, None, None, None, for_a, for_b, None


def _adapted(
    rows: Tensor,
    drawn: tuple[Mask, float] | None,
    down: Tensor | None,
    output: Tensor,
    base: Tensor,
    bias: Tensor | None,
    a: Tensor | None,
    b: Tensor | None,
    scaling: float,
    *,
    reuses_rows: bool = False,
) -> tuple[_Saved, float]:
    """Write the output of a layer for rows; return what its backward pass reads, and the factor of B.

    What is kept has been allocated before, so that what is not leaves no gaps below it (see `room`). With
    `reuses_rows`, dropout may change the rows.
    """
    mask, probability = drawn or (None, 0.0)
    factor = scaling / (1 - probability)
    if bias is None:
        torch.mm(rows, base.T, out=output)
    else:
        torch.addmm(bias, rows, base.T, out=output)
    up = None
    if a is not None and b is not None and down is not None:
        up = (b * factor).to(rows.dtype)
        torch.mm(_dropped(rows, mask, in_place=reuses_rows), a.to(rows.dtype).T, out=down)
        torch.addmm(output, down, up.T, out=output)
    return _Saved(base, a, up, down, None if mask is None else mask.positions), factor


def _empty_down(rows: int, dtype: torch.dtype, a: Tensor | None) -> Tensor | None:
    """Return memory for (x ∘ mask) Aᵀ; None where there is no adapter."""
    return None if a is None else a.new_empty(rows, len(a), dtype=dtype)


def _for_factors(
    grad: Tensor, rows: Tensor | None, saved: _Saved, factor: float, wants: Sequence[bool], *, reuses_rows: bool = False
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradient of (x ∘ mask) Aᵀ, and those of A and B where they are wanted."""
    if saved.a is None or saved.up is None or saved.down is None or rows is None:
        return None, None, None
    _, wants_a, wants_b = wants
    narrow, for_a, for_b = grad @ saved.up, None, None
    if wants_b:
        for_b = (saved.down.T @ grad).T.to(saved.a.dtype) * factor
    if wants_a:
        mask = None if saved.positions is None else Mask(saved.positions)
        for_a = (narrow.T @ _dropped(rows, mask, in_place=reuses_rows)).to(saved.a.dtype)
    return narrow, for_a, for_b


def _for_input(grad: Tensor, narrow: Tensor | None, saved: _Saved, total: Tensor | None) -> Tensor:
    """Return the gradient of the rows that are read, added to `total` if it is given."""
    total = grad @ saved.base if total is None else torch.addmm(total, grad, saved.base, out=total)
    if saved.a is None or narrow is None:
        return total
    if saved.positions is None:
        return torch.addmm(total, narrow, saved.a.to(grad.dtype), out=total)
    return total.add_(Mask(saved.positions).apply_(narrow @ saved.a.to(grad.dtype)))


def _dropped(rows: Tensor, mask: Mask | None, *, in_place: bool) -> Tensor:
    if mask is None:
        return rows
    return mask.apply_(rows) if in_place else mask.apply(rows)


def _shaped(output: Tensor, like: Tensor) -> Tensor:
    """Return rows of outputs, without those that are padding, in the shape of an input; models may change it."""
    shape = (*like.shape[:-1], output.shape[-1])
    shaped: Tensor = torch.ops.aten._unsafe_view(output[: like[..., 0].numel()], shape)
    return shaped


def _rows(states: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `(…, width)` states as rows of a dtype; on a CPU in bfloat16 with rows of zeros up to a common number.

    There, a matrix product of a size that is new costs about a millisecond more, in which code for it is generated.
    """
    rows = states.reshape(-1, states.shape[-1])
    count = _row_count(states, dtype)
    if count == len(rows):
        return rows.to(dtype)
    padded = rows.new_empty(count, rows.shape[-1], dtype=dtype)
    padded[: len(rows)].copy_(rows)
    padded[len(rows) :].zero_()
    return padded


def _row_count(states: Tensor, dtype: torch.dtype) -> int:
    """Return the number of rows of `_rows`."""
    count = states.shape[:-1].numel()
    return common_size(count) if dtype == torch.bfloat16 and states.device.type == "cpu" else count


def common_size(count: int) -> int:
    """Return the smallest of few sizes that holds `count` rows: at most a sixteenth more.

    >>> [common_size(n) for n in (5, 100, 257, 272)]
    [16, 100, 272, 272]
    """
    step = max(1, 1 << max(count - 1, 1).bit_length() - 1 >> 4) if count > 16 else 16
    return -(-count // step) * step
