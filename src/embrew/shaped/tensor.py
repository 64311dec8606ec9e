"""A tensor without values that PyTorch takes for one on a CPU, so that autocast and autograd treat it as such."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from embrew.shaped.ledger import Ledger

MADE = {
    torch.zeros,
    torch.empty,
    torch.ones,
    torch.full,
    torch.rand,
    torch.randn,
    torch.arange,
    torch.linspace,
    torch.eye,
}
M = TypeVar("M", bound=nn.Module)
_counted: list[Ledger] = []


class Shaped(Tensor):
    """A tensor of a shape and a dtype, without values.

    It wraps a meta tensor. Reading a value gives 0. Operations with an ordinary tensor, on the CPU, give a `Shaped`;
    ordinary integers and masks, by which rows are chosen, keep their values.
    """

    inside: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls: type[Shaped], inside: Tensor) -> Shaped:
        """Wrap a meta tensor."""
        how: dict[str, Any] = {"strides": inside.stride(), "storage_offset": inside.storage_offset()}
        made: Shaped = Tensor._make_wrapper_subclass(
            cls, inside.shape, dtype=inside.dtype, device=torch.device("cpu"), requires_grad=False, **how
        )
        made.inside = inside
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Shaped({tuple(self.shape)}, {self.dtype})"

    def data_ptr(self) -> int:
        """Return a number that tensors of the same storage share."""
        return int(self.inside.untyped_storage()._cdata)

    def tolist(self) -> Any:
        """Return zeros."""
        return _zeros(list(self.shape))

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        made = Shaped(torch.empty_like(self.inside))
        return torch.nn.Parameter(made, requires_grad=self.requires_grad) if hasattr(self, "_is_param") else made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operation on shapes, and count it."""
        if func is torch.ops.aten._local_scalar_dense.default:
            return torch.zeros((), dtype=args[0].dtype).item()
        given = [_inside(value) for value in args]
        named = {name: _inside(value) for name, value in (kwargs or {}).items()}
        if "device" in named:
            named["device"] = torch.device("meta")
        found = func(*given, **named)
        ledger = _counted[-1] if _counted else None
        if ledger is not None:
            ledger.computed(func, given, named, found)
        written = _written(func)
        if written is not None:
            place, name = written
            return args[place] if place < len(args) else (kwargs or {})[name]

        def outside(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            if ledger is not None:
                ledger.allocated(value)
            return Shaped(value)

        return type(found)(map(outside, found)) if isinstance(found, tuple | list) else outside(found)


def shaped(tensor: Tensor) -> Tensor:
    """Return a tensor without values in the shape of another, a parameter if that is one."""
    if isinstance(tensor, Shaped):
        return tensor
    made = Shaped(torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta"))
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    return torch.nn.Parameter(made, requires_grad=tensor.requires_grad) if is_parameter else made


def shaped_modules(module: M) -> M:
    """Return a copy of a module whose parameters and buffers have no values; the module itself stays."""
    tensors = (*module.parameters(), *module.buffers())
    return copy.deepcopy(module, {id(tensor): shaped(tensor) for tensor in tensors})


def shaped_of(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return a new tensor without values, which is counted."""
    made = torch.empty(tuple(shape), dtype=dtype, device="meta")
    if _counted:
        _counted[-1].allocated(made)
    return Shaped(made)


def has_values(of: Tensor | nn.Module) -> bool:
    """Return whether a tensor, or a model by its first weight, has values that can be read."""
    tensor = of if isinstance(of, Tensor) else next(of.parameters())
    return not (isinstance(tensor, Shaped) or tensor.is_meta)


def kind_of(tensor: Tensor) -> str:
    """Return the type of the device on which a tensor is computed; of one without values, the one that is planned."""
    return _counted[-1].kind if isinstance(tensor, Shaped) and _counted else tensor.device.type


def is_counting() -> bool:
    """Return whether a computation is counted, which one process does alone."""
    return bool(_counted)


@contextmanager
def counting(kind: str) -> Iterator[Ledger]:
    """Count what operations on `Shaped` tensors hold and compute, as on a device type (`cpu`, `cuda`).

    Tensors that are made meanwhile have no values if they are of floating-point numbers.
    """
    ledger = Ledger(kind)
    _counted.append(ledger)
    try:
        with _Making():
            yield ledger
    finally:
        _counted.remove(ledger)


class _Making(TorchFunctionMode):
    """Makes tensors of floating-point numbers without values, in forward passes; those of a generator may be kept."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in MADE and "out" not in kwargs and kwargs.get("generator") is None:
            made = func(*args, **{**kwargs, "device": "meta", "pin_memory": False, "requires_grad": False})
            if made.dtype.is_floating_point:
                _counted[-1].allocated(made)
                return Shaped(made)
        return func(*args, **kwargs)


def fused_attention(
    query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool, scale: float | None = None
) -> Tensor:
    """Return attention `(batch, heads, tokens, width)` that keeps its inputs, its output and a number per row.

    So does flash-attention on a GPU, with dropout too, and for keys that several heads share.
    """
    if torch.is_autocast_enabled("cpu"):
        query, key, value = (states.to(torch.get_autocast_dtype("cpu")) for states in (query, key, value))
    found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, is_causal, scale=scale)
    return found[0]


def _zeros(shape: list[int]) -> Any:
    return 0.0 if not shape else [_zeros(shape[1:]) for _ in range(shape[0])]


def _inside(value: Any) -> Any:
    if isinstance(value, Shaped):
        return value.inside
    if isinstance(value, list | tuple):
        return [_inside(one) for one in value]
    return value.to("meta") if isinstance(value, Tensor) else value


@cache
def _written(func: Any) -> tuple[int, str] | None:
    """Return position and name of the argument that an operation writes to and returns; None: it returns others."""
    if not any(out.alias_info is not None and out.alias_info.is_write for out in func._schema.returns):
        return None
    arguments = enumerate(func._schema.arguments)
    return next((i, one.name) for i, one in arguments if one.alias_info is not None and one.alias_info.is_write)
