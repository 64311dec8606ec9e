"""What LLM2Comp's distillation step computes, counted: these figures hold on any machine, however busy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from embrew.methods import Compression
from embrew.recipe import Recipe, build
from embrew.text.tokens import Segment
from embrew.training.step import TrainStep
from tests.conftest import SENTENCES

CHUNK = 64  # rows per projection on a CPU


class VocabularyWide(TorchDispatchMode):
    """Watches tensors whose last axis is the vocabulary: the largest, and how many rows the head made."""

    def __init__(self, head: torch.Tensor) -> None:
        super().__init__()
        self.head, self.largest, self.rows = head, 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if not isinstance(tensor, torch.Tensor) or tensor.ndim < 2 or tensor.shape[-1] != len(self.head):
                continue
            if tensor.untyped_storage().data_ptr() == self.head.untyped_storage().data_ptr():  # the weight, transposed
                continue
            self.largest = max(self.largest, len(tensor))
            self.rows += len(tensor) * (func in (torch.ops.aten.mm.default, torch.ops.aten.mm.out))
        return out


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")
def test_only_scored_rows_reach_the_head_chunk_by_chunk_in_three_passes():
    encoder = build.encoder(Recipe.load("llm2comp/nano", ["encoder.lora.lora_dropout=0"]), device="cpu")
    objective = Compression()
    objective.setup(encoder)
    step = TrainStep(encoder.train(), objective)
    batch = objective.collate([{"text": " ".join(SENTENCES * 3)} for _ in range(3)], encoder, seed=0)
    passes: list[int] = []
    encoder.backbone.inner.layers[0].register_forward_pre_hook(lambda *_: passes.append(1))
    head = encoder.backbone.model.get_output_embeddings().weight
    with VocabularyWide(head) as seen:
        step(**batch)["loss"].backward()

    targets = batch["student"].segment_ids == Segment.TARGET
    scored = int(targets.sum()) + len(targets)  # a target's tokens, and the position before them
    assert scored > CHUNK
    assert seen.rows == 2 * scored  # the teacher's and the student's
    assert seen.largest <= 2 * CHUNK
    assert len(passes) == 3  # encoder, teacher, student
