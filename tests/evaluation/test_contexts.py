"""Judging with a context: on both sides of symmetric tasks, before the queries of others; chosen on a dev split."""

import json

import numpy as np
import pytest

from embrew.analysis.demonstrations import choose_demonstrations
from embrew.evaluation import evaluate, find_task
from embrew.model.context_vectors import initialize_demonstrator
from embrew.model.contexts import Context
from embrew.settings.encoder import Demonstration, Demonstrations
from tests.conftest import SENTENCES
from tests.rows import read_rows, write_rows

PAIRS = tuple(Demonstration(f"question {i}", text) for i, text in enumerate(SENTENCES[:3]))


@pytest.fixture
def encoder(make_encoder):
    made = make_encoder(
        memory_tokens=0,
        attention="causal",
        template="{instruction}{text}{eos}",
        prompts={"document": "d: "},
        demonstrations=Demonstrations(),
    )
    initialize_demonstrator(made)
    made.add_context("task", Context("find: ", PAIRS))
    return made


@pytest.fixture
def sts(tmp_path):
    folder = tmp_path / "STS"
    for split, first in (("dev", 0), ("test", 1)):
        rows = [
            {"sentence1": a, "sentence2": b[first:], "score": float((i * 3 + j + first) % 5)}
            for i, a in enumerate(SENTENCES)
            for j, b in enumerate(SENTENCES)
        ]
        write_rows(folder / f"{split}.jsonl", rows)
    return folder


@pytest.fixture
def reranking(tmp_path):
    row = {"query": "fox?", "positive": [SENTENCES[0]], "negative": list(SENTENCES[1:])}
    return write_rows(tmp_path / "rerank.jsonl", [row])


def watched(encoder, monkeypatch):
    calls = []
    for method in ("encode", "encode_query", "encode_document"):
        original = getattr(type(encoder), method)

        def seen(self, inputs, *args, _method=method, _original=original, **options):
            if len(calls) < 100:
                calls.append((_method, options.get("prompt_name", args[0] if args else None)))
            return _original(self, inputs, *args, **options)

        monkeypatch.setattr(type(encoder), method, seen)
    return calls


def test_both_sides_of_symmetric_tasks_and_the_queries_of_others(encoder, sts, reranking, monkeypatch, tmp_path):
    calls = watched(encoder, monkeypatch)
    evaluate(encoder, [sts], context="task")
    assert {name for _, name in calls} == {"task"}
    calls.clear()
    evaluate(encoder, [reranking], context="task")
    assert ("encode_query", "task") in calls
    assert ("encode_document", None) in calls
    assert ("encode_document", "task") not in calls


def test_the_score_is_that_of_prompted_vectors(encoder, sts):
    from scipy.stats import spearmanr

    rows = read_rows(sts / "test.jsonl")
    sides = [
        encoder.encode([row[name] for row in rows], prompt_name="task").astype(float)
        for name in ("sentence1", "sentence2")
    ]
    wanted = spearmanr(np.sum(sides[0] * sides[1], axis=1), [row["score"] for row in rows]).statistic
    (found,), (plain,) = evaluate(encoder, [sts], context="task"), evaluate(encoder, [sts])
    assert found.main_score == pytest.approx(wanted, abs=0.01)
    assert found.main_score != plain.main_score


def test_results_say_which_context_it_was(encoder, sts, tmp_path):
    evaluate(encoder, [sts], context="task", output_dir=tmp_path / "out")
    (run,) = (tmp_path / "out").glob("*.run.json")
    settings = json.loads(run.read_text())["settings"]
    assert settings["context"]["name"] == "task"
    evaluate(encoder, [sts], context="task", output_dir=tmp_path / "out")  # evaluated before
    encoder.add_context("task", Context("find: ", PAIRS[:1]))
    with pytest.raises(FileExistsError, match="was evaluated with other"):
        evaluate(encoder, [sts], context="task", output_dir=tmp_path / "out")
    with pytest.raises(FileExistsError, match="was evaluated with other"):
        evaluate(encoder, [sts], output_dir=tmp_path / "out")


def test_mistakes(encoder, sts):
    with pytest.raises(ValueError, match="context='other'; this encoder has task"):
        evaluate(encoder, [sts], context="other")
    with pytest.raises(ValueError, match="has its own instruction"):
        evaluate(encoder, [find_task(sts, instruction="x: ")], context="task")
    for counts in ([4], [0], []):
        with pytest.raises(ValueError, match="the context has 3 demonstrations"):
            choose_demonstrations(encoder, Context("find: ", PAIRS), counts, [sts])


def test_the_number_is_chosen_on_dev_alone(encoder, sts):
    context = Context("find: ", PAIRS)
    before = dict(encoder.contexts)
    choice = choose_demonstrations(encoder, context, range(4), [sts])
    assert encoder.contexts == before
    scores = {}
    for split in ("dev", "test"):
        for count in range(4):
            encoder.add_context(f"with-{count}", Context("find: ", PAIRS[:count]))
            (result,) = evaluate(encoder, [find_task(sts, split=split)], context=f"with-{count}")
            scores[split, count] = result.main_score
    assert choice.dev == {count: scores["dev", count] for count in range(4)}
    assert choice.chosen == max(range(4), key=lambda count: scores["dev", count])
    assert choice.test == {count: scores["test", count] for count in sorted({0, 3, choice.chosen})}


def test_the_choice_is_judged_on_other_tasks_if_they_are_given(encoder, sts, reranking):
    task = find_task(reranking)
    choice = choose_demonstrations(encoder, Context("find: ", PAIRS), [2], [sts], tests=[task])
    encoder.add_context("two", Context("find: ", PAIRS[:2]))
    (result,) = evaluate(encoder, [task], context="two")
    assert choice.test[2] == result.main_score
    assert choice.dev == choose_demonstrations(encoder, Context("find: ", PAIRS), [2], [sts]).dev


def test_documents_are_embedded_once_for_all_numbers(encoder, reranking, monkeypatch):
    embedded: list[str] = []
    encode = encoder.encode_document

    def counted(inputs, **options):
        embedded.extend(inputs)
        return encode(inputs, **options)

    task = find_task(reranking)
    alone = choose_demonstrations(encoder, Context("find: ", PAIRS), [3], [reranking])
    monkeypatch.setattr(encoder, "encode_document", counted)
    evaluate(encoder, [task])
    once = len(embedded)
    assert choose_demonstrations(encoder, Context("find: ", PAIRS), range(4), [reranking]).dev[3] == alone.dev[3]
    assert len(embedded) == 2 * once


def test_without_a_test_split_dev_is_all_there_is(encoder, sts):
    (sts / "test.jsonl").unlink()
    choice = choose_demonstrations(encoder, Context("find: ", PAIRS), [2], [sts])
    assert list(choice.dev) == [0, 2]
    assert choice.test == {}
