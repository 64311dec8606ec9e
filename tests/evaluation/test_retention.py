"""Written answers beside held-out ones: scores by hand, perplexities by a loop, and who can be judged."""

import math

import pytest
import torch

from embrew.data.beir import read_beir
from embrew.encoder import Encoder
from embrew.evaluation import evaluate, find_task
from embrew.evaluation.kinds.generation import choose_pairs, held_out_pairs, other_rows, score_generation
from embrew.evaluation.targets import target_rows, target_scores
from embrew.evaluation.task import Instructed
from embrew.text.tokens import Segment
from tests.rows import write_rows

pytest.importorskip("sacrebleu")
pytest.importorskip("rouge_score")


def evaluate_generation(encoder, questions, answers, *, instruction=None, **settings):
    with_prefix = encoder if instruction is None else Instructed(encoder, {"prompt": instruction})
    return score_generation(with_prefix, (questions, answers), **settings)


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


def predicted_by(encoder, pairs):
    """Perplexity and share of likeliest tokens of `(read, target)` ids, row by row through the library's own model."""
    losses, right = [], []
    for read, target in pairs:
        with torch.no_grad():
            logits = encoder.backbone.causal_lm(torch.tensor([read + target])).logits[0, len(read) - 1 : -1].double()
        chosen = logits.log_softmax(-1)[range(len(target)), target]
        losses += (-chosen).tolist()
        right += [int(row.argmax()) == token for row, token in zip(logits, target, strict=True)]
    return math.exp(sum(losses) / len(losses)), sum(right) / len(right)


def test_what_another_text_and_none_tell(make_encoder, tokenizer):
    """Without a bottleneck, of two questions: each answer after the other question, and after BOS."""
    encoder = make_encoder(attention="causal", memory_tokens=0)
    found = evaluate_generation(encoder, ASKED[:2], ANSWERS[:2], max_new_tokens=2)

    def ids(text):
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    one, two = ([tokenizer.bos_token_id, *ids(text)] for text in ASKED[:2])
    first, second = ([*ids(text), tokenizer.eos_token_id] for text in ANSWERS[:2])
    read = encoder.template.rows(ASKED[:2], instruction=encoder.prompts["query"], max_length=512)
    assert [row.ids for row in read] == [one, two]
    bos = [tokenizer.bos_token_id]
    for ending, pairs in {
        "": [(one, first), (two, second)],
        "_other": [(two, first), (one, second)],
        "_none": [(bos, first), (bos, second)],
    }.items():
        perplexity, accuracy = predicted_by(encoder, pairs)
        assert found[f"perplexity{ending}"] == pytest.approx(perplexity, rel=1e-5)
        assert found[f"accuracy{ending}"] == pytest.approx(accuracy)
    assert len({found[f"perplexity{ending}"] for ending in ("", "_other", "_none")}) == 3


def test_what_another_memory_and_none_tell(make_encoder):
    """Through the bottleneck, of two questions: the other's memory by rows of that question; without it as above."""
    encoder = make_encoder(attention="causal", prompts={"query": "ask: ", "document": "read: "})
    found = evaluate_generation(encoder, ASKED[:2], ANSWERS[:2], max_new_tokens=2)
    for name, read, instruction, cut in (
        ("perplexity", ASKED[1::-1], "ask: ", 0),
        ("reconstruction", ANSWERS[1::-1], "read: ", 1),
    ):
        rows = target_rows(encoder, read, ANSWERS[:2], instruction=instruction, max_tokens=512, limit=512)
        losses, right = zip(*target_scores(encoder, rows, source="memory"), strict=True)
        if name == "perplexity":
            assert found["perplexity_other"] == pytest.approx(math.exp(torch.cat(losses).double().mean()), rel=1e-6)
            assert found["accuracy_other"] == pytest.approx(float(torch.cat(right).double().mean()))
        else:
            kept = torch.cat([row[:-1] for row in right])  # without EOS
            assert found["reconstruction_other"] == pytest.approx(float(kept.double().mean()))
        targets = [[i for i, s in zip(row.ids, row.segments, strict=True) if s == Segment.TARGET] for row in rows]
        perplexity, accuracy = predicted_by(encoder, [([1], ids[: len(ids) - cut]) for ids in targets])
        if name == "perplexity":
            assert found["perplexity_none"] == pytest.approx(perplexity, rel=1e-5)
            assert found["accuracy_none"] == pytest.approx(accuracy)
        else:
            assert found["reconstruction_none"] == pytest.approx(accuracy)


def test_another_is_never_a_row_itself(make_encoder):
    for count in (2, 3, 7, 50):
        rows = [(f"question {i}", f"answer {i}") for i in range(count)]
        for seed in range(20):
            order = other_rows(rows, seed=seed)
            assert sorted(order) == list(range(count)) and all(i != at for at, i in enumerate(order))
    assert other_rows(rows, seed=1) == other_rows(rows, seed=1) != other_rows(rows, seed=2)


def test_another_neither_asks_nor_answers_the_same():
    rows = [("a", 1), ("b", 2), ("b", 3), ("c", 2), ("d", 4), ("e", 5), ("f", 6), ("g", 7)]
    for seed in range(50):
        order = other_rows(rows, seed=seed)
        assert sorted(order) == list(range(len(rows)))
        for at, i in enumerate(order):
            assert rows[at][0] != rows[i][0] and rows[at][1] != rows[i][1]
    # the answers of one question, and the questions of one answer, hang together: three of five rows leave no room
    assert other_rows([("a", 1), ("a", 2), ("b", 2), ("c", 3), ("d", 4)], seed=1) is None
    assert other_rows([("a", 1)], seed=1) is other_rows([], seed=1) is None


def test_a_single_row_has_no_other(make_encoder):
    found = evaluate_generation(make_encoder(attention="causal"), ASKED[:1], ANSWERS[:1], max_new_tokens=1)
    assert found["perplexity_other"] is found["accuracy_other"] is found["reconstruction_other"] is None
    assert found["perplexity_none"] > 1


def test_without_a_bottleneck_the_text_is_visible(make_encoder):
    encoder = make_encoder(attention="causal", memory_tokens=0)
    found = evaluate_generation(encoder, ASKED, ANSWERS, max_new_tokens=4)
    assert found["source"] == "text" and found["reconstruction"] is found["reconstruction_none"] is None
    assert found["perplexity"] == found["perplexity_text"]
    with pytest.raises(ValueError, match="has no bottleneck"):
        evaluate_generation(encoder, ASKED, ANSWERS, source="memory")


def test_who_can_be_judged(bag_of_words, retrieval_folder):
    task = find_task(retrieval_folder, split="dev", kind="generation")
    with pytest.raises(ValueError, match="a BagOfWords only gives vectors"):
        evaluate(bag_of_words, [task])
    assert find_task(retrieval_folder, split="dev").kind == "retrieval"
    with pytest.raises(ValueError, match="is not a setting of generation; choose from source, bos"):
        find_task(retrieval_folder, split="dev", kind="generation", dims=3)


def test_pairs_and_judged_documents(make_encoder, retrieval_folder, tmp_path):
    """The best-judged document is the answer; a question without one that is there (q3) is left out."""
    with (retrieval_folder / "qrels" / "dev.tsv").open("a") as file:
        file.write("q1\td3\t2\n")
    assert held_out_pairs(read_beir(retrieval_folder, "dev")) == (["cats", "dogs"], ["fish swim", "dogs bark loudly"])
    rows = [{"query": question, "positive": answer} for question, answer in zip(ASKED, ANSWERS, strict=True)]
    (tmp_path / "pairs").mkdir()
    write_rows(tmp_path / "pairs" / "test.jsonl", rows)
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
    some = choose_pairs(pairs, max_chars=10, count=4, seed=1)
    again, other = (choose_pairs(pairs, max_chars=10, count=4, seed=seed) for seed in (1, 2))
    assert some == again != other
    assert all(1 <= len(answer) <= 10 and len(answer) == int(question) for question, answer in zip(*some, strict=True))
    with pytest.raises(ValueError, match="questions=11, max_chars=10: 10 of 20 questions have such an answer"):
        choose_pairs(pairs, max_chars=10, count=11, seed=1)
