"""What one side of a ratio computes in a call, counted, and what matrix products reach on this core."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm)


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a call computes; None: not counted, since nothing of it runs in torch.

    Attributes:
        gflop: 1e9 floating-point operations of its matrix products. Decompositions are not counted, and on a CPU torch
            counts no attention.
        dtype: of most of them.
        passes: forward passes through the layers of a model, repeated ones included.
        positions: of those passes, padding included.
        tokens: of those positions, the ones that are no padding, where the benchmark says how many.
        head_rows: rows multiplied by the matrix of the vocabulary.
    """

    gflop: float | None = None
    dtype: str | None = None
    passes: int | None = None
    positions: int | None = None
    tokens: int | None = None
    head_rows: int | None = None

    def at(self, seconds: float, ceilings: Mapping[str, float]) -> dict[str, Any]:
        """Return what was counted, the rate at which it was computed, and its share of the ceiling of its dtype."""
        found = {name: value for name, value in asdict(self).items() if value is not None}
        if self.gflop is not None and self.dtype is not None:
            found["gflop_per_s"] = self.gflop / seconds
            if self.dtype in ceilings:
                found["share_of_ceiling"] = found["gflop_per_s"] / ceilings[self.dtype]
        return found


def in_words(found: Mapping[str, Any]) -> str:
    """Return what `Work.at` gives, in words."""
    parts = []
    if "gflop" in found:
        parts.append(f"{_short(found['gflop'])} GFLOP in {found['dtype']}")
    if "passes" in found:
        padding = f" for {found['tokens']:,} tokens" if "tokens" in found else ""
        parts.append(f"{found['passes']} forward passes, {found['positions']:,} positions{padding}")
    if "head_rows" in found:
        parts.append(f"{found['head_rows']:,} rows to the head")
    if "gflop_per_s" in found:
        share = f", {100 * found['share_of_ceiling']:.0f} % of the ceiling" if "share_of_ceiling" in found else ""
        parts.append(f"{_short(found['gflop_per_s'])} GFLOP/s{share}")
    return "; ".join(parts)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def ceilings(size: int = 512, calls: int = 30) -> dict[str, float]:
    """Return the best rate of a square matrix product on this core, now, in GFLOP/s, by dtype."""
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        a, b = (torch.randn(size, size).to(dtype) for _ in range(2))
        taken = []
        for _ in range(calls):
            start = time.perf_counter()
            a @ b
            taken.append(time.perf_counter() - start)
        found[str(dtype).removeprefix("torch.")] = 2e-9 * size**3 / min(taken)
    return found


def count(step: Callable[[], Any], tokens: int | None = None) -> Work:
    """Call a step once, and count what it computes in torch.

    Args:
        step: the call.
        tokens: positions of its forward passes that are no padding.
    """
    seen = _Seen()
    handle = register_module_forward_pre_hook(seen.module)
    try:
        with seen:
            step()
    finally:
        handle.remove()
    return Work(
        gflop=seen.flop / 1e9 or None,
        dtype=max(seen.dtypes, key=seen.dtypes.__getitem__) if seen.dtypes else None,
        passes=seen.passes or None,
        positions=seen.positions or None,
        tokens=tokens,
        head_rows=seen.head_rows or None,
    )


class _Seen(TorchDispatchMode):
    """Counts operations of products, and of modules the calls of every model's first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.flop = self.passes = self.positions = self.head_rows = self.vocabulary = 0
        self.dtypes: Counter[str] = Counter()
        self.known: set[int] = set()  # modules that were looked at
        self.first: set[int] = set()  # layers

    def module(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Note a call of a module, before it runs."""
        if id(module) not in self.known:  # of a model whose forward is called directly, some outer module is seen
            self.known |= {id(one) for one in module.modules()}
            for name, child in module.named_modules():
                if name.rsplit(".")[-1] in ("layers", "layer") and isinstance(child, nn.ModuleList) and len(child):
                    self.first.add(id(child[0]))
        if isinstance(module, nn.Embedding):
            self.vocabulary = max(self.vocabulary, module.num_embeddings)
        if id(module) in self.first and inputs:
            self.passes += 1
            self.positions += inputs[0].shape[:-1].numel()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, or what it consists of where torch has no formula for it, and count it."""
        kwargs = kwargs or {}
        formula = flop_registry.get(func._overloadpacket)
        if formula is None and func is not torch.ops.prim.device.default:
            with self:
                found = func.decompose(*args, **kwargs)
            if found is not NotImplemented:
                return found
        out = func(*args, **kwargs)
        if formula is not None:
            operations = formula(*args, **kwargs, out_val=out)
            self.flop += operations
            self.dtypes[str(args[0].dtype).removeprefix("torch.")] += operations
        if func._overloadpacket in PRODUCTS:
            left, right = args[-2:]
            if right.shape[-1] == self.vocabulary and right.stride(-2) == 1:  # the transposed weight, and no gradient
                self.head_rows += left.shape[:-1].numel()
        return out
