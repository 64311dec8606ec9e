"""Running a model's layers over labelled tokens: the pass, a view of the model under another configuration, taps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from embrew.modeling.attention import Attention
from embrew.modeling.tokens import Segment, Tokens

FINAL_NORMS = ("norm", "final_layer_norm", "final_layernorm", "ln_f")


def write_soft(embedded: Tensor, tokens: Tokens) -> Tensor:
    """Write `tokens.soft` into the SOFT positions of `(batch, tokens, hidden)` embeddings."""
    if tokens.soft is None:
        return embedded
    places = tokens.where(Segment.SOFT)[..., None]
    return embedded.masked_scatter(places, tokens.soft.to(embedded.dtype))


def forward(inner: Any, embedded: Tensor, tokens: Tokens, attention: Attention, num_layers: int | None) -> Tensor:
    """Run the layers under an attention pattern; the model itself is not touched, so threads may run side by side."""
    if num_layers is not None and not 1 <= num_layers <= len(inner.layers):
        raise ValueError(f"num_layers={num_layers}; choose from 1 to {len(inner.layers)}")
    if attention.is_causal is None or tokens.document_ids is not None:
        mask = attention.mask(tokens, inner.config, embedded.dtype)
    elif attention.is_causal:
        mask = None  # padding is on the right, where no real position looks; kernels are faster without a mask
    else:
        mask = tokens.attention_mask
    seen = view(inner, is_causal=attention.is_causal is not False, num_layers=num_layers)
    return seen(
        inputs_embeds=embedded, attention_mask=mask, position_ids=tokens.position_ids, use_cache=False
    ).last_hidden_state


def view(inner: Any, *, is_causal: bool, num_layers: int | None = None) -> Any:
    """The same modules and weights under another configuration: causal or not, all layers or the first few.

    The library's `is_causal` argument rewrites the shared configuration for the time of a call, which two threads
    on one model get wrong; a shallow copy with its own configuration does not.
    """
    copied = copy.copy(inner)
    copied.config = copy.copy(inner.config)
    copied.config.is_causal = is_causal
    if num_layers is not None and num_layers < len(inner.layers):
        copied._modules = dict(inner._modules)
        copied.layers = nn.ModuleList(list(inner.layers)[:num_layers])
        copied.config.num_hidden_layers = num_layers
    return copied


def read_layers(
    inner: Any, embedded: Tensor, tokens: Tokens, attention: Attention, read: Callable[[Tensor], Tensor]
) -> list[Tensor]:
    """What `read` makes of every layer's states, final norm included, as soon as the layer is done."""
    norm = next((getattr(inner, name) for name in FINAL_NORMS if hasattr(inner, name)), None)
    if norm is None:
        raise ValueError(f"{type(inner).__name__} has no final norm under a name known here ({', '.join(FINAL_NORMS)})")
    found: list[Tensor] = []
    taps = [_Tap(layer, lambda states: found.append(read(norm(states)))) for layer in list(inner.layers)[:-1]]
    tapped = copy.copy(inner)
    tapped._modules = dict(inner._modules)
    tapped.layers = nn.ModuleList([*taps, inner.layers[-1]])
    last = forward(tapped, embedded, tokens, attention, None)
    return [*found, read(last)]


class _Tap(nn.Module):
    """A layer that also hands its output to somebody; otherwise the layer itself."""

    def __init__(self, layer: nn.Module, tell: Callable[[Tensor], None]) -> None:
        super().__init__()
        self.layer, self.tell = layer, tell

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer."""
        output = self.layer(*args, **kwargs)
        self.tell(output[0] if isinstance(output, tuple) else output)
        return output
