"""A stage may read texts under another attention than the one before it."""

import json

import numpy as np
import pytest
from transformers import AutoModelForCausalLM

from embrew.encoder import Encoder
from embrew.recipe import Recipe
from embrew.training.stages import train
from tests.conftest import SENTENCES
from tests.families import config_of


@pytest.fixture
def values(model_folder, tmp_path):
    pairs = [{"query": text[:20], "positive": text[10:]} for text in SENTENCES]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    common = {"data": {"path": str(tmp_path / "pairs.jsonl")}, "training": {"max_steps": 1, "use_cpu": True}}
    return {
        "encoder": {
            "model": str(model_folder("llama")),
            "template": "{text}{memory}",
            "memory_tokens": 2,
            "memory_ratio": 15,
            "pooling": {"mode": "last", "over": "memory"},
            "max_length": {"query": 48, "document": 48},
            "lora": {"r": 4, "target_modules": ["q_proj", "v_proj"]},
        },
        "stages": [
            {"name": "learn", "objective": {"type": "bottleneck"}, **common},
            {"name": "represent", "objective": {"type": "contrastive"}, "batch": {"size": 4}, **common},
        ],
    }


def test_the_second_stage_reads_both_ways(values, tmp_path):
    """Its folder says so and reads so; the first stage stays causal, and writes."""
    values["stages"][1]["attention"] = "bidirectional"
    encoder = train(Recipe.from_values(values), tmp_path / "run")
    learned = Encoder.from_pretrained(tmp_path / "run" / "learn")
    opened = Encoder.from_pretrained(tmp_path / "run" / "represent")
    assert (learned.attention.mode, opened.attention.mode) == ("causal", "bidirectional")
    assert np.abs(opened.encode(SENTENCES) - encoder.encode(SENTENCES)).max() < 1e-5
    assert isinstance(learned.generate(SENTENCES[0], max_new_tokens=3), str)
    with pytest.raises(ValueError, match="a bidirectional model does not generate"):
        opened.generate(SENTENCES[0])


def test_what_a_stage_cannot_read(values, tmp_path):
    values["stages"][0]["attention"] = "bidirectional"
    with pytest.raises(ValueError, match="a text that reads the target lets it through"):
        train(Recipe.from_values(values), tmp_path / "run")


def test_a_later_stage_that_the_model_cannot_follow_is_refused_before_the_first(values, tokenizer, tmp_path):
    """GPT-Neo masks the future itself, whatever the flag."""
    AutoModelForCausalLM.from_config(config_of("gpt_neo")).save_pretrained(tmp_path / "lm")
    tokenizer.save_pretrained(tmp_path / "lm")
    values["encoder"] |= {"model": str(tmp_path / "lm"), "memory_ratio": None}
    values["stages"][0]["objective"] = {"type": "contrastive"}
    values["stages"][0]["batch"] = {"size": 4}
    values["stages"][1]["attention"] = "bidirectional"
    with pytest.raises(ValueError, match="attention=bidirectional: GPTNeoModel with attn_implementation=eager"):
        train(Recipe.from_values(values), tmp_path / "run")
    assert not (tmp_path / "run" / "learn").exists()
