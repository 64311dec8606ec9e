"""The original causal LM inside an encoder: hidden states under causal attention, and its head."""

from __future__ import annotations

from typing import Any, NamedTuple

from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor

from embrew.modeling.attention import Attention
from embrew.modeling.passes import forward, write_soft
from embrew.modeling.tokens import Tokens


class Head(NamedTuple):
    """The language-model head: logits = hidden @ weight.T + bias.

    `weight` is `(vocabulary, hidden)`, `bias` `(vocabulary,)` or None.
    """

    weight: Tensor
    bias: Tensor | None


class FrozenLM:
    """The original causal LM: hidden states under causal attention, and its head."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def hidden_states(self, tokens: Tokens) -> Tensor:
        """Final hidden states `(batch, tokens, hidden)` under causal attention; differentiable in `tokens.soft`."""
        embedded = write_soft(self.model.get_input_embeddings()(tokens.input_ids), tokens)
        return forward(self.model.base_model, embedded, tokens, Attention("causal"), None)

    @property
    def head(self) -> Head:
        """The head's weights, without gradient.

        Raises:
            ValueError: the family changes its logits after the head, which the chunked losses do not follow.
        """
        weight, bias = _head(self.model)
        return Head(weight.detach(), None if bias is None else bias.detach())


def trained_head(model: Any) -> Head:
    """The head of a causal LM that is trained: its weights have a gradient where they, or tied embeddings, are trained.

    Raises:
        ValueError: as `FrozenLM.head`; the head carries an adapter, which its weights do not hold.
    """
    if isinstance(model.get_output_embeddings(), BaseTunerLayer):
        raise ValueError(
            "the head carries a LoRA, which this objective does not follow; leave the head out of "
            "encoder.lora.target_modules, or train a copy of it with modules_to_save"
        )
    return _head(model)


def _head(model: Any) -> Head:
    config = model.config
    for name in ("final_logit_softcapping", "logits_scaling", "logit_scale"):
        if getattr(config, name, None) not in (None, 1, 1.0):
            raise ValueError(f"{config.model_type} has {name}={getattr(config, name)}, which is not supported here")
    layer = model.get_output_embeddings()
    return Head(layer.weight, getattr(layer, "bias", None))
