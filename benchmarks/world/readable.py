"""Whether the original language model can read a memory: KL on held-out texts, with own and with foreign memories."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from embrew import Encoder
from embrew.methods import Compression
from embrew.methods.frozen_decoder import memory_states
from world.bugs import adapter_on

ROWS = 16  # per batch


def measures(folder: Path, texts: Sequence[str]) -> dict[str, float]:
    """Return `readable` of a saved encoder, and `for the original LM`: that less the same for the LM with the adapter.

    The second is above 0 where memories were trained for the original LM, and below where for the LM that was being
    trained itself.
    """
    encoder = Encoder.from_pretrained(folder, merge_adapter=False)
    original = readable(encoder, texts)
    with adapter_on():
        adapted = readable(encoder, texts)
    return {"readable": original, "for the original LM": original - adapted}


@torch.no_grad()
def readable(encoder: Any, texts: Sequence[str]) -> float:
    """Return 1 − KL(own memory) / KL(another text's memory): 0 where memories tell nothing of their texts.

    KL is that of LLM2Comp's first stage, to the original LM that reads the text, over continuations of texts that are
    split at random; the frozen LM without the adapter reads the memory, whatever the encoder was trained with.
    """
    objective = Compression(min_context_tokens=8, min_target_tokens=8)
    objective.setup(encoder)
    own = other = 0.0
    for start in range(0, len(texts) - ROWS + 1, ROWS):
        rows = [{"text": text} for text in texts[start : start + ROWS]]
        batch = objective.collate(rows, encoder, seed=0)
        memory = memory_states(encoder, batch["context"])
        with encoder.backbone.frozen_lm() as lm:
            own += float(sum(objective.decoder_losses(lm, memory, batch)))
            other += float(sum(objective.decoder_losses(lm, memory.roll(1, dims=0), batch)))
    return 1 - own / other
