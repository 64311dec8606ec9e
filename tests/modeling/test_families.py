"""Families of causal LMs, random and tiny, from folder to export, against transformers' own forward pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForCausalLM, PreTrainedTokenizerFast

from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from embrew.losses.vocabulary import token_kl, token_nll
from embrew.model.forward import bidirectional_by
from embrew.model.frozen import FrozenLM
from embrew.settings.encoder import Pooling
from embrew.text.tokens import Row, Segment, Tokens
from tests.families import FAMILIES, Family, config_of, table
from tests.models import SENTENCES, spread, stir

DEFAULT = [name for name, family in FAMILIES.items() if family.default]
EVERY = [pytest.param(n, marks=[] if f.default else pytest.mark.slow) for n, f in FAMILIES.items()]
TEXTS = [*SENTENCES, "", "long " * 100]


def lm(name: str, folder: Path, tokenizer: PreTrainedTokenizerFast) -> Path:
    """A folder with a random model of a family, in which every token matters."""
    torch.manual_seed(0)
    spread(AutoModelForCausalLM.from_config(config_of(name)), bias=0.02).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def opened(folder: Path, family: Family, **settings: Any) -> Encoder:
    return Encoder.from_pretrained(
        folder,
        device="cpu",
        memory_tokens=3,
        template="{instruction}{text}{memory}",
        **{"attention": family.attention, "pooling": Pooling("mean", "memory"), "max_length": 48, **settings},
    )


def by_transformers(folder: Path, encoder: Encoder, family: Family) -> np.ndarray:
    """Unit vectors by transformers alone: memory tokens as further rows of the embedding matrix, ids as input."""
    model = AutoModel.from_pretrained(folder)
    size = encoder.backbone.vocab_size
    model.resize_token_embeddings(size + 3, mean_resizing=False)
    with torch.no_grad():
        model.get_input_embeddings().weight[size:] = encoder.backbone.memory
        if getattr(model, "embed_tokens_per_layer", None) is not None:
            model.embed_tokens_per_layer.weight[size:] = model.embed_tokens_per_layer.weight[0]
    model.config.is_causal = family.attention == "causal"
    vectors = []
    for text in TEXTS:
        ids = encoder.tokenizer(text, truncation=True, max_length=45)["input_ids"] + [size, size + 1, size + 2]
        mask: Tensor = torch.ones(1, len(ids), dtype=torch.long)
        if family.bidirectional == "mask":
            eager = model.config._attn_implementation == "eager"  # adds its mask
            mask = (torch.zeros if eager else torch.ones)(
                1, 1, len(ids), len(ids), dtype=torch.float if eager else torch.bool
            )
        with torch.no_grad():
            states = model(input_ids=torch.tensor([ids]), attention_mask=mask, use_cache=False).last_hidden_state
        vectors.append(nn.functional.normalize(states[0, -3:].mean(0), dim=-1).numpy())
    return np.stack(vectors)


@pytest.mark.parametrize("name", EVERY)
def test_from_folder_to_export(name, tokenizer, tmp_path):
    family = FAMILIES[name]
    folder = lm(name, tmp_path / "lm", tokenizer)
    encoder = opened(folder, family)
    assert bidirectional_by(encoder.backbone.inner) == family.bidirectional
    assert np.abs(encoder.encode(TEXTS) - by_transformers(folder, encoder, family)).max() < 1e-5

    tokens = encoder.tokenize(TEXTS[:2])
    with torch.no_grad():
        assert torch.equal(encoder.layer_embeddings(tokens)[0], encoder(tokens, num_layers=1)), "layer by layer"
    check_shared_prompt(opened(folder, family, attention="causal", max_length=100))

    if not family.lora_dropout:
        with pytest.raises(ValueError, match="no dropout for experts"):
            encoder.backbone.add_lora({"r": 4, "lora_dropout": 0.1})
        encoder = opened(folder, family)
    encoder.backbone.add_lora({"r": 4, "lora_alpha": 8, "lora_dropout": 0.1 if family.lora_dropout else 0.0})
    if family.attention_dropout:
        encoder.backbone.set_attention_dropout(0.2)
    else:
        with pytest.raises(ValueError, match="does not apply its attention dropout with|has no attention dropout"):
            encoder.backbone.set_attention_dropout(0.2)
    before, frozen = encoder.encode(TEXTS), frozen_states(encoder)
    one_step(encoder)
    assert torch.equal(frozen_states(encoder.train()), frozen), "the original LM, in training too"
    encoder.eval()
    after = encoder.encode(TEXTS)
    assert np.abs(after - before).max() > 1e-4, "trained"
    encoder.save_pretrained(tmp_path / "saved")
    assert np.abs(Encoder.from_pretrained(tmp_path / "saved", device="cpu").encode(TEXTS) - after).max() < 1e-5

    if family.bidirectional == "mask":
        with pytest.raises(ValueError, match="needs an explicit mask on"):
            export_encoder(encoder, tmp_path / "stock", verify="off")
        causal = opened(folder, family, attention="causal")
        stir_all(causal)
        encoder, after = causal, causal.encode(TEXTS)
    export_encoder(encoder, tmp_path / "stock", verify="off")
    stock = SentenceTransformer(str(tmp_path / "stock"), device="cpu")
    assert np.abs(stock.encode(TEXTS, show_progress_bar=False) - after).max() < 1e-5


def check_shared_prompt(encoder: Encoder) -> None:
    """A prompt that is computed once gives the vectors that it gives in every row."""
    prompt = "an instruction that is the same for every text, and long: "
    with encoder.fixed() as prefix:
        together = encoder.encode(TEXTS, prompt=prompt)
        assert (sum(entry.states.shape[1] for entry in prefix._entries.values()) > 16) == encoder.shares_prefixes
    with torch.no_grad():
        apart = torch.cat([encoder(encoder.tokenize([text], instruction=prompt)) for text in TEXTS])
    assert np.abs(nn.functional.normalize(apart, dim=-1).numpy() - together).max() < 1e-5


def frozen_states(encoder: Encoder) -> Tensor:
    with torch.no_grad(), encoder.backbone.frozen_lm() as original:
        return original.hidden_states(Tokens.pad([Row.labelled(range(5, 25), Segment.TEXT)]))


def stir_all(encoder: Encoder) -> None:
    encoder.backbone.add_lora({"r": 4, "lora_alpha": 8})
    stir(encoder.backbone)


def one_step(encoder: Encoder) -> None:
    """One optimiser step: InfoNCE of embeddings, and the frozen LM's distribution over the vocabulary."""
    encoder.train()
    chosen = [p for p in encoder.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(chosen, lr=1e-2)
    tokens = encoder.tokenize(SENTENCES)
    one, other = (nn.functional.normalize(encoder(tokens), dim=-1) for _ in range(2))
    loss = nn.functional.cross_entropy(one @ other.T / 0.1, torch.arange(len(SENTENCES)))
    read = tokens.where(Segment.TEXT)
    plain = Tokens(tokens.input_ids.masked_fill(~read, 0), torch.where(read, tokens.segment_ids, 0))
    states = encoder.backbone.hidden_states(tokens, encoder.attention)
    with torch.no_grad(), encoder.backbone.frozen_lm() as lm:
        teacher, head = lm.hidden_states(plain), lm.head
    loss = loss + token_kl(teacher[read], states[read], *head)
    loss.backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in chosen)
    assert sum(p.grad is not None and p.grad.abs().sum() > 0 for p in chosen) > 2
    optimizer.step()
    optimizer.zero_grad()
    encoder.steps += 1
    encoder.eval()


@pytest.mark.parametrize("name", ["granite", "cohere2", "gemma2", *(n for n in FAMILIES if n == "llama")])
@pytest.mark.parametrize("chunk_size", [None, 4])
def test_losses_under_a_head_are_those_of_the_model_itself(name, chunk_size):
    """Logits with a scale or a soft cap: loss and gradients of chunked NLL and KL, from the model's own logits."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config_of(name)).eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            parameter.normal_(0, 0.5)
    ids, other = torch.randint(3, 300, (2, 2, 12)).unbind(0)
    rows = [Row.labelled(row.tolist(), Segment.TEXT) for row in ids]
    states = FrozenLM(model).hidden_states(Tokens.pad(rows))
    head = FrozenLM(model).head
    labels, flat = ids[:, 1:].reshape(-1), states[:, :-1].reshape(-1, 32)
    nll = token_nll(flat, labels, *head, chunk_size=chunk_size)
    assert abs(float(nll - model(input_ids=ids, labels=ids).loss)) < 1e-5

    delta = torch.zeros_like(ids, dtype=torch.float32)[..., None].expand(-1, -1, 32).clone().requires_grad_()
    final = {"norm": lambda module, args, out: out + delta}
    with torch.enable_grad():
        handle = model.base_model.norm.register_forward_hook(final["norm"])
        own = model(input_ids=ids).logits[:, :-1].reshape(-1, 300).float()
        handle.remove()
        with torch.no_grad():
            teacher = model(input_ids=other).logits[:, :-1].reshape(-1, 300).float()
        target = teacher.log_softmax(-1)
        expected = nn.functional.kl_div(own.log_softmax(-1), target, reduction="batchmean", log_target=True)
        (gradient,) = torch.autograd.grad(expected, delta)
        student = (states + delta)[:, :-1].reshape(-1, 32)
        ours = token_kl(teacher_states(model, other), student, *head, chunk_size=chunk_size)
        (found,) = torch.autograd.grad(ours, delta)
    assert abs(float((ours - expected).detach())) < 1e-5 * max(1.0, float(expected.detach()))
    assert (found - gradient).abs().max() < 1e-5 * gradient.abs().max()


def teacher_states(model: Any, ids: Tensor) -> Tensor:
    with torch.no_grad():
        return model.base_model(input_ids=ids).last_hidden_state[:, :-1].reshape(-1, 32)


def test_what_stays_causal_in_a_bidirectional_hybrid_is_said(tokenizer, tmp_path, caplog):
    """When it is built, in its card, and in what results (and so pages) hold of it."""
    folder = lm("lfm2", tmp_path / "lfm2", tokenizer)
    causal = Encoder.from_pretrained(folder, device="cpu", pooling="mean", attention="causal")
    assert "causal_layers" not in causal.describe() and "changes" not in caplog.text
    hybrid = Encoder.from_pretrained(folder, device="cpu", pooling="mean", attention="bidirectional")
    kinds = config_of("lfm2").layer_types
    others = len([kind for kind in kinds if kind != "full_attention"])
    assert 0 < others < len(kinds) and hybrid.describe()["causal_layers"] == others
    assert f"changes {len(kinds) - others} of {len(kinds)} layers" in caplog.text
    hybrid.save_pretrained(tmp_path / "saved", verify="off")
    assert f"except {others} of its layers" in (tmp_path / "saved" / "README.md").read_text()


def test_the_documentation_has_the_table():
    assert len(DEFAULT) == 4
    page = (Path(__file__).parents[2] / "docs" / "families.md").read_text(encoding="utf-8")
    assert table() in page, "docs/families.md: put in what tests.families.table() returns"
