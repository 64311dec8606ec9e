"""Packed rows: a batch without padding, where a model is measured to keep the texts of a row apart.

Registered kernels: `varlen` packs on CUDA, by flash-attention where it is installed and takes the model's dtype and
head width, else by FlexAttention, else not at all; `varlen_fa` and `varlen_flex` name one of them.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from functools import cache
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from embrew.modeling.model.attention import VARLEN, VARLEN_FLASH, VARLEN_FLEX, Attention, by_layer
from embrew.modeling.model.compiled import is_compiled
from embrew.modeling.model.dropout import attention_dropout
from embrew.modeling.model.flash import Calls
from embrew.modeling.model.flex import BLOCK, block_mask
from embrew.modeling.model.kernel import use
from embrew.modeling.model.packed import Layout, PackedRows, packable
from embrew.modeling.model.packed_check import keeps_apart
from embrew.modeling.model.positions import first_position
from embrew.modeling.model.reach import key_of, local_windows
from embrew.modeling.text.tokens import Tokens

Kernel = Literal["flash", "flex"]
Padded = Callable[[Tensor, Tokens], Tensor]
KERNELS: dict[str, tuple[Kernel, ...]] = {
    VARLEN: ("flash", "flex"),
    VARLEN_FLASH: ("flash",),
    VARLEN_FLEX: ("flex",),
}
logger = logging.getLogger(__name__)
_VERIFIED: dict[Any, bool] = {}
_WINDOWS: WeakKeyDictionary[nn.Module, set[int]] = WeakKeyDictionary()


def use_varlen(inner: Any) -> None:
    """Switch a model on CUDA with the library's sdpa, which is the default, to `varlen`."""
    if inner.device.type == "cuda":
        use(inner, VARLEN)


def kernels_of(inner: Any) -> tuple[Kernel, ...]:
    """Return the kernels that may pack a model's rows, the first choice first."""
    name = str(inner.config._attn_implementation)
    if name not in KERNELS or (name == VARLEN and inner.device.type != "cuda"):
        return ()  # FlexAttention on a CPU is slower than padding, and has no backward pass
    if hasattr(next(inner.parameters()), "full_tensor"):  # sharded: all processes must make the same forward passes
        return ()
    if is_compiled(inner):  # which was not tried with packed rows
        return ()
    return tuple(kernel for kernel in KERNELS[name] if kernel != "flash" or has_flash())


@cache
def has_flash() -> bool:
    """Return whether the package flash-attn is installed."""
    return importlib.util.find_spec("flash_attn") is not None


def packed_rows(
    inner: Any, tokens: Tokens, attention: Attention, padded: Padded, *, prefix: int = 0
) -> PackedRows | None:
    """Return a batch as one packed row; None where its rows stay padded.

    Args:
        inner: the model without its head.
        tokens: a padded batch.
        attention: the pattern.
        padded: from embeddings and tokens of a padded batch to its states under the pattern, for the check.
        prefix: positions before every text whose keys and values are kept.
    """
    kernels = kernels_of(inner)
    if not kernels or not packable(tokens):
        return None
    layout = Layout.of(tokens.host.segment_ids, prefix)
    if layout.total in (0, layout.shape[0] * layout.shape[1]):
        return None  # nothing but padding, or none
    for kernel in kernels:
        if kernel == "flex" and inner.training and attention_dropout(inner):
            continue  # it has none
        rows = arranged(inner, kernel, layout, attention)
        if rows is not None and _verified(inner, kernel, attention, layout, padded):
            return rows
    return None


def arranged(inner: Any, kernel: Kernel, layout: Layout, attention: Attention) -> PackedRows | None:
    """Return a packed row with what a kernel is called with; None where it cannot express the pattern."""
    device = inner.device
    arguments: dict[str, Any] = {}
    width = layout.total
    if kernel == "flash":
        calls = Calls.of(layout, attention, device, getattr(inner.config, "sliding_window", None))
        if calls is None:
            return None
        # four dimensions, so that the library makes no mask, neither of the positions nor of anything else
        arguments = {"attention_mask": torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device), "calls": calls}
    else:
        filled = layout.filled(BLOCK)
        width = filled.total
        arguments["attention_mask"] = by_layer(
            inner.config, lambda window: block_mask(filled, attention, device, window)
        )
    return PackedRows.of(layout, first_position(inner), device, arguments, width)


def _verified(inner: Any, kernel: Kernel, attention: Attention, layout: Layout, padded: Padded) -> bool:
    """Return whether packed rows were measured to equal padded ones, once per model class, kernel and conditions."""
    longest = int(layout.lengths.max()) + layout.prefix
    if inner not in _WINDOWS:
        _WINDOWS[inner] = local_windows(inner.config.to_dict())
    beyond = max((window for window in _WINDOWS[inner] if window < longest), default=0)
    device = inner.device.type
    cast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    sizes = tuple(getattr(inner.config, name, None) for name in ("hidden_size", "num_attention_heads", "head_dim"))
    # a gradient cache computes batches twice, first without gradients, and both times in the same way
    gradients = torch.is_grad_enabled() or (inner.training and not torch.is_inference_mode_enabled())
    conditions = inner.dtype, cast, device, gradients, bool(layout.prefix)
    key = key_of(inner, kernel, attention, sizes, beyond, conditions)
    if key not in _VERIFIED:

        def pack(probe: Tokens, count: int) -> PackedRows | None:
            return arranged(inner, kernel, Layout.of(probe.host.segment_ids, count), attention)

        further = beyond + 4 if beyond else 0
        # what is compiled for one shape is compiled again, for any shape, when the second comes
        more = (0, 2 * BLOCK) if kernel == "flex" else (0,)
        how: dict[str, Any] = {"longest": further, "shares": bool(layout.prefix), "more": more}
        with torch.set_grad_enabled(gradients):
            _VERIFIED[key] = keeps_apart(inner, attention, padded, pack, **how)
        if not _VERIFIED[key]:
            logger.warning(
                "%s: rows packed by %s do not give the states of padded rows (%s attention%s), so it is not used",
                type(inner).__name__,
                "flash-attention" if kernel == "flash" else "FlexAttention",
                attention.mode,
                " with gradients" if gradients else "",
            )
    return _VERIFIED[key]
