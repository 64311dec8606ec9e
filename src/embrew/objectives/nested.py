"""What objectives around another one share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from embrew.modeling.encoder import Encoder
from embrew.objectives.embedding import EmbeddingObjective
from embrew.objectives.inputs import Inputs


@dataclass(kw_only=True)
class Nested:
    """Settings of an embedding objective around another one: the same texts, its loss several times.

    Attributes:
        base: the objective that is nested.
    """

    base: EmbeddingObjective

    @property
    def inputs(self) -> Inputs:
        """The base objective's."""
        return self.base.inputs

    def setup(self, encoder: Encoder) -> None:
        """Set up the base objective."""
        self.base.setup(encoder)

    def counts(self, batch: dict[str, Any]) -> dict[str, int]:
        """The base objective's."""
        return self.base.counts(batch)


def check_layers(objective: Nested) -> None:
    """Raise where the base writes embeddings into prompts: those are the last layer's."""
    if objective.base.inputs.has_prompt_vectors:
        raise ValueError(
            f"{type(objective).__name__} reads every layer, and {type(objective.base).__name__} puts embeddings of the "
            "last into prompts; nest it in matryoshka"
        )
