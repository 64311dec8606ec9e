"""Detect changes to a model: its weights, its settings, its hooks, and training in between."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules import module as torch_module
from torch.optim.optimizer import register_optimizer_step_post_hook
from transformers import PreTrainedConfig

SAMPLED = 256  # elements per tensor whose values are compared, evenly spaced from the first on
TAIL = 32  # further ones, up to the last element
PLAIN = frozenset((str, int, float, bool, bytes, complex, type(None), torch.dtype, torch.device))
TORCH = frozenset(vars(nn.Module()))  # what torch itself keeps in every module
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class _Steps:
    """Number of optimiser steps in this process, of any optimiser of torch."""

    taken = 0


def _count(*_: Any) -> None:
    _Steps.taken += 1


register_optimizer_step_post_hook(_count)  # also called for fused optimisers, which torch's count of writes misses


def fingerprint(model: nn.Module) -> tuple[Any, ...] | None:
    """Return a value that stays equal as long as nothing changed that the model's outputs depend on.

    A change is an optimiser step in this process (of any model), a write into a tensor, a replaced or moved tensor, a
    module or an attribute of a module or configuration that was replaced (training mode, adapters, scales), a hook.

    A tensor is known by its storage, which a weak reference keeps from being mistaken for a later one at the same
    place, by torch's count of writes into it, and by the values of some of its elements (`SAMPLED` and `TAIL`). These
    show what torch does not count: writes through `parameter.data` and by kernels of other libraries. Of such writes,
    those into a few elements only may be missed; `Prefixes.forget` is for them.

    Returns:
        None where it is unknown: tensors of inference mode have no count, sharded ones have no storage,
        and what a forward hook does may depend on anything (hooks of transformers itself do not change outputs).
    """
    modules = _modules_of(model)
    hooks = _hooks_of(modules)
    if hooks is None:
        return None
    reader = _Attributes()
    settings = [reader.of(module) for module in modules]
    weights = tensors_fingerprint(chain(_tensors_of(modules), reader.tensors))
    return None if weights is None else (_Steps.taken, hooks, settings, weights)


def weights_fingerprint(model: nn.Module) -> tuple[Any, ...] | None:
    """Return the part of `fingerprint` that is about parameters and buffers; None where it is unknown."""
    return tensors_fingerprint(_tensors_of(_modules_of(model)))


def _modules_of(model: nn.Module) -> list[nn.Module]:
    """Return `model.modules()`, several times as fast."""
    found, waiting = {id(model): model}, [model]
    while waiting:
        for child in waiting.pop()._modules.values():
            if child is not None and id(child) not in found:
                found[id(child)] = child
                waiting.append(child)
    return list(found.values())


def _tensors_of(modules: Iterable[nn.Module]) -> Iterator[Tensor]:
    for module in modules:
        for tensors in (module._parameters, module._buffers):
            if tensors:
                yield from (tensor for tensor in tensors.values() if tensor is not None)


def tensors_fingerprint(tensors: Iterable[Tensor]) -> tuple[Any, ...] | None:
    """Return a value that stays equal as long as no tensor is written to or replaced; None if it is unknown."""
    found: list[Any] = []
    samples: dict[tuple[torch.device, int], list[Tensor]] = {}
    for tensor in tensors:
        if type(tensor.data) is not Tensor or tensor.is_inference() or tensor.is_meta:
            return None
        storage = StorageWeakRef(tensor.untyped_storage())
        found.append((storage, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, tensor._version))
        if tensor.numel():
            samples.setdefault((tensor.device, tensor.element_size()), []).extend(_sample(tensor.detach()))
    digest = hashlib.blake2b()
    for parts in samples.values():  # one copy to the CPU per device and width
        digest.update(torch.cat(parts).cpu().numpy().tobytes())
    return (*found, digest.digest())


def _sample(tensor: Tensor) -> list[Tensor]:
    """Return evenly spaced elements of a tensor, and some up to its last one, as integers; views where possible."""
    count = tensor.numel()
    if not tensor.is_contiguous():  # a transposed one is after this; of others a copy is sampled
        tensor = tensor.permute(sorted(range(tensor.ndim), key=tensor.stride().__getitem__, reverse=True)).contiguous()
    if count <= SAMPLED + TAIL:
        return [_as_integers(tensor.reshape(-1))]
    step = max(count // SAMPLED - 1, 1)  # not a multiple of a power of two, or all were of a few columns
    left = count - SAMPLED * step  # after the last of these, less than SAMPLED + step
    rest = max(left // TAIL, 1)
    first = tensor.storage_offset() + count - 1 - (TAIL - 1) * rest
    return [
        _as_integers(tensor.as_strided((SAMPLED,), (step,))),
        _as_integers(tensor.as_strided((TAIL,), (rest,), first)),
    ]


def _as_integers(sample: Tensor) -> Tensor:
    integer = INTEGERS.get(sample.element_size())
    return sample.contiguous().view(torch.uint8) if integer is None else sample.view(integer)


def _hooks_of(modules: list[nn.Module]) -> tuple[Any, ...] | None:
    """Return the numbers of all forward hooks, which torch never gives twice; None if one is not of transformers."""
    found: list[Any] = []
    everywhere = (torch_module._global_forward_pre_hooks, torch_module._global_forward_hooks)
    of_modules = [hooks for m in modules for hooks in (m._forward_pre_hooks, m._forward_hooks) if hooks]
    for hooks in (*everywhere, *of_modules):
        if hooks:
            if not all(str(getattr(hook, "__module__", "")).startswith("transformers.") for hook in hooks.values()):
                return None
            found.append(tuple(hooks))
    return tuple(found)


class _Same:
    """An object that equals itself alone, not held in memory."""

    def __init__(self, value: Any) -> None:
        self.refer: Callable[[], Any]
        try:
            self.refer = weakref.ref(value)
        except TypeError:
            self.refer = lambda: value

    def __eq__(self, other: object) -> bool:
        mine = self.refer()
        return isinstance(other, _Same) and mine is not None and mine is other.refer()

    __hash__ = None  # type: ignore[assignment]


class _Attributes:
    """Read attributes of modules by value; a configuration that many share is read once.

    Attributes:
        tensors: those found among them, which are neither parameters nor buffers.
    """

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self._configs: dict[int, Any] = {}

    def of(self, module: nn.Module) -> tuple[Any, ...]:
        """Return class, mode and own attributes of a module."""
        found = vars(module)
        own = {name: self._read(found[name]) for name in found.keys() - TORCH}
        return (type(module), module.training, own)

    def _read(self, value: Any) -> Any:
        if type(value) in PLAIN:
            return value
        if isinstance(value, dict):
            return [(str(key), self._read(item)) for key, item in value.items()]
        if isinstance(value, list | tuple):
            return [self._read(item) for item in value]
        if isinstance(value, set | frozenset) and all(type(item) in PLAIN for item in value):
            return frozenset(value)
        if isinstance(value, Tensor):
            self.tensors.append(value)
            return None
        if isinstance(value, PreTrainedConfig):
            if id(value) not in self._configs:
                self._configs[id(value)] = self._read(vars(value))
            return self._configs[id(value)]
        return _Same(value)
