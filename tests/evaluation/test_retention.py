"""Written answers beside held-out ones: scores by hand, perplexities by a loop, and who can be judged."""

from __future__ import annotations

import json
import math

import pytest
import torch

from embrew.data.beir import read_beir
from embrew.evaluation import evaluate, find_task
from embrew.evaluation.kinds.generation import choose, evaluate_generation, held_out
from embrew.evaluation.scoring import check_settings
from embrew.modeling.encoder import Encoder
from embrew.modeling.generation import target_rows, target_scores
from embrew.modeling.text.tokens import Segment

pytest.importorskip("sacrebleu")
pytest.importorskip("rouge_score")

ASKED = ["what do cats do?", "and dogs?", "fish?"]
ANSWERS = ["cats sleep all day long", "dogs bark", "fish swim in the sea"]


def test_scores_by_hand(make_encoder, monkeypatch):
    """One answer right, one half right, one wrong: ROUGE-L 1, 2/3 (one word of one and of two), 0."""
    encoder = make_encoder(attention="causal")
    monkeypatch.setattr(Encoder, "generate", lambda *_, **__: ["cats sleep all day long", "bark", "birds fly"])
    found = evaluate_generation(encoder, ASKED, ANSWERS)
    assert found["examples"]["score"] == pytest.approx([1, 2 / 3, 0])
    assert found["main_score"] == found["rouge_l"] == pytest.approx(5 / 9)
    # n-grams that are right: 6 of 8, 4 of 5, 3 of 3, 2 of 2; 8 words for 12
    precisions = [6 / 8, 4 / 5, 3 / 3, 2 / 2]
    assert found["bleu_4"] == pytest.approx(math.exp(1 - 12 / 8) * math.prod(precisions) ** 0.25, rel=1e-4)
    monkeypatch.setattr(Encoder, "generate", lambda *_, **__: list(ANSWERS))
    found = evaluate_generation(encoder, ASKED, ANSWERS)
    assert (found["rouge_l"], found["bleu_4"]) == pytest.approx((1, 1))


def test_perplexity_and_reconstruction(make_encoder):
    encoder = make_encoder(attention="causal", prompts={"query": "ask: ", "document": "read: "})
    found = evaluate_generation(encoder, ASKED, ANSWERS, max_new_tokens=4)
    assert found["source"] == "memory"
    for key, source in (("perplexity", "memory"), ("perplexity_text", "text")):
        rows = target_rows(encoder, ASKED, ANSWERS, instruction="ask: ", max_tokens=512, limit=512)
        losses = torch.cat([losses for losses, _ in target_scores(encoder, rows, source=source)])
        assert found[key] == pytest.approx(math.exp(losses.double().mean()), rel=1e-6)
    assert found["perplexity"] != pytest.approx(found["perplexity_text"], rel=1e-3)
    right = tokens = 0
    for answer in ANSWERS:
        rows = target_rows(encoder, [answer], [answer], instruction="read: ", max_tokens=512, limit=512)
        ((_, likeliest),) = target_scores(encoder, rows, source="memory")
        assert rows[0].segments.count(Segment.TARGET) == len(likeliest)
        right += int(likeliest[:-1].sum())
        tokens += len(likeliest) - 1
    assert found["reconstruction"] == pytest.approx(right / tokens)


def test_without_a_bottleneck_the_text_is_visible(make_encoder):
    encoder = make_encoder(attention="causal", memory_tokens=0)
    found = evaluate_generation(encoder, ASKED, ANSWERS, max_new_tokens=4)
    assert found["source"] == "text" and found["reconstruction"] is None
    assert found["perplexity"] == found["perplexity_text"]
    with pytest.raises(ValueError, match="has no bottleneck"):
        evaluate_generation(encoder, ASKED, ANSWERS, source="memory")


def test_who_can_be_judged(bag_of_words, retrieval_folder):
    task = find_task(retrieval_folder, split="dev", kind="generation")
    with pytest.raises(ValueError, match="a BagOfWords only gives vectors"):
        evaluate(bag_of_words, [task])
    assert find_task(retrieval_folder, split="dev").kind == "retrieval"
    with pytest.raises(ValueError, match="is not a setting of generation; choose from questions, max_chars"):
        check_settings(find_task(retrieval_folder, split="dev", kind="generation", dims=3))


def test_pairs_and_judged_documents(make_encoder, retrieval_folder, tmp_path):
    """The best-judged document is the answer; a question without one that is there (q3) is left out."""
    with (retrieval_folder / "qrels" / "dev.tsv").open("a") as file:
        file.write("q1\td3\t2\n")
    assert held_out(read_beir(retrieval_folder, "dev")) == (["cats", "dogs"], ["fish swim", "dogs bark loudly"])
    rows = [{"query": question, "positive": answer} for question, answer in zip(ASKED, ANSWERS, strict=True)]
    (tmp_path / "pairs").mkdir()
    (tmp_path / "pairs" / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tasks = [
        find_task(retrieval_folder, split="dev", kind="generation", max_new_tokens=3),
        find_task(tmp_path / "pairs", kind="generation", max_new_tokens=3, questions=2, instruction="ask: "),
    ]
    encoder = make_encoder(attention="causal")
    results = evaluate(encoder, tasks, output_dir=tmp_path / "out", batch_tokens=64)
    assert [result.counts["queries"] for result in results] == [2, 2]
    asked = results[1].examples["question"]
    written = [encoder.generate(question, prompt="ask: ", max_new_tokens=3) for question in asked]
    assert results[1].examples["answer"] == written
    assert (tmp_path / "out" / "pairs.test.json").is_file()


def test_a_sample_is_seeded_and_by_length():
    pairs = [str(i) for i in range(20)], ["x" * i for i in range(20)]
    some = choose(pairs, max_chars=10, count=4, seed=1)
    assert some == choose(pairs, max_chars=10, count=4, seed=1) != choose(pairs, max_chars=10, count=4, seed=2)
    assert all(1 <= len(answer) <= 10 and len(answer) == int(question) for question, answer in zip(*some, strict=True))
    with pytest.raises(ValueError, match="questions=11, max_chars=10: 10 of 20 questions have such an answer"):
        choose(pairs, max_chars=10, count=11, seed=1)
