"""Two continuations in one row get the states of each alone, and are refused where a model counts places in the row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedTokenizerFast

from embrew.encoder import Encoder
from embrew.methods import Llama2Vec
from embrew.model.backbone import Backbone
from embrew.settings.base import Base
from embrew.settings.encoder import Pooling
from embrew.text.tokens import Row, Segment, Tokens
from tests.families import FAMILIES, config_of
from tests.models import by_default, spread

COUNT = ["gpt_neo", "mpt", "bloom", "falcon-alibi", "falcon-alibi-heads"]  # positions in the row
CONVOLUTIONS = ["lfm2", "qwen3_5_text", "granitemoehybrid", "olmo_hybrid"]


def encoder_of(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast) -> Encoder:
    torch.manual_seed(0)
    backbone = Backbone(spread(AutoModelForCausalLM.from_config(config)))
    backbone.add_memory(2, seed=1)
    return Encoder(
        backbone,
        tokenizer,
        Base("folder", "tiny"),
        template='"{text}{instruction}{memory}',
        pooling=Pooling("mean", "memory"),
        prompts={"query": " The next:", "document": " The original:"},
        max_length=64,
    ).eval()


@pytest.mark.parametrize("name", COUNT)
def test_a_family_that_counts_places_in_the_row_is_refused(name, tokenizer):
    with pytest.raises(ValueError, match="counts positions in the row.*use a model family"):
        Llama2Vec().setup(encoder_of(config_of(name), tokenizer))


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_family_with_convolutions_is_refused(name, tokenizer):
    """They read the first continuation's last tokens at the beginning of the second."""
    with pytest.raises(ValueError, match="its convolutions read the end of one"):
        Llama2Vec().setup(encoder_of(config_of(name), tokenizer))


@pytest.mark.parametrize(
    "name",
    by_default(["llama", "gemma3_text", "gpt2"], [name for name in FAMILIES if name not in COUNT + CONVOLUTIONS]),
)
def test_in_other_families_each_continuation_has_the_states_that_it_has_alone(name, tokenizer):
    encoder = encoder_of(config_of(name), tokenizer)
    Llama2Vec().setup(encoder)
    text, first, second = (
        row(range(20, 36), Segment.TEXT),
        row(range(3, 7), Segment.PROMPT),
        row([9, 8, 7], Segment.PROMPT),
    )
    tokens = Tokens.pad([text + first + second])
    branches = torch.tensor([[0] * 16 + [1] * 4 + [2] * 3])
    with torch.no_grad():
        together = encoder.hidden_states(replace(tokens, branch_ids=branches))[0]
        one, other = (encoder.hidden_states(Tokens.pad([text + block]))[0] for block in (first, second))
    scale = float(one.abs().max())
    torch.testing.assert_close(together[:20], one, rtol=0, atol=1e-4 * scale)
    torch.testing.assert_close(together[20:], other[16:], rtol=0, atol=1e-4 * scale)


def row(ids: Iterable[int], segment: Segment) -> Row:
    return Row.labelled(list(ids), segment)
