"""`embrew analyze demonstrations` on encoders that read them."""

import json

import pytest

from embrew.analysis import demonstrations
from embrew.evaluation import evaluate, find_task
from embrew.model.contexts import Context
from embrew.settings.encoder import Demonstration, Demonstrations
from tests.cli.test_analyze import data, models, run, written

__all__ = ["data", "models"]
PAIRS = [{"query": f"question {i}", "response": f"answer {i}, which is longer"} for i in range(4)]


@pytest.fixture
def reading(make_encoder):
    settings = {"template": "{instruction}{text}{eos}", "memory_tokens": 0, "pooling": "last", "attention": "causal"}

    def make(**demos):
        return make_encoder(**settings, demonstrations=Demonstrations(**demos), max_length=200)

    return make


def test_vectors_take_two_positions_a_demonstration_and_text_takes_more(reading, data):
    pairs = tuple(Demonstration(pair["query"], pair["response"]) for pair in PAIRS)
    context, tasks = Context("find: ", pairs), [find_task("STS")]
    encoder = reading()
    shots = demonstrations.by_demonstrations(encoder, context, [4, 0, 2, 2], tasks)
    assert [one.count for one in shots] == [0, 2, 4] and encoder.contexts == {}
    each = len(encoder.tokenizer("find: ", add_special_tokens=False).input_ids) + 2  # a vector for either text
    assert [one.tokens - shots[0].tokens for one in shots] == pytest.approx([0, 2 * each, 4 * each])
    assert all(one.milliseconds > 0 and -1 <= one.score <= 1 for one in shots)
    encoder.add_context("four", context)
    (scored,) = evaluate(encoder, tasks, context="four")
    assert shots[-1].score == pytest.approx(scored.main_score)
    text = demonstrations.by_demonstrations(reading(compress="none"), context, [0, 4], tasks)
    assert text[0].tokens == shots[0].tokens and text[1].tokens > shots[-1].tokens
    with pytest.raises(ValueError, match="the file has 4 demonstrations: give 0 to 4"):
        demonstrations.by_demonstrations(encoder, context, [5], tasks)
    shown = Context(
        "", (Demonstration(json.loads((data / "STS/test.jsonl").read_text().splitlines()[0])["sentence1"], "x"),)
    )
    with pytest.raises(ValueError, match="STS"):
        demonstrations.by_demonstrations(encoder, shown, [1], tasks)


def test_demonstrations_as_a_command(models, reading, data):
    models[0]["epic"] = reading()
    (data / "demos.json").write_text(json.dumps(PAIRS))
    (data / "epic").mkdir()
    arguments = ["demonstrations", "epic", "--demos", "demos.json", "--data", "STS"]
    assert "has no instruction" in run(*arguments).stderr
    arguments += ["--instruction", "find: "]
    result = run(*arguments, "--counts", "0..2", "-o", "out")
    assert result.exit_code == 0, result.stderr
    document, rows = written(data / "out", "demonstrations")
    assert [int(row["count"]) for row in rows] == [0, 1, 2] and "scored on STS test" in result.stdout
    assert document["models"][0]["training_seconds"] is None
    assert "needs an encoder of embrew" in run("demonstrations", "unknown", *arguments[2:]).stderr
