"""The layers of a model without its head: find them, and replace modules in a shallow copy."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import nn

LAYERS = ("layers", "h", "encoder.layer", "transformer.layer", "decoder.layers")


def path_of_layers(inner: Any) -> str:
    """Return where a model without its head keeps its layers, as a dotted path.

    Raises:
        ValueError: under no name known here.
    """
    for path in LAYERS:
        if has_module(inner, path):
            return path
    raise ValueError(f"{type(inner).__name__} has no layers under a name known here ({', '.join(LAYERS)})")


def has_module(module: Any, path: str) -> bool:
    """Return whether a module has one of that dotted path."""
    try:
        module.get_submodule(path)
    except AttributeError:
        return False
    return True


def layers_of(inner: Any) -> list[nn.Module]:
    """Return the layers of a model without its head."""
    return list(inner.get_submodule(path_of_layers(inner)))


def with_module(module: Any, path: str, part: nn.Module) -> Any:
    """Return a shallow copy with `part` at a dotted path; all other modules and weights are the same."""
    copied = copy.copy(module)
    copied._modules = dict(module._modules)
    name, _, rest = path.partition(".")
    copied._modules[name] = with_module(getattr(module, name), rest, part) if rest else part
    return copied


def with_layers(inner: Any, layers: Sequence[nn.Module]) -> Any:
    """Return a shallow copy of a model without its head, with other layers."""
    return with_module(inner, path_of_layers(inner), nn.ModuleList(layers))


def view(inner: Any, *, is_causal: bool, num_layers: int | None = None, library_masks: bool = True) -> Any:
    """Return the same modules and weights under another configuration: causal or not, all layers or the first few.

    Without `library_masks`, the library makes no mask. Where it is given none, it would look for packed texts in the
    positions, and wait for the device; it makes none for a kernel that it does not know, while layers keep theirs.

    The library's `is_causal` argument rewrites the shared configuration for the time of a call, which two threads
    on one model get wrong; a shallow copy with its own configuration does not.
    """
    config = copy.copy(inner.config)
    config.is_causal = is_causal
    if not library_masks:
        config._attn_implementation = "embrew_without_masks"
    if num_layers is not None:
        config.num_hidden_layers = num_layers
    path = next((path for path in LAYERS if "." in path and has_module(inner, path)), "")
    if path or (num_layers is not None and num_layers < len(layers_of(inner))):
        copied = with_layers(inner, layers_of(inner)[:num_layers])
    else:
        copied = copy.copy(inner)
    copied.config = config
    if path:  # OPT's decoder has a separate configuration
        getattr(copied, path.partition(".")[0]).config = config
    return copied


class Wrapper(nn.Module):
    """A module around another one, which has all attributes of that one."""

    def __init__(self, wrapped: nn.Module) -> None:
        super().__init__()
        self.wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        """Return what a model asks of its layer, such as whether its attention has a sliding window."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("wrapped"), name)
