"""AutoRegEmbed: information compression from pairs, and alignment: sums, signs, references, who gets a gradient."""

from __future__ import annotations

import math

import pytest
import torch
from datasets import Dataset

from embrew.encoder import Encoder
from embrew.methods.frozen_decoder import memory_states
from embrew.recipe import Recipe, build
from embrew.text.tokens import Segment
from tests.conftest import SENTENCES, by_default
from tests.objectives.cases import loss_and_gradients

ENCODER = {
    "attention": "causal",
    "template": "{text}\n{instruction}\n{memory}",
    "prompts": {"query": "what follows", "document": "the same"},
    "lora": {"lora_dropout": 0.0},
}
ROWS = [
    {"query": text[:20], "positive": text[20:], "negatives": [SENTENCES[i - 1][:25], SENTENCES[i - 2]][: 1 + i % 2]}
    for i, text in enumerate(SENTENCES)
]


def ready(make_encoder, family="llama", **settings):
    encoder = make_encoder(family, **ENCODER)
    objective = build.objective({"type": "alignment", **settings})
    objective.setup(encoder)
    dataset = objective.precompute(objective.prepare(Dataset.from_list(ROWS), encoder), encoder)
    return encoder, objective, dataset


def log_prob(encoder: Encoder, memory, text: str) -> float:
    """log D(text, EOS | memory), token by token, from the library's own model with the adapter off."""
    ids = [*encoder.tokenizer(text, add_special_tokens=False).input_ids, encoder.tokenizer.eos_token_id]
    model = encoder.backbone.causal_lm
    with torch.no_grad(), encoder.backbone.adapter_off():
        embedded = torch.cat([memory, model.get_input_embeddings()(torch.tensor(ids))])
        logits = model(inputs_embeds=embedded[None]).logits[0].log_softmax(-1)
    return float(sum(logits[len(memory) - 1 + t, token] for t, token in enumerate(ids)))


def by_hand(encoder: Encoder, references, rows=ROWS, beta=0.1, tau=0.1):
    """Eq. 2 for every row, with its own sums."""
    losses = []
    for row, reference in zip(rows, references, strict=True):
        with torch.no_grad():
            e_q = encoder.memory_states(encoder.tokenize([row["query"]], instruction="what follows"))[0]
            e_p = encoder.memory_states(encoder.tokenize([row["positive"]], instruction="the same"))[0]
        a, b = log_prob(encoder, e_q, row["positive"]), log_prob(encoder, e_p, row["positive"])
        s1 = -1 / (1 + math.exp(-beta * abs(a - b)))
        total = math.exp(s1 / tau)
        for negative, c_ref in zip(row["negatives"], reference[1:], strict=True):
            c = log_prob(encoder, e_q, negative)
            margin = (a - reference[0]) - (c - c_ref)
            total += math.exp(-1 / (1 + math.exp(-beta * margin)) / tau)
        losses.append(-math.log(math.exp(s1 / tau) / total))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("family", by_default(["mistral"], ["llama", "mistral"]))
def test_against_the_sums_of_the_paper(family, make_encoder):
    encoder, objective, dataset = ready(make_encoder, family)
    rows = list(dataset)
    for row in rows:
        with torch.no_grad():
            memory = encoder.memory_states(encoder.tokenize([row["query"]], instruction="what follows"))[0]
        wanted = [log_prob(encoder, memory, text) for text in (row["positive"], *row["negatives"])]
        assert row["reference"] == pytest.approx(wanted, rel=1e-4)
    rows = [{**row, "reference": [r + 3 * i for i, r in enumerate(row["reference"])]} for row in rows]
    value = objective(encoder, objective.collate(rows, encoder))["loss"]
    assert value.item() == pytest.approx(by_hand(encoder, [row["reference"] for row in rows]), rel=1e-3)


def test_detached_memory_of_the_text_itself(make_encoder):
    """The same value; of what the two sides share, the gradient is another."""
    encoder, plain, dataset = ready(make_encoder)
    detached = build.objective({"type": "alignment", "detach_self": True})
    batch = plain.collate(list(dataset), encoder)
    loss, grads = loss_and_gradients(encoder, plain, batch)
    again, others = loss_and_gradients(encoder, detached, batch)
    assert again.item() == pytest.approx(loss.item(), rel=1e-6)
    assert any((others[name] - grad).abs().max() > 1e-4 * grad.abs().max() for name, grad in grads.items())
    leaf = memory_states(encoder, batch["text"]).detach().requires_grad_()
    with encoder.backbone.frozen_lm() as lm:
        (grad,) = torch.autograd.grad(detached._loss(lm, leaf, batch)[0], leaf)
    assert (grad[len(ROWS) :] == 0).all() and (grad[: len(ROWS)].abs().amax((1, 2)) > 0).all()


@pytest.mark.parametrize("variant", ["kl", "js"])
def test_divergences_of_the_appendix(variant, make_encoder):
    encoder, objective, dataset = ready(make_encoder, variant=variant)
    assert "reference" not in dataset.column_names
    batch = objective.collate(ROWS, encoder)
    parts = objective(encoder, batch)

    def mean_divergence(text, query):
        ids = [*encoder.tokenizer(text, add_special_tokens=False).input_ids, encoder.tokenizer.eos_token_id]
        model, rows = encoder.backbone.causal_lm, []
        with torch.no_grad():
            own = encoder.memory_states(encoder.tokenize([text], instruction="the same"))[0]
            other = encoder.memory_states(encoder.tokenize([query], instruction="what follows"))[0]
            with encoder.backbone.adapter_off():
                for memory in (own, other):
                    embedded = torch.cat([memory, model.get_input_embeddings()(torch.tensor(ids))])
                    logits = model(inputs_embeds=embedded[None]).logits[0, len(memory) - 1 : -1]
                    rows.append(logits.softmax(-1))
        p, q = rows
        if variant == "kl":
            return float((p * (p / q).log()).sum(-1).mean())
        m = (p + q) / 2
        return float(((p * (p / m).log()).sum(-1) + (q * (q / m).log()).sum(-1)).mean() / 2)

    near = [mean_divergence(row["positive"], row["query"]) for row in ROWS]
    far = [[mean_divergence(text, row["query"]) for text in row["negatives"]] for row in ROWS]
    assert parts["near"].item() == pytest.approx(sum(near) / len(near), rel=1e-3)
    s = [-1 / (1 + math.exp(-x)) / 0.1 for x in near]
    wanted = [
        -math.log(math.exp(one) / (math.exp(one) + sum(math.exp(-1 / (1 + math.exp(-x)) / 0.1) for x in others)))
        for one, others in zip(s, far, strict=True)
    ]
    assert parts["loss"].item() == pytest.approx(sum(wanted) / len(wanted), rel=1e-3)


@pytest.mark.parametrize("texts", [("", SENTENCES[0]), (SENTENCES[1], ""), ("", "")], ids=str)
@pytest.mark.parametrize("variant", by_default(["js"], ["kl", "js"]))
def test_a_text_without_tokens_diverges_by_nothing(variant, texts, make_encoder):
    """A tokenizer may remove all of a text, and `end: false` adds no token: 0, as in the sums of the other variants."""
    encoder, objective, _ = ready(make_encoder, variant=variant, end=False)
    positive, negative = texts
    rows = [*ROWS, {"query": "why", "positive": positive, "negatives": [negative]}]
    loss, grads = loss_and_gradients(encoder, objective, objective.collate(rows, encoder))
    assert math.isfinite(loss) and all(torch.isfinite(grad).all() for grad in grads.values())
    alone = objective(encoder, objective.collate(rows[-1:], encoder))
    assert [alone[side].item() == 0.0 for side in ("near", "far")] == [not text for text in texts]


def test_information_compression(make_encoder):
    """Context, its own question behind it, memory; the frozen LM writes the answer and its end, without BOS."""
    encoder = make_encoder(**ENCODER)
    objective = build.objective(
        {"type": "compression", "rows": "pairs", "divergence": "nll", "decoder_bos": False, "end": True}
    )
    objective.setup(encoder)
    rows = [
        {"query": text, "positive": text[10:30], "instruction": f"what of {i}?"} for i, text in enumerate(SENTENCES)
    ]
    batch = objective.collate(rows, encoder)
    value = objective(encoder, batch)["loss"]
    total, count = 0.0, 0
    for i, row in enumerate(rows):
        tokens = encoder.tokenize([row["query"]], instruction=row["instruction"])
        shown = encoder.tokenizer.decode(tokens.input_ids[0, 1:-3])
        assert shown == f"{row['query']}\n{row['instruction']}\n" and tokens.where(Segment.MEMORY)[0, -3:].all()
        with torch.no_grad():
            total -= log_prob(encoder, encoder.memory_states(tokens)[0], row["positive"])
        count += int(batch["student"].where(Segment.TARGET)[i].sum())
    assert value.item() == pytest.approx(total / count, rel=1e-4)


def test_each_side_is_asked_to_write_its_own(make_encoder):
    """Queries, and contexts to be compressed: what is looked for; documents and negatives: themselves.

    The instructions are I_next and I_self of section 3.3 of the paper.
    """
    config = Recipe.load("autoregembed/paper-llama2-7b").encoder
    encoder = make_encoder(**{**ENCODER, "template": config.template, "prompts": config.prompts.model_dump()})
    objective = build.objective({"type": "alignment", "variant": "kl"})
    objective.setup(encoder)
    batch = objective.collate(ROWS, encoder)
    said = [encoder.tokenizer.decode([i for i in ids if 2 < i < 300]) for ids in batch["text"].input_ids.tolist()]
    queries, documents = said[: len(ROWS)], said[len(ROWS) :]
    assert len(documents) == len(ROWS) + sum(len(row["negatives"]) for row in ROWS)
    assert all(text.endswith("\nfind documents that can answer this question\n") for text in queries)
    assert all(text.endswith("\nfind sentences that are semantically similar to this text\n") for text in documents)
    compression = build.objective({"type": "compression", "rows": "pairs", "divergence": "nll", "end": True})
    asked = [{"query": "a river", "positive": "it runs", "instruction": "What does it do?"}, ROWS[0]]
    contexts = compression.collate(asked, encoder)["context"].input_ids.tolist()
    own, other = (encoder.tokenizer.decode([i for i in ids if 2 < i < 300]) for ids in contexts)
    assert own.endswith("\nWhat does it do?\n") and other.endswith("\nfind documents that can answer this question\n")
