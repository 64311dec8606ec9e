"""Gradient accumulation: an optimiser step of several micro-batches equals what its rows give by themselves.

The reference calls the objective directly, without a trainer: on all rows of the step at once where the loss is a mean
over tokens or rows, on each micro-batch where rows are compared with each other (the mean of these losses is meant).
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from torch import Tensor
from transformers import TrainerCallback

from embrew.encoder import Encoder
from embrew.methods import OBJECTIVES, EmbeddingObjective, Objective
from embrew.recipe import StageConfig, build
from embrew.training.step import TrainStep
from embrew.training.trainer import StageTrainer
from tests.conftest import SENTENCES
from tests.objectives import cases
from tests.objectives.cases import ENCODERS, LENGTHS, LORA, prepared

OWN_DOCUMENTS = {"in_batch_negatives": False, "distillation_weight": 0.5, "temperature": 0.2}
CHOSEN: dict[str, list[dict[str, Any]]] = {  # in place of the first settings of the battery
    "angle": [{"rows": "pairs"}],
    "bottleneck": [{}, {"target": "text"}],
    "compression": [
        {**LENGTHS, "nll_weight": 0.5},
        {**LENGTHS, "divergence": "nll"},
        {"divergence": "reconstruction"},
        {**LENGTHS, "target": "both", "skip_rows": 2},
        {**LENGTHS, "divergence": "nll", "target": "both", "skip_rows": 1},
    ],
    "contrastive": [{}, OWN_DOCUMENTS],
    "epic": [{"demonstrations": 1}],
    "icl": [{"demonstrations": 1}],
    "joint": [{"base": {"type": "contrastive", "temperature": 0.2}, "generative_weight": 0.5}],
    "llama2vec": [{"bag_weight": 1.0}],
}
SETTINGS = [(name, settings) for name in OBJECTIVES for settings in CHOSEN.get(name, cases.SETTINGS[name][:1])]
IDS = [f"{name}-{i}" for i, (name, _) in enumerate(SETTINGS)]
# Five rows by three: one step of 3 + 2 rows. By two: a step of 2 + 2, and one of the row that is left of the epoch.
SIZES = {3: [[3, 2]], 2: [[2, 2], [1]]}
Step = tuple[float, dict[str, Tensor]]  # loss and gradients


class Gradients(TrainerCallback):
    """Keeps the gradients of every optimiser step."""

    def __init__(self, step: TrainStep) -> None:
        self.step, self.found = step, list[dict[str, Tensor]]()

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self.found.append({name: p.grad.clone() for name, p in self.step.trainable().items() if p.grad is not None})


def ready(make_encoder: Any, name: str, settings: dict[str, Any]) -> tuple[Encoder, Objective, list[dict[str, Any]]]:
    encoder = make_encoder(lora=LORA, **ENCODERS[name])
    objective = build.objective({"type": name, **settings})
    objective.setup(encoder)
    encoder.backbone.set_attention_dropout(0.0)
    rows = prepared(objective, encoder)
    if settings is OWN_DOCUMENTS:
        for i, row in enumerate(rows):
            row["negatives"] = [SENTENCES[i - 1][:20], SENTENCES[i - 2][:9]][: 1 + i % 2]
            row["scores"] = [2.0, 0.5, 1.0][: 1 + len(row["negatives"])]
    if name in ("epic", "icl"):
        rows = [{**row, "data_set": 1} for row in rows]
    return encoder.train(), objective, rows


def accumulated(
    encoder: Encoder, objective: Objective, rows: list[dict[str, Any]], size: int, patch: pytest.MonkeyPatch
) -> tuple[list[Step], list[tuple[list[dict[str, Any]], int]]]:
    """An epoch of steps of two micro-batches that change no weight; and the rows and seed of each micro-batch."""
    seen: list[tuple[list[dict[str, Any]], int]] = []
    collate = type(objective).collate

    def watched(self: Any, batch: Any, encoder: Encoder, *, seed: int = 0) -> dict[str, Any]:
        if self is objective:
            seen.append((list(batch), seed))
        return collate(self, batch, encoder, seed=seed)

    training = {
        "num_train_epochs": 1, "per_device_train_batch_size": size, "gradient_accumulation_steps": 2,
        "optim": "sgd", "learning_rate": 1e-30, "max_grad_norm": 0.0, "save_strategy": "no", "logging_steps": 1,
        "dataloader_drop_last": False, "use_cpu": True,
    }  # fmt: skip
    stage = StageConfig.model_validate(
        {"name": "one", "objective": {"type": "contrastive"}, "data": {"path": "none"}, "training": training}
    )
    args = build.training_arguments(stage, objective, Path("unused"), seed=3)
    step = TrainStep(encoder, objective)
    trainer = StageTrainer(step, args, Dataset.from_list(rows), "one")
    gradients = Gradients(step)
    trainer.add_callback(gradients)
    with patch.context() as inside:
        inside.setattr(type(objective), "collate", watched)
        trainer.fit(None)
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    return list(zip(losses, gradients.found, strict=True)), seen


def direct(step: TrainStep, batches: list[dict[str, Any]], progress: float) -> Step:
    """The mean loss of batches, each by itself, and its gradients."""
    step.zero_grad(set_to_none=True)
    told = torch.tensor(progress)
    loss = torch.stack([step(**batch, progress=told)["loss"] for batch in batches]).mean()
    loss.backward()
    found = {name: p.grad.clone() for name, p in step.trainable().items() if p.grad is not None}
    step.zero_grad(set_to_none=True)
    return float(loss.detach()), found


def reference(
    encoder: Encoder, objective: Objective, micro: list[tuple[list[dict[str, Any]], int]], progress: float, name: str
) -> Step:
    step = TrainStep(encoder, objective)
    parts = [objective.collate(rows, encoder, seed=seed) for rows, seed in micro]
    whole = objective.collate([row for rows, _ in micro for row in rows], encoder, seed=micro[0][1])
    if isinstance(objective, EmbeddingObjective) and not objective.num_items(
        whole
    ):  # rows are compared with each other
        return direct(step, parts, progress)
    if name != "joint":
        return direct(step, [whole], progress)
    contrast, grads = direct(TrainStep(encoder, objective.base), parts, progress)
    alone = build.objective({"type": "bottleneck"})
    generate, more = direct(TrainStep(encoder, alone), [{"text": whole["text"]}], progress)
    weight = objective.generative_weight
    return contrast + weight * generate, {key: grad + weight * more[key] for key, grad in grads.items()}


def test_every_objective_is_here():
    assert {name for name, _ in SETTINGS} == set(OBJECTIVES) and CHOSEN.keys() <= OBJECTIVES.keys()
    assert len(SETTINGS) > len(OBJECTIVES)


QUICK = {"angle", "bottleneck", "compression", "contrastive", "joint", "llama2vec", "mntp"}
SAME_PATH = ({"target": "text"}, {"divergence": "reconstruction"}, {**LENGTHS, "divergence": "nll"})  # with `-m slow`
EVERY = [
    pytest.param(name, settings, id=id_, marks=() if name in QUICK and settings not in SAME_PATH else pytest.mark.slow)
    for (name, settings), id_ in zip(SETTINGS, IDS, strict=True)
]


@pytest.mark.parametrize("size", [pytest.param(3, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize(("name", "settings"), EVERY)
def test_a_step_of_several_batches(make_encoder, name, settings, size, monkeypatch):
    gc.freeze()  # the trainer collects garbage at every start, which takes longer than these steps
    encoder, objective, rows = ready(make_encoder, name, settings)
    steps, seen = accumulated(encoder, objective, rows, size, monkeypatch)
    assert len(steps) == len(SIZES[size]) and sum(len(part) for part, _ in seen) == len(rows) == 5
    for number, (sizes, (loss, grads)) in enumerate(zip(SIZES[size], steps, strict=True)):
        micro = seen[2 * number : 2 * number + 2]
        assert [len(part) for part, _ in micro] == sizes
        wanted, others = reference(encoder, objective, micro, number / len(steps), name)
        assert loss == pytest.approx(wanted, rel=1e-4), f"{loss / wanted:.3f} times the loss"
        assert set(grads) == set(others) and grads
        ours, theirs = (torch.cat([found[key].flatten() for key in sorted(others)]) for found in (grads, others))
        error = float((ours - theirs).norm() / theirs.norm())
        assert error < 1e-4, f"gradient off by {error:.1%}, {float(ours.norm() / theirs.norm()):.3f} times as long"
