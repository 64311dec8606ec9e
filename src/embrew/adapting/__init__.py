"""Train an encoder on pairs and documents, compared with what needs no training; or on queries, for an index."""

from embrew.adapting.run import adapt
from embrew.adapting.space import train_into_space

__all__ = ["adapt", "train_into_space"]
