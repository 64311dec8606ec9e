"""Bugs planted at run time, to see whether the controls notice them. Nothing of embrew is changed on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from embrew.methods import autoregembed, frozen_decoder, gap, lbr
from embrew.methods.demonstrations import DemonstratedPairs
from embrew.model.attention import Attention
from embrew.model.backbone import Backbone
from embrew.model.frozen import FrozenLM
from embrew.text.tokens import Segment


@contextmanager
def adapter_on() -> Iterator[None]:
    """The frozen LM of compression and alignment is the one that is being trained."""

    @contextmanager
    def frozen_lm(self: Any) -> Iterator[FrozenLM]:
        yield FrozenLM(self.causal_lm, hidden_states=self.original_states)

    with patch.object(Backbone, "frozen_lm", frozen_lm):
        yield


@contextmanager
def blind_memory() -> Iterator[None]:
    """In training, memory tokens attend to memory tokens alone."""
    right = frozen_decoder.memory_states

    def memory_states(encoder: Any, tokens: Any) -> Any:
        attention = encoder.attention
        hidden = (Segment.TEXT, Segment.PROMPT)  # BOS attends to the text
        encoder.attention = replace(attention, hide=tuple((Segment.MEMORY, read) for read in hidden))
        try:
            return right(encoder, tokens)
        finally:
            encoder.attention = attention

    with (
        patch.object(frozen_decoder, "memory_states", memory_states),
        patch.object(autoregembed, "memory_states", memory_states),
        patch.object(gap, "memory_states", memory_states),
    ):
        yield


@contextmanager
def no_bottleneck() -> Iterator[None]:
    """The target of LBR's first stage attends to the text."""

    def attention(mode: Any, **_: Any) -> Attention:
        return Attention(mode)

    with patch.object(lbr, "Attention", attention):
        yield


@contextmanager
def foreign_demonstrations() -> Iterator[None]:
    """Demonstrations in training are those of another data set: the passages of a batch's rows are of another task.

    A batch holds one data set, so each row's passage is replaced, where it is embedded for demonstrations, by the first
    negative of the row: a fact of another relation.
    """
    right = DemonstratedPairs.prompt_vectors

    def prompt_vectors(self: Any, encoder: Any, embeddings: dict[str, Any], batch: dict[str, Any]) -> Any:
        size = len(batch["query_keys"])
        owners = batch["query_indices"]
        first = [int((owners[size:] == row).nonzero()[0]) + size for row in range(size)]
        documents = embeddings["document"]
        swapped = documents[..., first, :] if documents.ndim == 3 else documents[first]
        return right(self, encoder, {**embeddings, "document": swapped}, batch)

    with patch.object(DemonstratedPairs, "prompt_vectors", prompt_vectors):
        yield


@dataclass(frozen=True)
class Bug:
    """A bug, and the row of a plan that it is planted in."""

    name: str
    plan: str
    row: str
    planted: Callable[[], AbstractContextManager[None]]


BUGS = (
    Bug("teacher with the adapter on", "world-llm2comp", "distillation", adapter_on),
    Bug("memory that does not see the text", "world-llm2comp", "distillation", blind_memory),
    Bug("no bottleneck", "world-lbr", "IB-GL + CL", no_bottleneck),
    Bug("demonstrations of another task", "world-epic", "EPIC", foreign_demonstrations),
    Bug("decoder with the adapter on", "world-autoregembed", "two instructions, detached", adapter_on),
)
