"""The frozen LM inside, memory tokens, and the cut model."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import AutoModel

from embrew.model.attention import Attention
from embrew.model.backbone import Backbone
from embrew.text.tokens import Row, Segment, Tokens
from tests.conftest import DIFFERENT, FAMILIES, by_default, stir, tiny_model

IDS = torch.tensor([[1, 20, 21, 22, 23, 24], [1, 30, 31, 32, 33, 34]])
TOKENS = Tokens(IDS, torch.full_like(IDS, Segment.TEXT))


def lm_logits(backbone: Backbone) -> torch.Tensor:
    with torch.no_grad(), backbone.frozen_lm() as lm:
        head = lm.head
        states = lm.hidden_states(TOKENS)
        return states @ head.weight.T + (0 if head.bias is None else head.bias)


@pytest.mark.parametrize("family", by_default([*DIFFERENT, "llama-tied"], FAMILIES))
def test_the_frozen_lm_is_the_original_before_and_after_a_step(family):
    """Bitwise: the same hidden states and logits as the model before any adapter, also with a tied head."""
    model = tiny_model(family)
    with torch.no_grad():
        original = copy.deepcopy(model)(IDS, attention_mask=torch.ones_like(IDS)).logits
    backbone = Backbone(model)
    backbone.add_memory(3)
    backbone.add_lora({"r": 4, "lora_dropout": 0.1}, train_embeddings=family in ("llama", "llama-tied", "gemma3"))
    stir(backbone)
    assert torch.equal(lm_logits(backbone), original), "before a step"
    backbone.train()
    optimizer = torch.optim.AdamW([p for p in backbone.parameters() if p.requires_grad], lr=0.1, weight_decay=0.1)
    rows = Tokens.pad([Row.labelled([1, 20, 21], Segment.TEXT) + Row.labelled(backbone.memory_ids, Segment.MEMORY)])
    before = backbone.hidden_states(rows, Attention("bidirectional")).detach()
    backbone.hidden_states(rows, Attention("bidirectional")).square().mean().backward()
    optimizer.step()
    assert not torch.equal(backbone.hidden_states(rows, Attention("bidirectional")), before), "the step did something"
    assert torch.equal(lm_logits(backbone), original), "after a step, in training mode, dropout and all"


def test_the_adapter_is_back_after_an_exception():
    backbone = Backbone(tiny_model("llama"))
    backbone.add_lora({"r": 4, "lora_dropout": 0.1})
    stir(backbone)
    backbone.set_attention_dropout(0.2)
    with torch.no_grad():
        on = backbone.eval().hidden_states(TOKENS, Attention())
        with pytest.raises(RuntimeError, match="inside"), backbone.frozen_lm():
            assert backbone.inner.layers[0].self_attn.attention_dropout == 0.0
            raise RuntimeError("inside")
        assert torch.equal(backbone.hidden_states(TOKENS, Attention()), on)
    assert backbone.inner.layers[0].self_attn.attention_dropout == 0.2


@pytest.mark.parametrize("family", by_default(DIFFERENT, FAMILIES))
def test_fewer_layers_equal_the_cut_model(family, model_folder):
    """Layer n means the model cut to n layers, final norm included; and nothing is changed on the way."""
    folder = model_folder(family)
    cut = AutoModel.from_pretrained(folder, num_hidden_layers=1).eval()
    full = AutoModel.from_pretrained(folder).eval()
    backbone = Backbone(tiny_model(family))
    with torch.no_grad():
        states = backbone.hidden_states(TOKENS, Attention(), num_layers=1)
        assert torch.equal(states, cut(IDS, attention_mask=torch.ones_like(IDS)).last_hidden_state)
        whole = backbone.hidden_states(TOKENS, Attention())
        assert torch.equal(whole, full(IDS, attention_mask=torch.ones_like(IDS)).last_hidden_state)
    assert backbone.num_layers == 2 and backbone.inner.config.num_hidden_layers == 2
    with pytest.raises(ValueError, match="choose from 1 to 2"):
        backbone.hidden_states(TOKENS, Attention(), num_layers=3)


def test_memory_rows_start_apart():
    backbone = Backbone(tiny_model("llama"))
    weight = backbone.causal_lm.get_input_embeddings().weight
    for init in ("vocab", "noise"):
        backbone.add_memory(4, init, seed=3)  # type: ignore[arg-type]
        memory = torch.nn.functional.normalize(backbone.memory, dim=-1)
        assert (memory @ memory.T - torch.eye(4)).abs().max() < 0.7, init
    backbone.add_memory(4, "vocab", seed=3)
    assert all((weight == row).all(-1).any() for row in backbone.memory), "rows of the matrix"
    backbone.add_memory(4, "mean")
    assert torch.allclose(backbone.memory[0], backbone.memory[3]) and torch.allclose(backbone.memory[0], weight.mean(0))
    with pytest.raises(ValueError, match="choose from vocab, noise, mean"):
        backbone.add_memory(2, "zeros")  # type: ignore[arg-type]


def test_memory_rows_live_on_the_scale_of_the_matrix():
    """Gemma multiplies its embeddings by sqrt(hidden): a memory row copied from id 42 must read like id 42."""
    backbone = Backbone(tiny_model("gemma3"))
    backbone.add_memory(1)
    backbone.memory.data = backbone.causal_lm.get_input_embeddings().weight.data[42:43].clone()
    by_id = backbone.embed(Tokens(torch.tensor([[42]]), torch.tensor([[int(Segment.TEXT)]])))
    by_row = backbone.embed(Tokens(torch.tensor(backbone.memory_ids)[None], torch.tensor([[int(Segment.MEMORY)]])))
    assert torch.allclose(by_id, by_row, rtol=1e-6)


def test_unknown_lora_key():
    with pytest.raises(ValueError, match=r"peft.LoraConfig"):
        Backbone(tiny_model("llama")).add_lora({"rank": 4})


def test_a_pattern_that_is_none_is_refused():
    with pytest.raises(ValueError, match="holds no regular expression.*give names or patterns"):
        Backbone(tiny_model("llama")).add_lora({"r": 2, "target_modules": "(q_proj"})


def test_patterns_of_modules_work():
    backbone = Backbone(tiny_model("llama"))
    backbone.add_lora(
        {"r": 2, "target_modules": r".*\.layers\.\d+\.self_attn\.(q|v)_proj", "rank_pattern": {"q_proj": 4}}
    )
    ranks = {name: len(p) for name, p in backbone.model.named_parameters() if "lora_A" in name}
    assert sorted(ranks.values()) == [2, 2, 4, 4]
