"""The graph that is exported: token ids and attention mask to final vectors."""

from __future__ import annotations

import copy

import torch

from embrew.export.parts import Parts
from embrew.runtimes.graph import SentenceGraph


def graph_of(parts: Parts) -> SentenceGraph:
    """Return an encoder's graph in float32 on the CPU; `parts.model` keeps its data type and device."""
    model = parts.model
    if model.dtype != torch.float32 or model.device.type != "cpu":
        model = copy.deepcopy(model)
    return SentenceGraph(parts.encoder, model, parts.ids)
