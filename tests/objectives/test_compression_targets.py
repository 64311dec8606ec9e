"""Targets of compression: continuation, the same text, both; splits at sentences; rows without a loss.

The model is nano, with its real tokenizer; the arithmetic of the tests is its logits, text by text.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.functional import log_softmax
from transformers import AutoModelForCausalLM, AutoTokenizer

from embrew.data.documents import sentence_spans, split_sentences
from embrew.encoder import Encoder
from embrew.methods import Compression
from embrew.methods.base import text_ids
from embrew.methods.llm2comp import sentence_ends
from embrew.settings.encoder import Pooling
from embrew.storage.base_model import ASSETS
from embrew.text.tokens import Segment, Tokens
from tests.conftest import SENTENCES, by_default, stir
from tests.hard_texts import HARD_TEXTS, REAL_TOKENIZERS, real_tokenizer_folder

SHORT: dict[str, Any] = {"min_context_tokens": 6, "min_target_tokens": 5}
TEXTS = [
    "The river rose in spring. Nobody had seen it so high! Farmers moved their cattle to the hills. They waited.",
    "A compressor turns a long text into few vectors, from which a decoder writes the text again or continues it.",
    "Who built the bridge? Engineers from three towns did, in 1904. It was repaired twice.\nToday it carries trams.",
]
CASES: dict[str, dict[str, Any]] = {
    "kl, same": {"target": "same"},
    "kl, same, of prefixes": {"target": "same", "split": "token"},
    "kl, both": {"target": "both"},
    "nll, both": {"target": "both", "divergence": "nll"},
    "kl, skipped": {"skip_rows": 3},
    "nll, skipped": {"skip_rows": 3, "divergence": "nll", "decoder_bos": False},
    "kl and nll, both, skipped": {"target": "both", "skip_rows": 2, "nll_weight": 0.5, "include_last": False},
    "reconstruction, skipped": {"divergence": "reconstruction", "skip_rows": 4},
    "nll, sentences": {"divergence": "nll", "split": "sentence"},
}


@pytest.fixture(scope="module")
def original() -> Any:
    return AutoModelForCausalLM.from_pretrained(ASSETS["nano"], dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def nano() -> Encoder:
    encoder = Encoder.from_pretrained(
        "nano", dtype="float32", device="cpu", memory_tokens=4, template="{instruction}{text}{memory}",
        attention="bidirectional", pooling=Pooling("mean", "memory"), max_length=48,
    )  # fmt: skip
    encoder.backbone.add_lora({"r": 4, "lora_alpha": 8})
    stir(encoder.backbone)
    return encoder.eval()


def rows_of(texts: list[str]) -> list[dict[str, Any]]:
    return [{"text": text} for text in texts]


def context_of(batch: dict[str, Any], b: int) -> tuple[Tokens, list[int]]:
    """Row b without padding, and the ids of its text."""
    real = batch["context"].segment_ids[b] != Segment.PAD
    ids, segments = (part[b : b + 1, real] for part in (batch["context"].input_ids, batch["context"].segment_ids))
    return Tokens(ids, segments), ids[segments == Segment.TEXT].tolist()


@pytest.mark.parametrize(
    "case", by_default(["kl, same, of prefixes", "kl and nll, both, skipped", "reconstruction, skipped"], CASES)
)
def test_the_loss_is_that_of_the_logits(case, nano, original):
    objective = Compression(**SHORT, **CASES[case])
    batch = objective.collate(rows_of(TEXTS), nano, seed=3)
    (bos,) = nano.template.bos_ids
    embed = original.get_input_embeddings()
    which = {"both": ["continuation", "same"], None: ["continuation"]}.get(CASES[case].get("target"), ["same"])
    if objective.divergence == "reconstruction":
        which = ["same"]

    def student(memory: Tensor, target: list[int]) -> Tensor:
        first = embed(torch.tensor([[bos]])) if objective.decoder_bos else torch.zeros(1, 0, memory.shape[-1])
        logits = original(inputs_embeds=torch.cat([first, memory, embed(torch.tensor([target]))], 1)).logits[0]
        return log_softmax(logits[-len(target) - 1 :].double(), -1)

    def teacher(context: list[int], target: list[int]) -> Tensor:
        logits = original(torch.tensor([[bos, *context, *target]])).logits[0]
        return log_softmax(logits[-len(target) - 1 :].double(), -1)

    expected, skip = 0.0, objective.skip_rows
    with torch.no_grad():
        for name in which:
            divergences, likelihoods = [], []
            for b, ids in enumerate(text_ids(TEXTS, nano)):
                row, context = context_of(batch, b)
                assert context == ids[: len(context)]
                target = context if name == "same" else ids[len(context) : 47]
                log_q, log_p = student(nano.memory_states(row), target), teacher(context, target)
                kl = (log_p.exp() * (log_p - log_q)).sum(-1)
                divergences.append(kl[skip : None if objective.include_last else -1].mean())
                likelihoods.append(-log_q[torch.arange(len(target)), target][skip:])
            nll = torch.cat(likelihoods).mean()
            found = torch.stack(divergences).mean() + objective.nll_weight * nll
            expected += float(found if objective.divergence == "kl" else nll) / len(which)
        loss = objective(nano, batch)["loss"].item()
    assert loss == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("split", ["token", "sentence"])
def test_the_same_contexts_for_either_target(split, nano):
    """With `split`, the text that is predicted again is the context that would be continued."""
    every = [Compression(**SHORT, target=target, split=split) for target in ("continuation", "same", "both")]
    for seed in range(4):
        rest, same, both = (one.collate(rows_of(TEXTS), nano, seed=seed) for one in every)
        assert torch.equal(rest["context"].input_ids, same["context"].input_ids)
        assert torch.equal(rest["context"].input_ids, both["context"].input_ids)
        for name in ("student", "teacher"):
            assert torch.equal(rest[name].input_ids, both[name].input_ids)
            assert torch.equal(same[name].input_ids, both[f"{name}_same"].input_ids)
        assert [context_of(rest, b)[1] for b in range(3)] == [
            ids[there].tolist()
            for ids, there in zip(same["student"].input_ids, same["student"].where(Segment.TARGET), strict=True)
        ]


# ---- splits -----------------------------------------------------------------------------------------------------


def test_contexts_end_with_sentences(nano):
    """Every sentence end in the range is drawn, about as often as the others, and nothing else is."""
    text = TEXTS[0]
    wide = nano.with_settings(max_length=64)
    objective = Compression(min_context_tokens=4, min_target_tokens=3, split="sentence")
    seen: Counter[str] = Counter()
    for seed in range(300):
        batch = objective.collate(rows_of([text]), wide, seed=seed)
        seen[wide.tokenizer.decode(context_of(batch, 0)[1]).strip()] += 1
    sentences = split_sentences(text)
    assert seen.keys() == {" ".join(sentences[:n]) for n in range(1, len(sentences))} and len(seen) == 3
    assert min(seen.values()) > 60


def test_a_text_without_a_usable_sentence_end_is_split_at_a_token(nano, caplog):
    """One text has no inner end, one has it before the shortest context is read; both are counted."""
    early = "Yes. Then the long and winding sentence went on, and on, and on, until it reached the sea at last"
    texts = [TEXTS[1], early, TEXTS[0]]
    by_token, by_sentence = (Compression(**SHORT, split=split) for split in ("token", "sentence"))
    with caplog.at_level(logging.INFO, logger="embrew"):
        assert len(by_sentence.prepare(Dataset.from_dict({"text": texts}), nano)) == 3
    assert "compression: 2 of 3 texts have no inner sentence end where they may be split" in caplog.text
    different = 0
    for seed in range(8):
        one, other = (how.collate(rows_of(texts), nano, seed=seed) for how in (by_token, by_sentence))
        for b in range(2):
            assert context_of(one, b)[1] == context_of(other, b)[1]
        different += context_of(one, 2)[1] != context_of(other, 2)[1]
    assert different > 3


def test_spans_hold_what_is_no_blank():
    for text in [*TEXTS, *HARD_TEXTS, '  A b. C d.\r\n\n e f? "G" h. ', "", "\n"]:
        spans = sentence_spans(text)
        inside = set().union(*(range(*span) for span in spans)) if spans else set()
        assert all(text[start:end] == text[start:end].strip() != "" for start, end in spans)
        assert all(char.isspace() for i, char in enumerate(text) if i not in inside)
        assert [text[start:end] for start, end in spans] == split_sentences(text)


@pytest.mark.parametrize("name", ["nano", *REAL_TOKENIZERS])
def test_tokens_of_a_sentence(name, nano):
    """Sentences between blanks: what is decoded before an end is the sentences before it, on real tokenizers."""
    if name == "nano":
        encoder: Any = nano
    else:
        encoder = type("Reads", (), {"tokenizer": AutoTokenizer.from_pretrained(real_tokenizer_folder(name))})
    draw, checked = random.Random(0), 0
    pool = [*SENTENCES, *split_sentences(TEXTS[0]), "Größe 3.5 m²? Ja!", "Dr. No wrote “Ünïcode” e.g. here."]
    for _ in range(20):
        sentences = draw.sample(pool, 4)
        text = " ".join(sentences)
        (ids,), (ends,) = text_ids([text], encoder), sentence_ends([text], encoder)
        spans = sentence_spans(text)
        assert len(ends) == len(spans) - 1 >= 3
        for end, (_, last) in zip(ends, spans, strict=False):
            assert encoder.tokenizer.decode(ids[:end]).strip() == text[:last]
            checked += 1
    assert checked > 60


# ---- rows without a loss, and what is refused --------------------------------------------------------------------


def test_pairs_whose_target_is_skipped_are_left_out(nano, caplog):
    rows = Dataset.from_list([{"query": TEXTS[i], "positive": SENTENCES[i][: 9 * i]} for i in range(3)])
    sizes = [len(ids) + 1 for ids in text_ids(list(rows["positive"]), nano)]  # EOS counts
    objective = Compression(rows="pairs", divergence="nll", end=True, skip_rows=sizes[1])
    with caplog.at_level(logging.INFO, logger="embrew"):
        assert objective.prepare(rows, nano)["positive"] == [rows[2]["positive"]]
    assert f"leaves out 2 of 3 pairs: no token of theirs after skip_rows={sizes[1]}" in caplog.text
    with pytest.raises(ValueError, match="no target of 3 pairs has more tokens than skip_rows=99; lower it"):
        Compression(rows="pairs", skip_rows=99).prepare(rows, nano)
    assert len(Compression(rows="pairs").prepare(rows, nano)) == 3


def test_settings_that_do_not_go_together():
    make = partial(pytest.raises, ValueError)
    with make(match="divergence=reconstruction is divergence=nll with target=same; with target=both, set"):
        Compression(divergence="reconstruction", target="both")
    with make(match="divergence=reconstruction is divergence=nll with target=same; with target=continuation, set"):
        Compression(divergence="reconstruction", target="continuation")
    with make(match="rows=pairs has its own targets; target=same goes with rows=text"):
        Compression(rows="pairs", target="same")
    with make(match="rows=pairs has its own targets; split=token goes with rows=text"):
        Compression(rows="pairs", split="token")
    with make(match="target="):
        Compression(target="next")
    assert Compression(divergence="reconstruction", target="same").targets == {"same": ""}
