"""Bytes that a computation holds at a time, and its floating-point operations."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count


class Ledger:
    """What a computation on tensors without values would take.

    Attributes:
        kind: device type that it is planned for.
        now: bytes of all tensors that are held, without the ones that were there before.
        peak: the largest value of `now`.
        flop: floating-point operations of matrix products and attention.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.now = self.peak = self.flop = 0
        self._held: dict[int, int] = {}
        self._before: set[int] = set()

    def is_there(self, tensors: Iterable[Tensor]) -> None:
        """Leave the storages of meta tensors out of the count, and of all their views: they were there before."""
        self._before |= {tensor.untyped_storage()._cdata for tensor in tensors}

    def allocated(self, tensor: Tensor) -> None:
        """Count the storage of a meta tensor, until it is freed."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._held or key in self._before:
            return
        self._held[key] = storage.nbytes()
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._freed, key).atexit = False

    def computed(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
        """Count the operations of a call on meta tensors."""
        name = func._schema.name
        if name in ATTENTION:
            self.flop += ATTENTION[name](*args)
        elif (formula := flop_registry.get(func._overloadpacket)) is not None:
            self.flop += formula(*args, **kwargs, out_val=out)

    def _freed(self, key: int) -> None:
        self.now -= self._held.pop(key)


def _forward(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> int:
    return int(sdpa_flop_count(query.shape, _like(query, key), _like(query, value)))


def _backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any) -> int:
    return int(sdpa_backward_flop_count(grad.shape, query.shape, _like(query, key), _like(query, value)))


def _like(query: Tensor, key: Tensor) -> tuple[int, ...]:
    """Return the shape of keys, or values, that several heads of the query share, as if each had its own."""
    return (query.shape[0], query.shape[1], *key.shape[2:])


ATTENTION: dict[str, Callable[..., int]] = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": _forward,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _backward,
}
