"""Settings of objectives that apply another one several times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from embrew.encoder import Encoder
from embrew.methods.embedding import EmbeddingObjective
from embrew.methods.inputs import Inputs


@dataclass(kw_only=True)
class Nested:
    """Settings of an embedding objective that applies the loss of another one several times, to the same texts.

    Attributes:
        base: the objective that is nested.
    """

    base: EmbeddingObjective

    @property
    def inputs(self) -> Inputs:
        """The inputs of the base objective."""
        return self.base.inputs

    def setup(self, encoder: Encoder) -> None:
        """Set up the base objective."""
        self.base.setup(encoder)

    def counts(self, batch: dict[str, Any]) -> dict[str, int]:
        """Return the counts of the base objective."""
        return self.base.counts(batch)


def check_layers(objective: Nested) -> None:
    """Raise if the base inserts embeddings of the last layer into prompts."""
    if objective.base.inputs.has_prompt_vectors:
        raise ValueError(
            f"{type(objective).__name__} reads every layer, and {type(objective.base).__name__} puts embeddings of the "
            "last into prompts; nest it in matryoshka"
        )
