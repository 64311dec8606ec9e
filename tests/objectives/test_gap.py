"""The share of the gap closed, against the logits of nano: text by text, without padding, with its real tokenizer."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import log_softmax
from transformers import AutoModelForCausalLM

from embrew.encoder import Encoder
from embrew.methods import Bottleneck, Compression, Contrastive
from embrew.methods import gap as gap_module
from embrew.methods.base import text_ids
from embrew.methods.gap import Gap
from embrew.settings.encoder import Pooling
from embrew.storage.base_model import ASSETS
from embrew.text.tokens import Row, Segment, Tokens
from tests.conftest import SENTENCES, by_default, stir

SHORT: dict[str, Any] = {"min_context_tokens": 6, "min_target_tokens": 5}
CASES: dict[str, dict[str, Any]] = {
    "kl": {},
    "kl, skipped, without last": {"skip_rows": 2, "include_last": False},
    "nll": {"divergence": "nll", "decoder_bos": False},
    "reconstruction": {"divergence": "reconstruction"},
    "kl, same": {"target": "same"},
    "kl and nll, both": {"target": "both", "nll_weight": 0.5},
    "pairs, nll": {"rows": "pairs", "divergence": "nll", "end": True, "decoder_bos": False},
    "pairs, kl": {"rows": "pairs"},
}


@pytest.fixture(scope="module")
def original() -> Any:
    return AutoModelForCausalLM.from_pretrained(ASSETS["nano"], dtype=torch.float32).eval()


def nano(*, lora: bool = True, memory_tokens: int = 4, **settings: Any) -> Encoder:
    shape = {"template": "{instruction}{text}{memory}", "attention": "bidirectional", "max_length": 64, **settings}
    encoder = Encoder.from_pretrained(
        "nano", dtype="float32", device="cpu", memory_tokens=memory_tokens, pooling=Pooling("mean", "memory"), **shape
    )
    if lora:
        encoder.backbone.add_lora({"r": 4, "lora_alpha": 8, "lora_dropout": 0.2})
        stir(encoder.backbone)
    return encoder.eval()


def texts() -> list[str]:
    """Nine texts of different lengths, so that there are two batches."""
    draw = random.Random(4)
    return [" ".join(draw.sample(SENTENCES, 1 + i % 3)) + f" That was number {i}." for i in range(9)]


def rows_for(objective: Compression) -> list[dict[str, Any]]:
    if objective.rows == "text":
        return [{"text": text} for text in texts()]
    return [{"query": text, "positive": SENTENCES[i % 5][: 15 + 4 * i]} for i, text in enumerate(texts())]


def expected(objective: Compression, encoder: Encoder, original: Any) -> dict[str, float]:
    """The loss of every reading, and both shares, by plain arithmetic."""
    (bos,) = encoder.template.bos_ids
    embed = original.get_input_embeddings()
    rows, skip = rows_for(objective), objective.skip_rows
    batch = objective.collate(rows, encoder)
    contexts, memories, targets = [], [], list[dict[str, list[int]]]()
    for b, row in enumerate(rows):
        real = batch["context"].segment_ids[b] != Segment.PAD
        ids, segments = (part[b : b + 1, real] for part in (batch["context"].input_ids, batch["context"].segment_ids))
        memories.append(encoder.memory_states(Tokens(ids, segments)))
        contexts.append(ids[segments == Segment.TEXT].tolist())
        if objective.rows == "pairs":
            (written,) = text_ids([row["positive"]], encoder)
            targets.append({"": [*written, *([encoder.tokenizer.eos_token_id] if objective.end else [])]})
        else:
            (full,) = text_ids([row["text"]], encoder)
            rest = full[len(contexts[-1]) : 63]
            targets.append({name: contexts[-1] if name == "same" else rest for name in objective.targets})

    def log_q(before: Tensor, target: list[int]) -> Tensor:
        logits = original(inputs_embeds=torch.cat([before, embed(torch.tensor([target]))], 1)).logits[0]
        return log_softmax(logits[-len(target) - 1 :].double(), -1)

    def start(ids: list[int]) -> Tensor:
        return embed(torch.tensor([ids]))

    first = start([bos]) if objective.decoder_bos else torch.zeros(1, 0, memories[0].shape[-1])
    others = [*memories[1:], memories[0]]
    readings = {
        "none": [start([bos])] * len(rows),
        "context": [start([bos, *context]) for context in contexts],
        "own": [torch.cat([first, memory], 1) for memory in memories],
        "other": [torch.cat([first, memory], 1) for memory in others],
    }
    teachers = {
        kind: [log_q(context, target[kind]) for context, target in zip(readings["context"], targets, strict=True)]
        for kind in targets[0]
    }
    values = {}
    for name, preceding in readings.items():
        total = 0.0
        for kind in targets[0]:
            divergences, likelihoods = [], []
            for before, teacher, target in zip(preceding, teachers[kind], targets, strict=True):
                ids = target[kind]
                student = teacher if name == "context" else log_q(before, ids)
                kl = (teacher.exp() * (teacher - student)).sum(-1)
                divergences.append(kl[skip : None if objective.include_last else -1].mean())
                likelihoods.append(-student[torch.arange(len(ids)), ids][skip:])
            nll, mean = float(torch.cat(likelihoods).mean()), float(torch.stack(divergences).mean())
            part = mean + objective.nll_weight * nll if objective.divergence == "kl" else nll
            total += part / len(targets[0])
        values[name] = total
    gap = values["none"] - values["context"]
    shares = {f"share of {name}": 1 - (values[name] - values["context"]) / gap for name in ("own", "other")}
    return {**values, **shares}


@pytest.mark.parametrize("case", by_default(["kl and nll, both"], CASES))
def test_shares_are_those_of_the_logits(case, original):
    encoder, objective = nano(), Compression(**SHORT, **CASES[case])
    objective.setup(encoder)
    with torch.no_grad():
        wanted = expected(objective, encoder, original)
    assert wanted["none"] > wanted["context"] + 0.1 and abs(wanted["share of own"] - wanted["share of other"]) > 1e-4
    gap = Gap.measure(objective, rows_for(objective), encoder.train())
    assert gap.counts["texts"] == 9 and gap.counts["tokens"] > 50
    assert gap.none == pytest.approx(wanted["none"], rel=1e-5)
    assert gap.context == pytest.approx(wanted["context"], rel=1e-5, abs=1e-6)
    shares = gap.shares(encoder)
    assert shares.same_text == pytest.approx(wanted["share of own"], abs=1e-5)
    assert shares.other_text == pytest.approx(wanted["share of other"], abs=1e-5)


def test_the_context_itself_closes_all_of_the_gap(monkeypatch):
    """A memory that is the input embeddings of the context's tokens; another text's are far from that."""
    encoder = nano(memory_tokens=9)
    long = [ids for ids in text_ids(texts(), encoder) if len(ids) >= 16]
    rows = [{"text": encoder.tokenizer.decode(ids[:16])} for ids in long]  # so that every context has 9 tokens
    assert all(len(ids) == 16 for ids in text_ids([row["text"] for row in rows], encoder)) and len(rows) > 5
    objective = Compression(min_context_tokens=10, min_target_tokens=7)
    objective.setup(encoder)

    def embedded(reader: Encoder, tokens: Tokens) -> Tensor:
        ids = tokens.input_ids[tokens.where(Segment.TEXT)].view(len(tokens), 9)
        return reader.backbone.causal_lm.get_input_embeddings()(ids)

    monkeypatch.setattr(gap_module, "memory_states", embedded)
    shares = Gap.measure(objective, rows, encoder).shares(encoder)
    assert shares.same_text == pytest.approx(1, abs=1e-5)
    assert shares.other_text < 0.6


def test_no_memory_closes_none_of_it(monkeypatch):
    """Students from which the memory's positions are removed."""
    encoder, objective = nano(), Compression(**SHORT)
    gap = Gap.measure(objective, rows_for(objective), encoder)

    def without(tokens: Tokens) -> Tokens:
        masks = [(s != Segment.PAD) & (s != Segment.SOFT) for s in tokens.segment_ids]
        parts = zip(tokens.input_ids, tokens.segment_ids, masks, strict=True)
        return Tokens.pad([Row(ids[k].tolist(), segments[k].tolist()) for ids, segments, k in parts])

    monkeypatch.setattr(gap_module, "memory_states", lambda given, tokens: torch.zeros(len(tokens), 0, 256))
    gap = replace(gap, batches=[{**batch, "student": without(batch["student"])} for batch in gap.batches])
    assert gap.shares(encoder) == pytest.approx((0, 0), abs=1e-6)


def test_what_has_no_gap():
    assert Compression().held_out == 64 and Compression(held_out=0).held_out == 0
    assert Contrastive().held_out == Bottleneck().held_out == 0
    encoder, objective = nano(), Compression(**SHORT)
    with pytest.raises(ValueError, match="1 held-out rows; the control needs another text"):
        Gap.measure(objective, rows_for(objective)[:1], encoder)
    gap = replace(Gap.measure(objective, rows_for(objective)[:2], encoder), none=1.0, context=1.0)
    assert not gap.exists
    with pytest.raises(ValueError, match="the loss is 1 with the context and 1 without; no gap"):
        gap.shares(encoder)


@pytest.mark.parametrize(
    "template", by_default(["{text}{eos}{memory}"], ["{instruction}{text}{memory}{eos}", "{text}{eos}{memory}"])
)
def test_no_text_ends_between_context_and_target(template):
    """The teacher, and L(context), read context and target as one text, whatever the template's row ends with."""
    rows = [{"query": text, "positive": SENTENCES[i % 5]} for i, text in enumerate(texts())]
    plain, ended = (nano(lora=False, template=one) for one in ("{instruction}{text}{memory}", template))
    objective = Compression(rows="pairs")
    contexts = []
    for encoder in (plain, ended):
        objective.setup(encoder)
        parts = objective.parts(rows, encoder)
        end = encoder.tokenizer.eos_token_id
        assert all(end not in row.ids for row in parts.uncompressed)
        assert any(end in row.ids for row in parts.contexts) == (encoder is ended)
        contexts.append([row.ids for row in parts.uncompressed])
    for one, other in zip(*contexts, strict=True):  # where the limit cuts a text, the EOS has taken one of its tokens
        assert one[: len(other)] == other and len(one) - len(other) <= 1
