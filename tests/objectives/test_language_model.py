"""Next-token prediction is the library's own loss; the joint objective is the sum of its parts."""

import pytest
import torch
from datasets import Dataset

from embrew.methods import Bottleneck, Contrastive, LanguageModel
from embrew.recipe import build
from embrew.text.tokens import Segment
from tests.conftest import SENTENCES

ROWS = [{"text": text} for text in SENTENCES]
PAIRS = [{"query": text[:15], "positive": text, "negatives": []} for text in SENTENCES]


def test_rows(make_encoder):
    """BOS and the text alone; without BOS the first token cannot be predicted; long texts lose their end."""
    encoder = make_encoder(attention="causal", max_length=12)
    objective = LanguageModel()
    (tokens,) = objective.collate(ROWS[:1], encoder).values()
    assert tokens.input_ids.shape == (1, 12) and not tokens.where(Segment.MEMORY).any()
    assert tokens.segment_ids[0].tolist() == [Segment.PROMPT] + [Segment.TARGET] * 11
    assert encoder.tokenizer.eos_token_id not in tokens.input_ids, "a text that is truncated has no end"
    encoder.template.bos_ids = []
    (tokens,) = objective.collate(ROWS[:1], encoder).values()
    assert tokens.segment_ids[0].tolist() == [Segment.TEXT] + [Segment.TARGET] * 11
    assert tokens.predicting(Segment.TARGET).sum() == tokens.where(Segment.TARGET).sum()


def test_empty_texts_are_left_out(make_encoder):
    encoder = make_encoder(attention="causal")
    dataset = Dataset.from_list([{"text": ""}, *ROWS])
    assert len(LanguageModel().prepare(dataset, encoder)) == len(ROWS)
    with pytest.raises(ValueError, match="none of 1 texts has 1 tokens"):
        LanguageModel().prepare(dataset.select([0]), encoder)


def test_joint_is_the_sum(make_encoder):
    encoder = make_encoder(lora={"lora_dropout": 0.0}, attention="causal")
    base = {"type": "contrastive", "temperature": 0.2}
    joint = build.objective({"type": "joint", "base": base, "generative_weight": 0.3})
    joint.setup(encoder)
    with torch.no_grad():
        found = joint(encoder, joint.collate(PAIRS, encoder))
        contrast = Contrastive(temperature=0.2)
        wanted = contrast(encoder, contrast.collate(PAIRS, encoder))["loss"]
        bottleneck = Bottleneck()
        generate = bottleneck(encoder, bottleneck.collate(PAIRS, encoder))["loss"]
    assert found["loss"].item() == pytest.approx(float(wanted + 0.3 * generate), rel=1e-5)
    assert (found["contrast"].item(), found["generate"].item()) == pytest.approx((float(wanted), float(generate)))
