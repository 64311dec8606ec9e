"""Make an encoder of a language model from a user's pairs and documents, and compare it with what needs no training."""

from embrew.adapting.run import adapt
from embrew.adapting.space import adapt_into_space

__all__ = ["adapt", "adapt_into_space"]
