"""The small world's controls: plans that can be run, demonstrations, and planted bugs that are bugs."""

import sys
from pathlib import Path

import pytest
import torch
import yaml

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from world.bugs import BUGS, adapter_on, blind_memory, no_bottleneck
from world.demonstrated import CONDITIONS, demonstrations
from world.facts import make_world
from world.language import sign, text_of
from world.planted import noticed_by
from world.tasks import mentions, split_of
from world.tokenizer import make_tokenizer

from embrew import Encoder
from embrew.methods import Bottleneck, Compression
from embrew.recipe import Recipe, build
from embrew.settings.encoder import Pooling
from embrew.text.tokens import Tokens

PLANS = Path(__file__).parents[2] / "benchmarks" / "plans"
NAMES = sorted(path.stem for path in PLANS.glob("world-*.yaml"))
WORLD = make_world(0)
TASKS = {
    "world-llm2comp": {"paraphrase", "similarity", "gap: share", "gap: other"},
    "world-lbr": {"signs", "naming", "naming: perplexity", "naming: perplexity_text"},
    "world-autoregembed": {"following"},
    "world-epic": {*CONDITIONS, "followed", "between relations"},
}


@pytest.fixture
def placed(monkeypatch):
    monkeypatch.setenv("WORLD", "/nowhere")
    monkeypatch.chdir(PLANS.parents[1])


def plan_of(name):
    return yaml.safe_load((PLANS / f"{name}.yaml").read_text())


def settings_of(plan, entry):
    return [one.replace("$WORLD", "/nowhere") for one in [*plan.get("set", []), *entry.get("set", [])]]


@pytest.mark.parametrize("name", NAMES)
def test_every_row_can_be_trained(name, placed):
    plan = plan_of(name)
    rows = set()
    for entry in plan["rows"]:
        recipe = Recipe.load(entry["recipe"], settings_of(plan, entry))
        kept = [stage for stage in recipe.stages if stage.name in entry.get("stages", [stage.name])]
        assert kept or "untrained" in entry["row"]
        for index in range(len(kept)):
            build.check_stage(recipe.model_copy(update={"stages": kept}), index)
        several = len(recipe.stages) > 1
        rows |= {f"{entry['row']}: {stage.name}" if several else entry["row"] for stage in kept} or {entry["row"]}
    for claim in plan.get("claims", []):
        assert claim["task"] in TASKS[name]
        assert {one for one in (claim["better"], claim["than"]) if isinstance(one, str)} <= rows
    if name in TASKS:
        assert len(plan["claims"]) >= 5
        assert all(entry["seeds"] in ([1], [1, 2, 3]) for entry in plan["rows"])


def test_all_plans_are_there():
    assert set(TASKS) <= set(NAMES)
    assert {bug.plan for bug in BUGS} == set(TASKS)
    for bug in BUGS:
        assert bug.row in {entry["row"] for entry in plan_of(bug.plan)["rows"]}


# ---- demonstrations ------------------------------------------------------------------------------------------------


VERBS = ("lives in", "works as", "eats mostly", "keeps one", "carries a")


def test_demonstrations_are_right_or_wrong_as_they_say():
    train = split_of(WORLD)["train"]
    owner = {text: WORLD.entities[e] for e in train for text in mentions(WORLD, e)}

    def true_of(pair, relation):
        value = WORLD.values[relation][owner[pair.query].values[relation]][0]
        return pair.passage == f"it {VERBS[relation]} {value} ."

    for relation in range(5):
        shown = {name: demonstrations(WORLD, relation, name, seed=3) for name in CONDITIONS}
        assert shown["none"] == ()
        assert [len(shown[name]) for name in CONDITIONS[1:]] == [5, 5, 5]
        assert all(true_of(pair, relation) for pair in shown["right"])
        assert not any(true_of(pair, relation) for pair in shown["shuffled"])
        assert {pair.query for pair in shown["right"]} == {pair.query for pair in shown["shuffled"]}
        assert {pair.passage for pair in shown["right"]} == {pair.passage for pair in shown["shuffled"]}
        assert all(true_of(pair, (relation + 1) % 5) for pair in shown["foreign"])
        assert shown["right"] == demonstrations(WORLD, relation, "right", seed=3)
        assert shown["right"] != demonstrations(WORLD, relation, "right", seed=4)
    with pytest.raises(ValueError, match="choose from none, right, shuffled, foreign"):
        demonstrations(WORLD, 0, "wrong", seed=0)


# ---- bugs ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """A language model of random weights with the world's tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("teacher")
    tokenizer = make_tokenizer(WORLD)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        head_dim=16, intermediate_size=64, max_position_embeddings=256, tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def encoder_of(folder, **given):
    usual = {
        "template": "{instruction}{text}{memory}",
        "attention": "causal",
        "pooling": Pooling("mean", over="memory"),
    }
    memory = {} if "demonstrations" in given else {"memory_tokens": 2}
    encoder = Encoder.from_pretrained(folder, dtype="float32", **memory, **{**usual, **given})
    encoder.backbone.add_lora({"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"]})
    torch.manual_seed(1)
    for name, parameter in encoder.backbone.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return encoder.eval()


def loss_of(objective, encoder, rows):
    objective.setup(encoder)
    batch = objective.collate(rows, encoder, seed=0)
    return objective, batch


def value(objective, encoder, batch):
    with torch.no_grad():
        return float(objective(encoder, batch)["loss"])


TEXTS = [text_of(WORLD, entity, (0, 1, 2), 0) for entity in range(3)]


@pytest.mark.parametrize("divergence", ["kl", "nll"])
def test_with_the_adapter_on_the_decoder_is_another(teacher, divergence):
    encoder = encoder_of(teacher)
    objective = Compression(divergence=divergence, min_context_tokens=4, min_target_tokens=4)
    objective, batch = loss_of(objective, encoder, [{"text": text} for text in TEXTS])
    right = value(objective, encoder, batch)
    with adapter_on():
        wrong = value(objective, encoder, batch)
    assert abs(wrong - right) > 1e-3
    assert value(objective, encoder, batch) == right


def test_blind_memory_is_the_same_for_all_texts(teacher):
    from embrew.methods import frozen_decoder

    encoder = encoder_of(teacher, attention="bidirectional")
    context = Tokens.pad(encoder.template.rows(TEXTS, instruction="", max_length=64))
    assert len(set(context.lengths)) == 1
    with torch.no_grad():
        right = frozen_decoder.memory_states(encoder, context)
        attention = encoder.attention
        with blind_memory():
            blind = frozen_decoder.memory_states(encoder, context)
    assert encoder.attention is attention
    assert float((right[0] - right[1]).abs().max()) > 1e-2
    assert torch.allclose(blind[0], blind[1], atol=1e-5)
    assert torch.allclose(blind[0], blind[2], atol=1e-5)
    assert float((blind - right).abs().max()) > 1e-2


def test_without_a_bottleneck_the_target_sees_the_text(teacher):
    encoder = encoder_of(teacher)
    rows = [{"query": sign(WORLD, e), "positive": TEXTS[e], "negatives": []} for e in range(3)]
    objective, batch = loss_of(Bottleneck(), encoder, rows)
    right = value(objective, encoder, batch)
    with no_bottleneck():
        wrong = value(objective, encoder, batch)
    assert abs(wrong - right) > 1e-3
    assert value(objective, encoder, batch) == right


def test_a_bug_is_noticed_by_claims_that_no_longer_hold():
    claims = [
        {"claim": "far", "better": "a", "than": "b", "task": "t", "by": 20},
        {"claim": "near", "better": "a", "than": "b", "task": "t"},
        {"claim": "never", "better": "b", "than": "a", "task": "t"},
        {"claim": "writes", "better": "a", "than": 5, "task": "t: perplexity", "lower": True},
    ]
    healthy, further = {"a": {"t": [0.9, 0.8]}, "b": {"t": [0.3, 0.2]}}, {"a": {"t: perplexity": [2.0, 3.0]}}
    seeds = {"a": [1, 2], "b": [1, 2]}
    broken = {"a": {"t": [0.4, 0.5], "t: perplexity": [3.0, 4.0]}}
    assert noticed_by(claims, healthy, further, broken, seeds) == {"far": 1}
    broken = {"a": {"t": [0.1, 0.2], "t: perplexity": [6.0, 4.0]}}
    assert noticed_by(claims, healthy, further, broken, seeds) == {"far": 2, "near": 2, "writes": 1}
    assert noticed_by(claims, healthy, further, {}, seeds) == {}
    assert noticed_by(claims, {**healthy, "a": {"t": [0.9, 0.3]}}, further, broken, seeds) == {"near": 2, "writes": 1}
