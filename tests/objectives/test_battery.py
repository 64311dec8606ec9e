"""What every objective owes, whatever its method."""

import ast
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from embrew import methods
from embrew.methods import OBJECTIVES, Objective
from embrew.recipe import build
from tests.objectives import cases
from tests.objectives.cases import BARE, ENCODERS, LORA, SETTINGS, loss_and_gradients, prepared

CASES = [(name, settings) for name, several in SETTINGS.items() for settings in several]
IDS = [f"{name}-{i}" for name, several in SETTINGS.items() for i in range(len(several))]
every_case = pytest.mark.parametrize(("name", "settings"), CASES, ids=IDS)
first_cases = pytest.mark.parametrize(
    ("name", "settings"),
    [
        pytest.param(*case, id=id_, marks=() if id_.endswith("-0") else pytest.mark.slow)
        for case, id_ in zip(CASES, IDS, strict=True)
    ],
)


def ready(make_encoder, name, settings, *, dropout=False):
    """Encoder, objective and batch; dropout off, unless asked for."""
    encoder = make_encoder(lora=LORA, **ENCODERS[name])
    objective = build.objective({"type": name, **settings})
    objective.setup(encoder)
    if not dropout:
        encoder.backbone.set_attention_dropout(0.0)
    return encoder.train(), objective, objective.collate(prepared(objective, encoder), encoder)


def classes_on_disk():
    """Names of the classes in the folder of objectives that derive from `Objective`, read without importing them."""
    trees = [ast.parse(path.read_text()) for path in Path(methods.__file__).parent.glob("*.py")]
    classes = [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    bases = {node.name: {base.id for base in node.bases if isinstance(base, ast.Name)} for node in classes}
    derived = {"Objective"}
    while more := {name for name, parents in bases.items() if parents & derived} - derived:
        derived |= more
    return derived - {"Objective", "EmbeddingObjective", "FrozenDecoder", "Generative", "Nested", "TokenObjective"}


def test_every_objective_is_here():
    assert {kind.__name__ for kind in OBJECTIVES.values()} == classes_on_disk()
    assert len(OBJECTIVES) == len(classes_on_disk()) > 1
    assert cases.CASES.keys() == OBJECTIVES.keys() and all(SETTINGS.values())
    assert len(CASES) == len(set(IDS)) > len(OBJECTIVES)


@every_case
def test_the_loss_is_a_finite_scalar_and_only_what_is_trained_gets_a_gradient(make_encoder, name, settings):
    encoder, objective, batch = ready(make_encoder, name, settings, dropout=True)
    parts = objective(encoder, batch)
    assert parts["loss"].shape == ()
    assert torch.isfinite(parts["loss"])
    assert not any(value.requires_grad for key, value in parts.items() if key != "loss")
    loss, grads = loss_and_gradients(encoder, objective, batch)
    assert loss != 0
    assert set(grads) == {key for key, p in encoder.named_parameters() if p.requires_grad}
    assert all(torch.isfinite(grad).all() for grad in grads.values())
    idle = {"backbone.memory"} if name in BARE else set()
    assert {key for key, grad in grads.items() if grad.abs().max() == 0} == idle


@first_cases
def test_the_order_of_a_batch_does_not_matter(make_encoder, name, settings):
    encoder, objective, batch = ready(make_encoder, name, settings)
    order = [3, 0, 4, 2, 1]
    rows = prepared(objective, encoder)
    shuffled = objective.collate([rows[i] for i in order], encoder)
    loss, grads = loss_and_gradients(encoder, objective, batch)
    again, others = loss_and_gradients(encoder, objective, shuffled)
    torch.testing.assert_close(again, loss, rtol=1e-5, atol=1e-6)
    for key, grad in grads.items():
        torch.testing.assert_close(others[key], grad, rtol=1e-3, atol=1e-5)


@first_cases
def test_activation_checkpointing_changes_nothing(make_encoder, name, settings):
    encoder, objective, batch = ready(make_encoder, name, settings)
    loss, grads = loss_and_gradients(encoder, objective, batch)
    runs = []
    encoder.backbone.inner.layers[0].mlp.register_forward_pre_hook(lambda *_: runs.append(torch.is_grad_enabled()))
    loss_and_gradients(encoder, objective, batch)
    plain = len(runs)
    encoder.backbone.causal_lm.activation_checkpointing_enable()
    again, others = loss_and_gradients(encoder, objective, batch)
    assert len(runs) - plain > plain  # layers were run a second time
    assert again.item() == pytest.approx(loss.item(), rel=1e-6)
    assert set(others) == set(grads)
    for key, grad in grads.items():
        torch.testing.assert_close(others[key], grad, rtol=1e-4, atol=1e-6)


@first_cases
def test_a_batch_is_decided_by_rows_and_seed(make_encoder, name, settings):
    encoder, objective, _ = ready(make_encoder, name, settings)
    rows = prepared(objective, encoder)
    batches = []
    for state in (0, 1):  # of torch's own generator, which collate leaves alone
        torch.manual_seed(state)
        batches.append(objective.collate(rows, encoder, seed=3))
        assert torch.initial_seed() == state
    assert batches[0].keys() == batches[1].keys()
    assert all(same(part, batches[1][key]) for key, part in batches[0].items())


def same(part, other):
    """Whether two parts of a batch are equal: tensors, arrays, and dataclasses with them."""
    if isinstance(part, torch.Tensor):
        return torch.equal(part, other)
    if isinstance(part, np.ndarray):
        return np.array_equal(part, other)
    if is_dataclass(part):
        return all(same(getattr(part, field.name), getattr(other, field.name)) for field in fields(part))
    return part == other


def block_of(objective):
    """The recipe block of an objective, nested ones too."""
    (name,) = (name for name, kind in OBJECTIVES.items() if kind is type(objective))
    values = {field.name: getattr(objective, field.name) for field in fields(objective)}
    return {"type": name, **{key: block_of(v) if isinstance(v, Objective) else v for key, v in values.items()}}


@every_case
def test_settings_round_trip(name, settings):
    objective = build.objective({"type": name, **settings})
    assert type(objective) is OBJECTIVES[name]
    block = block_of(objective)
    assert build.objective(yaml.safe_load(yaml.safe_dump(block))) == objective
    defaults = {field.name: field.default for field in fields(objective) if field.default is not MISSING}
    defaults.pop("base", None)
    flat = {key: value for key, value in settings.items() if key != "base"}
    assert {key: value for key, value in block.items() if key not in ("type", "base")} == {**defaults, **flat}
    if "base" in settings:
        assert settings["base"].items() <= block["base"].items()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_unknown_setting_is_refused_with_the_nearest_name(name):
    keys = [field.name for field in fields(OBJECTIVES[name])]
    assert keys
    for key in keys:
        with pytest.raises(ValueError, match=f"objective {name} has no key '{key}x'; .*did you mean '{key}'"):
            build.objective({"type": name, f"{key}x": 1})


REFUSED = {  # further settings, attention of an encoder without memory
    "compression": ({}, "bidirectional", "memory_tokens=0: compression needs memory tokens"),
    "alignment": ({}, "bidirectional", "memory_tokens=0: alignment needs memory tokens"),
    "bottleneck": ({}, "causal", "the bottleneck is the memory right before the target"),
    "joint": ({"base": {"type": "contrastive"}}, "causal", "the bottleneck is the memory right before the target"),
    "epic": ({}, "causal", "set encoder.demonstrations"),
    "icl": ({}, "causal", "set encoder.demonstrations"),
    "llama2vec": ({}, "causal", "llama2vec reads memory tokens after"),
    "mntp": ({}, "causal", "is then next-token prediction with holes"),
    "language_model": ({}, "bidirectional", "needs encoder.attention: causal"),
    "sft": ({}, "bidirectional", "needs encoder.attention: causal"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_setup_refuses_an_encoder_that_does_not_fit(name, make_encoder):
    settings, attention, words = REFUSED[name]
    encoder = make_encoder(memory_tokens=0, attention=attention, template="{instruction}{text}", lora={})
    with pytest.raises(ValueError, match=words):
        build.objective({"type": name, **settings}).setup(encoder)
