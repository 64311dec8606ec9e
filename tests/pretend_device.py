"""A pretended accelerator: tensors that report another device than the CPU, and a count of the waits for it.

A `There` holds its numbers in a CPU tensor and says `device="meta"`, so that code takes the way it takes with a GPU.
As on a GPU, operands on two devices are an error, and reading a number makes the host wait, which is counted.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map

DEVICE = torch.device("meta")
aten = torch.ops.aten
READS = {  # operations whose results, or the shapes of whose results, the host must wait for
    aten._local_scalar_dense.default: "item",
    aten.nonzero.default: "nonzero",
    aten.equal.default: "equal",
    aten.masked_select.default: "masked_select",
    aten.repeat_interleave.Tensor: "repeat_interleave",
    aten.bincount.default: "bincount",
    aten._unique2.default: "unique",
    aten.unique_dim.default: "unique",
    aten.unique_consecutive.default: "unique",
    aten._linalg_eigh.default: "eigh",  # the library checks whether it converged
    aten._linalg_svd.default: "svd",
    aten.linalg_cholesky_ex.default: "cholesky",
}


class There(Tensor):
    """A tensor on the pretended device."""

    here: Tensor

    @staticmethod
    def __new__(cls, here: Tensor) -> There:
        made = Tensor._make_wrapper_subclass(
            cls,
            here.size(),
            strides=here.stride(),
            storage_offset=here.storage_offset(),
            dtype=here.dtype,
            device=DEVICE,
            requires_grad=False,
        )
        made.here = here
        return made

    def __repr__(self, **options: Any) -> str:
        return f"There({self.here!r})"

    def tolist(self) -> Any:
        """Return the numbers as Python's, after a copy to the CPU."""
        return self.cpu().tolist()

    def numpy(self, *args: Any, **options: Any) -> Any:
        """Raise, as on a GPU."""
        raise TypeError("can't convert a tensor of another device to numpy; use Tensor.cpu() first")

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(function, args, kwargs or {}, Counter())


class _Constructors(TorchFunctionMode):
    """`torch.tensor` on the pretended device: made on the CPU, then copied, as on a GPU."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None:
            device = kwargs.pop("device")
            return function(*args, **kwargs).to(device)
        return function(*args, **kwargs)


class Waits(TorchDispatchMode):
    """Counts, by kind, how often the host waited for the pretended device."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.operations = 0

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += 1
        return _run(function, args, kwargs or {}, self.counts)


def _run(function: Any, args: Any, kwargs: dict[str, Any], counts: Counter[str]) -> Any:
    """Run an operation on the numbers; its results are on the device where an operand is, or that is asked for."""
    tensors = [one for one in tree_iter((args, kwargs)) if isinstance(one, Tensor)]
    there = any(isinstance(one, There) for one in tensors)
    asked = kwargs.get("device")
    target = there if asked is None else torch.device(asked).type == "meta"
    if asked is not None and torch.device(asked).type == "meta":
        kwargs = {**kwargs, "device": torch.device("cpu")}
    kwargs.pop("pin_memory", None) if there or target else None
    copies = function in (aten._to_copy.default, aten.copy_.default)
    if there and not copies:
        _check_devices(function, tensors, counts)
        if function in READS:
            counts[READS[function]] += 1
    if function is aten._to_copy.default and there != target:
        counts["download" if there else "upload"] += not (kwargs.get("non_blocking") and target)
    if function is aten.copy_.default and isinstance(args[0], There) != isinstance(args[1], There):
        counts["download" if isinstance(args[1], There) else "upload"] += not (args[2:] and args[2])
    inner = tree_map(lambda one: one.here if isinstance(one, There) else one, (args, kwargs))
    found = function(*inner[0], **inner[1])
    if (function._schema.is_mutable and not copies) or function is aten.copy_.default:
        known = {id(one.here): one for one in tensors if isinstance(one, There)}
        return tree_map(
            lambda one: known.get(id(one), There(one) if target and isinstance(one, Tensor) else one), found
        )
    if function is aten._local_scalar_dense.default or not target:
        return found
    return tree_map(lambda one: There(one) if isinstance(one, Tensor) else one, found)


def _check_devices(function: Any, tensors: list[Tensor], counts: Counter[str]) -> None:
    """Raise where an operand is on the CPU; single numbers may be, and indices, which the library moves first."""
    for one in tensors:
        if isinstance(one, There) or one.ndim == 0:
            continue
        if function in (
            aten.index.Tensor,
            aten.index_put_.default,
            aten.index_put.default,
            aten._index_put_impl_.default,
        ):
            counts["upload"] += 1
            continue
        raise RuntimeError(f"{function}: expected all tensors to be on the same device, got one on {one.device}")
    if function in (aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default):
        counts["mask"] += any(one.dtype == torch.bool for one in tensors[1:] if isinstance(one, There) and one.ndim)


def move(module: nn.Module) -> None:
    """Move the weights of a module to the pretended device."""
    for part in module.modules():
        for name, weight in part._parameters.items():
            if weight is not None and not isinstance(weight, There):
                made = nn.Parameter(There(weight.detach().clone()), requires_grad=weight.requires_grad)
                part._parameters[name] = made
        for name, buffer in part._buffers.items():
            if buffer is not None and not isinstance(buffer, There):
                part._buffers[name] = There(buffer.clone())


@contextlib.contextmanager
def counted() -> Iterator[Waits]:
    """Count the waits for the pretended device; it has random states, and no autocast."""
    autocast = torch.autocast

    def without(kind: str, *args: Any, **options: Any) -> Any:
        return contextlib.nullcontext() if kind == "meta" else autocast(kind, *args, **options)

    generator = SimpleNamespace(
        get_rng_state=lambda device=None: torch.get_rng_state(), set_rng_state=lambda state, device=None: None
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch, "autocast", without))
        stack.enter_context(mock.patch.object(torch, "inference_mode", torch.no_grad))  # which takes no subclasses
        stack.enter_context(mock.patch.object(torch, "is_autocast_enabled", return_value=False))
        stack.enter_context(mock.patch.object(torch, "get_autocast_dtype", return_value=torch.bfloat16))
        stack.enter_context(mock.patch.object(torch, "get_device_module", return_value=generator))
        stack.enter_context(mock.patch.object(torch.random, "fork_rng", return_value=contextlib.nullcontext()))
        waits = stack.enter_context(Waits())
        stack.enter_context(_Constructors())
        yield waits
