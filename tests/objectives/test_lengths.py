"""Rows of a target behind what is read are held against learned positions when a stage is set up, not in its midst."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from embrew.encoder import Encoder
from embrew.model.backbone import Backbone
from embrew.recipe.build.stages import objective
from embrew.settings.base import Base
from embrew.settings.encoder import Pooling
from tests.conftest import SENTENCES
from tests.families import config_of

LONG = " ".join(SENTENCES * 3)
PAIR = {"query": LONG, "positive": LONG, "negatives": [LONG]}
CASES: dict[str, tuple[dict[str, Any], int, int]] = {  # settings, the longest limit that fits 128 positions, its rows
    "sft": ({"type": "sft"}, 64, 128),
    "bottleneck": ({"type": "bottleneck"}, 64, 128),
    "bottleneck-text": ({"type": "bottleneck", "target": "text"}, 65, 127),
    "bottleneck-rest": ({"type": "bottleneck", "target": "rest"}, 64, 128),
    "joint": ({"type": "joint", "base": {"type": "contrastive"}}, 64, 128),
    "alignment": ({"type": "alignment"}, 125, 128),
    "alignment-bos": ({"type": "alignment", "decoder_bos": True}, 124, 128),
    "pairs-nll": ({"type": "compression", "rows": "pairs", "divergence": "nll", "decoder_bos": False}, 126, 128),
    "pairs-kl": ({"type": "compression", "rows": "pairs"}, 66, 128),
    "text-kl": ({"type": "compression"}, 128, 128),
    "kl-same": ({"type": "compression", "target": "same"}, 67, 127),
    "kl-both": ({"type": "compression", "target": "both"}, 67, 127),
    "reconstruction": ({"type": "compression", "divergence": "reconstruction"}, 128, 128),
}


def gpt2(tokenizer: PreTrainedTokenizerFast, limit: int, *, memory_tokens: int = 3, **settings: Any) -> Encoder:
    torch.manual_seed(0)
    backbone = Backbone(AutoModelForCausalLM.from_config(config_of("gpt2")).eval())
    if memory_tokens:
        backbone.add_memory(memory_tokens, seed=1)
    shape = {"template": "{instruction}{text}{memory}", "pooling": Pooling("mean", "memory"), "max_length": limit}
    encoder = Encoder(backbone, tokenizer, Base("folder", "tiny"), **{**shape, **settings}).eval()  # type: ignore[arg-type]
    backbone.add_lora({"r": 2, "target_modules": ["c_attn"]})
    return encoder


@pytest.mark.parametrize("name", CASES)
def test_the_longest_limit_that_fits_trains_and_the_next_is_refused(name, tokenizer):
    settings, fits, widest = CASES[name]
    encoder = gpt2(tokenizer, fits)
    made = objective(settings)
    made.setup(encoder)
    rows = [PAIR if made.rows_kind == "pairs" else {"text": LONG}]
    rows = list(made.precompute(Dataset.from_list(rows), encoder))
    found = 0
    for seed in range(3):
        batch = made.collate(rows, encoder, seed=seed)
        assert torch.isfinite(made(encoder, batch)["loss"])
        found = max(found, *(part.input_ids.shape[1] for part in batch.values() if hasattr(part, "segment_ids")))
    assert found <= widest
    if name not in (
        "bottleneck-rest",
        "bottleneck-text",
        "text-kl",
        "kl-both",
    ):  # where the text decides: its split, its end
        assert found == widest, "the limit is that of the longest row, not of a longer one"
    if fits < 128:
        with pytest.raises(ValueError, match=r"max_length.*has positions for 128 tokens; lower encoder.max_length"):
            objective(settings).setup(gpt2(tokenizer, fits + 1))
