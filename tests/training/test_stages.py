"""Runs of recipes: hand-over, exact resumption, and refusals before anything is trained."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import trainer_utils

from embrew.encoder import Encoder
from embrew.methods import Contrastive
from embrew.recipe import Recipe, build
from embrew.training import checkpoints
from embrew.training.stages import train as verified
from embrew.training.trainer import StageTrainer
from tests.conftest import SENTENCES
from tests.training.unverified import train

LORA = {"r": 4, "lora_alpha": 8, "lora_dropout": 0.1, "target_modules": ["q_proj", "v_proj", "down_proj"]}


@pytest.fixture
def values(model_folder, tmp_path) -> dict[str, Any]:
    """LLM2Comp in small: compress, then unsupervised, then supervised, with the paper's hand-over."""
    texts = [f"{a} {b} Part {i}." for i, a in enumerate(SENTENCES) for b in SENTENCES]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    pairs = [{"query": t[:40], "positive": t[40:], "negative": t[10:30]} for t in texts]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    text_data, pair_data = {"path": str(tmp_path / "texts.jsonl")}, {"path": str(tmp_path / "pairs.jsonl")}
    training = {"max_steps": 4, "learning_rate": 0.01, "save_steps": 2, "use_cpu": True}
    return {
        "encoder": {
            "model": str(model_folder("llama")),
            "template": "{instruction}{text}{memory}",
            "memory_tokens": 3,
            "attention": "bidirectional",
            "pooling": {"mode": "mean", "over": "memory"},
            "max_length": {"query": 64, "document": 64},
            "lora": LORA,
        },
        "stages": [
            {
                "name": "compress",
                "objective": {"type": "compression", "min_context_tokens": 4, "min_target_tokens": 4},
                "data": text_data,
                "training": {**training, "per_device_train_batch_size": 4},
            },
            {
                "name": "unsupervised",
                "adapter": "merge",
                "train_memory": False,
                "objective": {"type": "contrastive", "positives": "dropout", "attention_dropout": 0.2},
                "data": text_data,
                "batch": {"size": 4},
                "training": training,
            },
            {
                "name": "supervised",
                "adapter": "merge",
                "train_memory": False,
                "objective": {"type": "contrastive"},
                "data": pair_data,
                "batch": {"size": 4},
                "training": training,
            },
        ],
    }


@pytest.fixture(scope="module")
def once(tmp_path_factory) -> dict[str, Path]:
    """Where runs that several tests look at are, once they are made."""
    return {name: tmp_path_factory.mktemp("once") / name for name in ("whole", "unsaved", "first", "full")}


@pytest.fixture
def never_stopped(once, values) -> Path:
    """The three stages, trained without a stop; each is verified, and has the score 0.5 + 0.01 for each before."""
    scored: list[int] = []

    def evaluate(encoder: Encoder) -> dict[str, float]:
        scored.append(encoder.steps)
        return {"dev": 0.5 + 0.01 * len(scored)}

    if not once["whole"].exists():
        encoder = verified(Recipe.from_values(values), once["whole"], evaluate=evaluate)
        assert scored == [0, 4, 8, 12], "the base first, then after every stage"
        opened = Encoder.from_pretrained(once["whole"])
        assert abs(opened.encode(SENTENCES) - encoder.encode(SENTENCES)).max() < 1e-6
        assert Recipe.load(once["whole"] / "compress" / "recipe.yaml") == Recipe.from_values(values).public()
    return once["whole"]


@pytest.fixture
def first(once, values) -> Path:
    """A run of the first stage alone."""
    if not once["first"].exists():
        train(Recipe.from_values({**values, "stages": values["stages"][:1]}), once["first"])
    return once["first"]


@pytest.fixture
def unsaved(once, values, tmp_path) -> Path:
    """A run of the first stage that ended between its last step and the stage's folder; `values` are of that stage."""
    values["stages"] = values["stages"][:1]
    if not once["unsaved"].exists():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Encoder, "save_pretrained", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                train(Recipe.from_values(values), once["unsaved"])
    return shutil.copytree(once["unsaved"], tmp_path / "unsaved")


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    found = {}
    for path in sorted(folder.rglob("*.safetensors")):
        if "base" not in path.relative_to(folder).parts and path.name != "passport.safetensors":  # of verified folders
            found |= {f"{path.relative_to(folder)}:{name}": t for name, t in load_file(path).items()}
    return found


def equal(a: Path, b: Path) -> None:
    ours, theirs = tensors(a), tensors(b)
    assert ours.keys() == theirs.keys() and ours
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


def test_three_stages(values, never_stopped):
    """Each stage ends as a complete encoder; memory tokens move in the first only; scores are kept."""
    log = json.loads((never_stopped / "run.json").read_text())
    assert log["scores"]["supervised"]["dev"] == pytest.approx(0.54) and log["final"] == "supervised"
    folders = [never_stopped / name for name in ("compress", "unsupervised", "supervised")]
    memory = [load_file(folder / "memory.safetensors")["memory"] for folder in folders]
    assert torch.equal(memory[0], memory[1]) and torch.equal(memory[1], memory[2])
    assert [len(list((folder / "adapters").iterdir())) for folder in folders] == [1, 2, 3]
    assert sorted(path.name for path in never_stopped.iterdir()) == [
        "compress",
        "run.json",
        "supervised",
        "unsupervised",
    ]
    started = build.encoder(Recipe.from_values(values))
    assert not torch.equal(memory[0], started.backbone.memory.detach())
    assert "Loading" not in (folders[0] / "recipe.yaml").read_text()


@pytest.mark.parametrize("index", [1, *(pytest.param(index, marks=pytest.mark.slow) for index in (0, 2))])
def test_stopped_and_resumed_is_never_stopped(index, values, never_stopped, tmp_path, monkeypatch):
    """Stopped inside stage `index` after 3 of 4 steps (the last checkpoint is at 2): bit-equal weights in the end."""
    recipe = Recipe.from_values({**values, "stages": values["stages"][: index + 1]})
    whole_step, seen = StageTrainer.training_step, {"stages": -1, "steps": 0}
    whole_fit = StageTrainer.fit

    def fit(self: StageTrainer, checkpoint: Path | None) -> int:
        seen["stages"] += 1
        seen["steps"] = 0
        return whole_fit(self, checkpoint)

    def training_step(self: StageTrainer, *args: Any, **kwargs: Any) -> torch.Tensor:
        seen["steps"] += 1
        if seen["stages"] == index and seen["steps"] == 4:
            raise KeyboardInterrupt
        return whole_step(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(StageTrainer, "fit", fit)
        patch.setattr(StageTrainer, "training_step", training_step)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, tmp_path / "halves")
    assert (tmp_path / "halves" / f"{recipe.stages[index].name}.work" / "checkpoint-2").is_dir()
    with pytest.raises(FileExistsError, match="give --resume"):
        train(recipe, tmp_path / "halves")
    said: list[str] = []
    monkeypatch.setattr(trainer_utils.logger, "warning_once", said.append)
    train(recipe, tmp_path / "halves", resume=True)
    assert not said, "intervals are shares of the stage here, and steps in the checkpoint"
    for stage in recipe.stages:
        equal(never_stopped / stage.name, tmp_path / "halves" / stage.name)


def test_the_same_seed_is_the_same_run(values, never_stopped, tmp_path):
    """Also where processes make the batches ahead; and another seed is another run."""
    values["stages"] = values["stages"][:1]
    values["stages"][0]["training"] = {**values["stages"][0]["training"], "dataloader_num_workers": 2}
    train(Recipe.from_values(values), tmp_path / "again")
    equal(never_stopped / "compress", tmp_path / "again" / "compress")
    train(Recipe.from_values({**values, "seed": 7}), tmp_path / "other")
    ours, theirs = tensors(never_stopped / "compress"), tensors(tmp_path / "other" / "compress")
    assert any(not torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_a_finished_run_is_skipped_and_other_settings_are_refused(values, tmp_path, monkeypatch):
    values["stages"] = values["stages"][:1]
    train(Recipe.from_values(values), tmp_path / "run")
    monkeypatch.setattr(StageTrainer, "fit", lambda *_: pytest.fail("nothing is left to train"))
    assert train(Recipe.from_values(values), tmp_path / "run", resume=True).steps == 4
    values["stages"][0]["training"] = {**values["stages"][0]["training"], "learning_rate": 0.02}
    with pytest.raises(ValueError, match=r"other settings \(stages.0.training.learning_rate\)"):
        train(Recipe.from_values(values), tmp_path / "run", resume=True)


def test_all_steps_done_but_not_saved(never_stopped, unsaved, values):
    """Stopped between the last step and the stage's folder: no step is made twice."""
    train(Recipe.from_values(values), unsaved, resume=True)
    equal(never_stopped / "compress", unsaved / "compress")
    assert Encoder.from_pretrained(unsaved).steps == 4


def test_a_damaged_checkpoint_is_passed_over(never_stopped, unsaved, values, caplog):
    work = unsaved / "compress.work"
    newest = work / "checkpoint-4"
    assert checkpoints.newest(work) == newest
    path = newest / "trainable.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(bytes(content))
    assert checkpoints.newest(work) == work / "checkpoint-2"
    assert "checkpoint-4 is incomplete" in caplog.text
    train(Recipe.from_values(values), unsaved, resume=True)
    equal(never_stopped / "compress", unsaved / "compress")


def test_checkpoints_hold_no_pickled_weights(unsaved):
    checkpoint = unsaved / "compress.work" / "checkpoint-4"
    names = {path.name for path in checkpoint.iterdir()}
    assert names == {
        "trainable.safetensors",
        "optimizer.pt",
        "scheduler.pt",
        "rng_state.pth",
        "trainer_state.json",
        checkpoints.MANIFEST,
    }, "tensors in safetensors; the trainer's own state beside it, listed with its sha256; no pickled arguments"
    assert set(json.loads((checkpoint / checkpoints.MANIFEST).read_text())) == names - {checkpoints.MANIFEST}


def test_merge(never_stopped):
    """The first adapter becomes weights, a second one starts at zero."""
    adapters = sorted((never_stopped / "unsupervised" / "adapters").iterdir())
    assert len(adapters) == 2
    equal(never_stopped / "compress" / "adapters" / "0", adapters[0])


@pytest.mark.parametrize("lora", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["merged", "all weights"])
def test_a_generative_stage_after_the_weights_changed(lora, values, tmp_path, caplog):
    """The original LM is opened again as a second copy, and is the original."""
    values["stages"] = [values["stages"][1], {**values["stages"][0], "adapter": "merge"}]
    if not lora:
        values["encoder"]["lora"] = None
    recipe = Recipe.from_values(values)
    with caplog.at_level(logging.INFO, logger="embrew"):
        train(recipe, tmp_path / "run")
    assert "a second copy of the original" in caplog.text
    changed = Encoder.from_pretrained(tmp_path / "run" / recipe.stages[0].name, merge_adapter=True)
    original = build.encoder(recipe.model_copy(update={"stages": []}))
    changed.base_folder = changed.base_folder or Path(recipe.encoder.model)
    changed.keep_frozen_lm()
    wanted = original.backbone.causal_lm.state_dict()
    with changed.backbone.frozen_lm() as lm:
        assert all(torch.equal(tensor, wanted[name]) for name, tensor in lm.model.state_dict().items())
    assert np.abs(changed.encode(SENTENCES) - original.encode(SENTENCES)).max() > 1e-5


def test_a_cached_stage_learns_what_the_plain_one_learns(values, tmp_path):
    values["stages"] = values["stages"][2:]
    values["stages"][0]["adapter"] = "continue"
    values["encoder"] |= {"lora": {**LORA, "lora_dropout": 0.0}, "dtype": "float32"}
    plain = train(Recipe.from_values(values), tmp_path / "plain")
    values["stages"][0]["batch"] = {"size": 4, "mini_batch_num_tokens": 60}
    cached = train(Recipe.from_values(values), tmp_path / "cached")
    assert abs(plain.encode(SENTENCES) - cached.encode(SENTENCES)).max() < 1e-4


@pytest.mark.parametrize("adapter", ["continue", pytest.param("merge", marks=pytest.mark.slow)])
def test_going_on_from_a_trained_encoder(adapter, values, first, tmp_path):
    """Two stages in one recipe are the same as one, and another recipe that begins with it."""
    second = {**values["stages"][2], "adapter": adapter, "train_memory": True}
    train(Recipe.from_values({**values, "stages": [values["stages"][0], second]}), tmp_path / "both")
    recipe = Recipe.from_values({**values, "stages": [second]})
    train(recipe, tmp_path / "then", start=first)
    equal(tmp_path / "both" / "supervised", tmp_path / "then" / "supervised")
    adapters = list((tmp_path / "then" / "supervised" / "adapters").iterdir())
    assert len(adapters) == (1 if adapter == "continue" else 2)
    train(recipe, tmp_path / "then", start=first, resume=True)  # finished before
    with pytest.raises(ValueError, match="was not trained from the language model of the recipe"):
        train(recipe, tmp_path / "then", resume=True)
    with pytest.raises(ValueError, match="was not trained from .*then"):
        train(recipe, tmp_path / "then", start=tmp_path / "then", resume=True)


def test_full_fine_tuning_from_an_encoder_with_an_adapter(values, first, tmp_path):
    """The adapter becomes part of the weights once, not again when the folder is opened."""
    values["stages"] = [{**values["stages"][2], "adapter": "merge"}]
    values["encoder"]["lora"] = None
    encoder = train(Recipe.from_values(values), tmp_path / "then", start=first)
    assert abs(Encoder.from_pretrained(tmp_path / "then").encode(SENTENCES) - encoder.encode(SENTENCES)).max() < 1e-6


@pytest.fixture
def whole(once, values) -> Path:
    """A run that trained all weights."""
    own = {**values, "encoder": {**values["encoder"], "lora": None}, "stages": values["stages"][:1]}
    if not once["full"].exists():
        train(Recipe.from_values(own), once["full"])
    return once["full"]


def cosine(a: Encoder, b: Encoder) -> float:
    return float((a.encode(SENTENCES) * b.encode(SENTENCES)).sum(-1).mean())


@pytest.mark.parametrize("adapter", ["merge", pytest.param("continue", marks=pytest.mark.slow)])
def test_lora_on_fully_trained_weights(adapter, values, whole, tmp_path):
    """What is saved is what was trained, on the weights it was trained on; so it is one stage further on."""
    second = {**values["stages"][2], "adapter": adapter}
    second["training"] = {**second["training"], "max_steps": 2, "learning_rate": 1e-4}
    third = {**second, "name": "third", "adapter": "merge"}
    recipe = Recipe.from_values({**values, "stages": [second, third]})
    live = verified(recipe, tmp_path / "then", start=whole)
    start, base = Encoder.from_pretrained(whole), build.encoder(recipe)
    first, last = (Encoder.from_pretrained(tmp_path / "then" / name) for name in ("supervised", "third"))
    found = f"reopened: {cosine(first, start):.4f} to its start, {cosine(first, base):.4f} to the untouched base"
    assert cosine(first, start) > 0.999, found
    assert cosine(first, base) < 0.99, found
    assert abs(last.encode(SENTENCES) - live.encode(SENTENCES)).max() < 1e-6
    for folder in ("supervised", "third"):
        settings = json.loads((tmp_path / "then" / folder / "embrew.json").read_text())
        assert settings["full_weights"] and settings["adapters"] == 1 and settings["active_adapter"]
        assert settings["checks"]["compared_with"] == "the folder opened anew"
    train(recipe, tmp_path / "then", start=whole, resume=True)  # finished before


def test_full_fine_tuning_does_not_continue_an_adapter(values, first, tmp_path):
    values["stages"], values["encoder"]["lora"] = [{**values["stages"][2], "adapter": "continue"}], None
    with pytest.raises(ValueError, match="carries an adapter, and the recipe trains all weights"):
        train(Recipe.from_values(values), tmp_path / "then", start=first)


def test_going_on_from_an_encoder_of_another_kind(values, first, tmp_path):
    values["stages"] = values["stages"][2:]
    values["encoder"] = {**values["encoder"], "attention": "causal", "memory_tokens": 2}
    with pytest.raises(
        ValueError, match=r"encoder.attention='causal', there 'bidirectional'.*memory_tokens=2, there 3"
    ):
        train(Recipe.from_values(values), tmp_path / "then", start=first)


def test_a_batch_is_of_one_data_set(values, tmp_path, monkeypatch):
    """Unless the recipe says otherwise; a resumed run gets the same batches as an uninterrupted one."""
    rows = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    for name in ("a", "b"):
        named = [{**row, "query": f"{name} {row['query']}"} for row in rows]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in named))
    values["stages"] = values["stages"][2:]
    stage = values["stages"][0]
    stage.update(adapter="continue", data=[{"path": str(tmp_path / f"{name}.jsonl")} for name in ("a", "b")])
    stage["training"] = {**stage["training"], "max_steps": 12, "save_steps": 5}
    batches: list[list[str]] = []
    collate = Contrastive.collate

    def seen(self: Contrastive, rows: Any, encoder: Encoder, *, seed: int = 0) -> dict[str, Any]:
        batches.append([row["query"][0] for row in rows])
        if len(batches) == stop:
            raise KeyboardInterrupt
        return collate(self, rows, encoder, seed=seed)

    monkeypatch.setattr(Contrastive, "collate", seen)
    stop = 0
    train(Recipe.from_values(values), tmp_path / "one")
    assert {len(set(batch)) for batch in batches} == {1}, "one data set a batch"
    assert {batch[0] for batch in batches} == {"a", "b"}, "both are drawn from"
    whole, stop = list(batches), 8
    batches.clear()
    with pytest.raises(KeyboardInterrupt):
        train(Recipe.from_values(values), tmp_path / "halves")
    stop = 0
    train(Recipe.from_values(values), tmp_path / "halves", resume=True)
    assert batches[-6:] == whole[-6:]
    equal(tmp_path / "one" / "supervised", tmp_path / "halves" / "supervised")
    batches.clear()
    stage["mix"], stage["training"]["max_steps"] = {"batches": "mixed"}, 4
    train(Recipe.from_values(values), tmp_path / "mixed")
    assert any(len(set(batch)) == 2 for batch in batches)


def test_activation_checkpointing_changes_nothing(never_stopped, values, tmp_path):
    values["stages"] = values["stages"][:1]
    values["stages"][0]["training"] |= {"activation_checkpointing": True}
    train(Recipe.from_values(values), tmp_path / "checkpointed")
    ours, theirs = tensors(never_stopped / "compress"), tensors(tmp_path / "checkpointed" / "compress")
    assert ours.keys() == theirs.keys() and len(ours) > 1
    for name, tensor in ours.items():
        assert torch.allclose(tensor, theirs[name], atol=2e-5), name


def test_fewer_rows_than_a_batch(values, tmp_path):
    values["stages"] = [{**values["stages"][1], "batch": {"size": 400}}]
    with pytest.raises(ValueError, match="25 rows, fewer than one batch of 400; lower batch.size"):
        train(Recipe.from_values(values), tmp_path / "run")


def test_a_loss_that_is_not_finite_stops_the_run(values, tmp_path):
    values["stages"] = [{**values["stages"][0], "training": {**values["stages"][0]["training"], "learning_rate": 1e30}}]
    with pytest.raises(ValueError, match="lower the learning rate"):
        train(Recipe.from_values(values), tmp_path / "run")
