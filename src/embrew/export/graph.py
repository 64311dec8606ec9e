"""The graph that is exported: token ids and attention mask to final vectors."""

from __future__ import annotations

import copy

import torch

from embrew.export.parts import Parts
from embrew.runtimes.graph import SentenceGraph


def graph_of(parts: Parts) -> SentenceGraph:
    """Return an encoder's graph in float32; `parts.model` keeps its data type."""
    model = parts.model if parts.model.dtype == torch.float32 else copy.deepcopy(parts.model)
    return SentenceGraph(parts.encoder, model, parts.ids)
