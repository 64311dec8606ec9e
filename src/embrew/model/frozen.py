"""The original causal LM inside an encoder: hidden states under causal attention, and its head."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, NamedTuple

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
from transformers import PreTrainedModel

from embrew.model.attention import Attention, evaluating
from embrew.model.batching import Cost
from embrew.model.forward import cost_of, forward, pack, write_soft
from embrew.model.layers import CastWeight
from embrew.text.tokens import Tokens


class Head(NamedTuple):
    """The language-model head: logits = softcap(scale · (hidden @ weight.T + bias)).

    `weight` is `(vocabulary, hidden)`, `bias` `(vocabulary,)` or None; with `softcap` c, softcap(x) = c tanh(x / c).
    Losses take these four in this order.
    """

    weight: Tensor
    bias: Tensor | None
    scale: float = 1.0
    softcap: float | None = None

    def logits(self, states: Tensor) -> Tensor:
        """Return logits `(…, vocabulary)` of states `(…, hidden)`, float32."""
        logits = nn.functional.linear(states, self.weight, self.bias).float() * self.scale
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)


def original_states(model: Any, tokens: Tokens) -> Tensor:
    """Return final states `(batch, tokens, hidden)` of a causal LM under causal attention."""
    embedded = write_soft(model.get_input_embeddings()(tokens.input_ids), tokens)
    inner, attention = model.base_model, Attention("causal")
    return forward(inner, embedded, tokens, attention, packed=pack(inner, tokens, attention))


class FrozenCopy(nn.Module):
    """A second copy of the original LM, which is not trained."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model.requires_grad_(False)
        self.eval()

    @property
    def inner(self) -> Any:
        """The transformer below the head."""
        return self.model.base_model

    def original_states(self, tokens: Tokens) -> Tensor:
        """Return its final states, as `FrozenLM.hidden_states` does."""
        return original_states(self.model, tokens)


class FrozenLM:
    """The original causal LM: hidden states under causal attention, and its head.

    Attributes:
        model: causal LM.
        hidden_states: function that returns final states `(batch, tokens, hidden)` under causal attention,
            differentiable in `tokens.soft`; by default `original_states`. Where weights are sharded, it is a method of
            the module that gathers them, and they stay gathered, the head among them, until a backward pass.
    """

    def __init__(self, model: Any, *, hidden_states: Callable[[Tokens], Tensor] | None = None) -> None:
        self.model = model
        self.hidden_states = hidden_states or partial(original_states, model)

    @property
    def cost(self) -> Cost:
        """What a forward pass takes, in training or not."""
        inner = self.model.base_model
        return cost_of(inner, Attention("causal"), training=inner.training)

    @property
    def head(self) -> Head:
        """The head's weights, without gradient.

        Raises:
            ValueError: the family changes its logits after the head, which the chunked losses do not follow.
        """
        head = _head(self.model)
        bias = None if head.bias is None else head.bias.detach()
        return head._replace(weight=head.weight.detach(), bias=bias)


def trained_head(model: PreTrainedModel) -> Head:
    """Return the head of a causal LM in training, whose weights have a gradient where they are trained, tied or not.

    Raises:
        ValueError: as `FrozenLM.head`; the head carries an adapter, which its weights do not hold.
    """
    if isinstance(model.get_output_embeddings(), BaseTunerLayer):
        raise ValueError(
            "the head carries a LoRA, which this objective does not follow; leave the head out of "
            "encoder.lora.target_modules, or train a copy of it with modules_to_save"
        )
    return _head(model)


def _head(model: PreTrainedModel) -> Head:
    config, layer = model.config, model.get_output_embeddings()
    scale = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)
    softcap = getattr(config, "final_logit_softcapping", None)
    head = Head(layer.weight, getattr(layer, "bias", None), scale, None if softcap is None else float(softcap))
    _check_logits(model, head)
    kind = head.weight.device.type
    if head.weight.requires_grad or not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return head  # trained; tensors without values; no autocast
    cast_weight: CastWeight = layer.__dict__.setdefault("cast_weight", CastWeight())
    return head._replace(weight=cast_weight.cast(head.weight, torch.get_autocast_dtype(kind)))


_CHECKED: set[Hashable] = set()


def check_head(model: PreTrainedModel) -> None:
    """Raise ValueError unless `FrozenLM.head` of a model gives the model's own logits; before weights are sharded."""
    if not isinstance(model.get_output_embeddings(), BaseTunerLayer):
        _head(model)


def _check_logits(model: PreTrainedModel, head: Head) -> None:
    """Compare the logits of a head with the model's own; once per model class and settings in a process."""
    key = (type(model), head.scale, head.softcap, head.bias is None)
    if key in _CHECKED:
        return
    ids = torch.linspace(0.1 * len(head.weight), 0.8 * len(head.weight), 4).long()[None].to(head.weight.device)
    mixed = torch.autocast(ids.device.type, torch.bfloat16, enabled=model.dtype == torch.bfloat16)  # float32 copies
    with evaluating(model), torch.no_grad(), mixed:
        states = model.base_model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)[0]
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits.float()
        difference = float((head.logits(states) - logits).abs().max() / logits.abs().max().clamp(min=1e-6))
    if not difference <= (1e-3 if head.weight.dtype == torch.float32 else 5e-2):
        raise ValueError(
            f"{type(model).__name__} makes other logits of its states than its head does (by {difference:.1%}), "
            "which the losses over a vocabulary do not follow; known are a scale "
            "(logits_scaling, logit_scale) and a soft cap (final_logit_softcapping)"
        )
    _CHECKED.add(key)
