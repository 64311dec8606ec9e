"""Averages of encoders: against matrices worked by hand, and against plain torch and peft."""

from __future__ import annotations

import itertools
import json
import math
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

import embrew
from embrew import average
from embrew.cli import app
from embrew.encoder import Encoder
from embrew.evaluation.dev import dev_sets
from embrew.hub import publication
from embrew.inspection import inspect
from embrew.merging import _shares, scores_of_mixtures
from embrew.settings.encoder import Pooling
from embrew.storage.base_model import ASSETS
from embrew.training.stages import train
from tests import fresh
from tests.conftest import SENTENCES, by_default, stir
from tests.training.one_stage import one_stage
from tests.training.test_stages import equal

Make = Callable[..., Path]
NANO = Path(embrew.__file__).parent / "assets" / "nano"
HOW: dict[str, Any] = {"template": "{text}{memory}", "attention": "bidirectional", "pooling": Pooling("mean", "memory")}


@pytest.fixture
def make(model_folder, tmp_path) -> Make:
    """A function that saves an encoder with LoRAs, the last one carried; without any, with its own weights."""

    def save(name: str, *loras: dict[str, Any], seed: int = 0, model: str | None = None, **changes: Any) -> Path:
        model = model or str(model_folder("llama"))
        encoder = Encoder.from_pretrained(model, memory_tokens=2, **{**HOW, **changes})
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for part in (encoder.backbone.memory, *(() if encoder.head is None else encoder.head.parameters())):
                part += 0.1 * torch.randn(part.shape, generator=generator)  # type: ignore[union-attr]
            if not loras:
                encoder.backbone.train_all()
                for weight in encoder.backbone.causal_lm.parameters():
                    weight += 0.05 * torch.randn(weight.shape, generator=generator)
        for number, lora in enumerate(loras):
            encoder.merge_adapter()
            torch.manual_seed(100 * seed + number)
            encoder.backbone.add_lora(lora)
            stir(encoder.backbone, seed=100 * seed + number)
        encoder.save_pretrained(tmp_path / name, verify="off")
        return tmp_path / name

    return save


def changes(folder: Path, number: int = 0) -> dict[str, torch.Tensor]:
    """s · B · A of each layer of a saved LoRA, by peft's definition of s."""
    place = folder / "adapters" / str(number)
    config, tensors = (
        json.loads((place / "adapter_config.json").read_text()),
        load_file(place / "adapter_model.safetensors"),
    )
    found = {}
    for name in tensors:
        if name.endswith("lora_A.weight"):
            layer, rank = name.removesuffix(".lora_A.weight"), len(tensors[name])
            alpha = next((v for k, v in config["alpha_pattern"].items() if layer.endswith(k.replace("\\", ""))), None)
            scale = (alpha or config["lora_alpha"]) / (math.sqrt(rank) if config["use_rslora"] else rank)
            found[layer] = scale * tensors[f"{layer}.lora_B.weight"].double() @ tensors[name].double()
    return found


def by_peft(base: Path, folder: Path, adapters: int) -> dict[str, torch.Tensor]:
    """All weights of an encoder, by transformers and peft."""
    if (folder / "weights").is_dir():
        model: Any = AutoModelForCausalLM.from_pretrained(folder / "weights", dtype=torch.float32)
    else:
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        for number in range(adapters):
            model = PeftModel.from_pretrained(model, folder / "adapters" / str(number)).merge_and_unload()
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def vectors_by_hand(base: Path, weights: dict[str, torch.Tensor], like: Path, memory: torch.Tensor) -> np.ndarray:
    """Vectors of given weights and memory tokens, read as the encoder in `like` reads texts."""
    place = like.parent / "by-hand"
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model.load_state_dict(weights)
    model.save_pretrained(place)
    for file in base.glob("token*"):
        shutil.copy(file, place)
    encoder = Encoder.from_pretrained(place, memory_tokens=len(memory), settings=Encoder.from_pretrained(like).settings)
    with torch.no_grad():
        encoder.backbone.memory.copy_(memory)  # type: ignore[union-attr]
    return np.asarray(encoder.encode(SENTENCES))


def slerp_by_hand(one: torch.Tensor, other: torch.Tensor, t: float) -> torch.Tensor:
    """With the angle between two flat vectors; a sum where there is none."""
    a, b = one.flatten().double().numpy(), other.flatten().double().numpy()
    if not a.any() or not b.any():
        return (1 - t) * one + t * other
    angle = np.arctan2(np.linalg.norm(a / np.linalg.norm(a) - b / np.linalg.norm(b)), np.linalg.norm(
        a / np.linalg.norm(a) + b / np.linalg.norm(b))) * 2  # fmt: skip
    mixed = (np.sin((1 - t) * angle) * a + np.sin(t * angle) * b) / np.sin(angle)
    return torch.from_numpy(mixed).view_as(one)


def encoded(folder: Path) -> np.ndarray:
    return np.asarray(Encoder.from_pretrained(folder).encode(SENTENCES))


def memory_of(folder: Path) -> torch.Tensor:
    return load_file(folder / "memory.safetensors")["memory"]


@pytest.mark.parametrize(
    ("t", "one", "other", "expected"),
    [
        (0.0, (1, 0), (0, 1), (1, 0)),
        (1.0, (1, 0), (0, 1), (0, 1)),
        (0.5, (1, 0), (0, 1), (math.sqrt(0.5), math.sqrt(0.5))),
        (0.5, (2, 0), (0, 5), (2 * math.sqrt(0.5), 5 * math.sqrt(0.5))),
        (1 / 3, (1, 0), (0, 1), (math.cos(math.pi / 6), 0.5)),
        (0.5, (1, 0), (0.5, math.sqrt(0.75)), (math.sqrt(0.75), 0.5)),  # 30 degrees of 60
        (0.25, (3, 4), (3, 4), (3, 4)),
        (0.25, (3, 4), (6, 8), (3.75, 5)),  # parallel
        (0.25, (2, 0), (-2, 0), (1, 0)),  # opposite
        (0.25, (0, 0), (2, 0), (0.5, 0)),  # one changes nothing
        (0.25, (0, 0), (0, 0), (0, 0)),
    ],
)
def test_slerp_by_hand(t, one, other, expected):
    first, second = _shares((1 - t, t), "slerp", [np.array(one), np.array(other)], lambda a, b: float(a @ b))
    assert first * np.array(one) + second * np.array(other) == pytest.approx(expected)


LORAS = (
    {"r": 2, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]},
    {"r": 4, "lora_alpha": 4, "use_rslora": True, "target_modules": ["q_proj", "down_proj"]},
    {"r": 3, "rank_pattern": {"layers.1.self_attn.v_proj": 1}, "target_modules": ["v_proj", "q_proj"]},
)


def test_loras_of_other_ranks_and_layers(make, model_folder, tmp_path):
    """The change is the average of the changes, not the product of averages; the vectors are those of such weights."""
    folders = [make(f"in-{seed}", lora, seed=seed) for seed, lora in enumerate(LORAS)]
    weights = (0.5, 0.3, 0.2)
    average(folders, tmp_path / "out", mixtures=[weights], verify="fast")
    before, after = [changes(folder) for folder in folders], changes(tmp_path / "out")
    names = {name for each in before for name in each}
    assert after.keys() == names and len(names) == 6
    for name in names:
        parts = [w * each[name] for w, each in zip(weights, before, strict=True) if name in each]
        assert torch.allclose(after[name], torch.stack(parts).sum(0), atol=1e-7), name
    ranks = {name: len(t) for name, t in load_file(tmp_path / "out/adapters/0/adapter_model.safetensors").items()}
    assert ranks["base_model.model.model.layers.1.self_attn.v_proj.lora_A.weight"] == 2 + 1
    assert ranks["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"] == 2 + 4 + 3
    base = model_folder("llama")
    merged = [by_peft(base, folder, 1) for folder in folders]
    mean = {name: sum(w * each[name] for w, each in zip(weights, merged, strict=True)) for name in merged[0]}
    memory = sum(w * memory_of(folder) for w, folder in zip(weights, folders, strict=True))
    assert torch.allclose(memory_of(tmp_path / "out"), memory)
    assert np.abs(encoded(tmp_path / "out") - vectors_by_hand(base, mean, folders[0], memory)).max() < 1e-5
    product = {name: t.clone() for name, t in merged[0].items()}
    assert np.abs(encoded(tmp_path / "out") - vectors_by_hand(base, product, folders[0], memory)).max() > 1e-3
    settings = json.loads((tmp_path / "out" / "embrew.json").read_text())
    assert (settings["adapters"], settings["active_adapter"], settings["full_weights"]) == (1, True, False)


@pytest.mark.parametrize("t", by_default([0.3], [0.0, 0.3, 1.0]))
def test_slerp_of_loras(t, make, tmp_path):
    folders = [make("a", LORAS[0], seed=1), make("b", LORAS[1], seed=2)]
    average(folders, tmp_path / "out", method="slerp", mixtures=[(1 - t, t)], verify="off")
    one, other = map(changes, folders)
    after = changes(tmp_path / "out")
    for name in one.keys() | other.keys():
        pair = [each.get(name, torch.zeros(1).double()) for each in (one, other)]
        expected = slerp_by_hand(*pair, t) if name in one and name in other else pair[0] * (1 - t) + pair[1] * t
        assert torch.allclose(after.get(name, torch.zeros(1).double()), expected, atol=1e-6), name
    if t in (0.0, 1.0):
        assert np.abs(encoded(tmp_path / "out") - encoded(folders[int(t)])).max() < 1e-6
        assert torch.equal(memory_of(tmp_path / "out"), memory_of(folders[int(t)]))


@pytest.mark.parametrize(
    ("method", "loras"),
    by_default([("slerp", LORAS[:1])], itertools.product(("linear", "slerp"), ((), LORAS[:1]))),
)
def test_the_same_twice_is_the_same(method, loras, make, model_folder, tmp_path, monkeypatch):
    monkeypatch.setitem(ASSETS, "tiny", model_folder("llama"))
    folder = make("a", *loras, model="tiny" if method == "slerp" and not loras else None)
    average([folder, folder], tmp_path / "out", method=method, verify="off")
    assert np.abs(encoded(tmp_path / "out") - encoded(folder)).max() < 1e-6
    assert json.loads((tmp_path / "out" / "embrew.json").read_text())["full_weights"] == (not loras)


@pytest.mark.slow
@pytest.mark.parametrize("method", by_default(["slerp"], ["linear", "slerp"]))
def test_opposite_changes_and_none(method, make, model_folder, tmp_path):
    """Half of a change and half of its opposite are no change; with an unchanged one, half of the change stays."""
    folder, opposite, nothing = (make(name, LORAS[0]) for name in ("a", "opposite", "nothing"))
    for changed, factor in ((opposite, -1), (nothing, 0)):
        encoder = Encoder.from_pretrained(changed, merge_adapter=False)
        for name, parameter in encoder.backbone.named_parameters():
            if "lora_B" in name:
                parameter.data *= factor
        encoder.save_pretrained(changed, overwrite=True, verify="off")
    average([folder, opposite], tmp_path / "out", method=method, verify="off")
    untrained = by_peft(model_folder("llama"), nothing, 0)
    memory = memory_of(folder)
    assert (
        np.abs(encoded(tmp_path / "out") - vectors_by_hand(model_folder("llama"), untrained, folder, memory)).max()
        < 1e-6
    )
    average([folder, nothing], tmp_path / "half", method=method, verify="off")
    after = changes(tmp_path / "half")
    assert all(torch.allclose(after[name], change / 2, atol=1e-7) for name, change in changes(folder).items())


KINDS: dict[str, tuple[tuple[dict[str, Any], ...], tuple[dict[str, Any], ...]]] = {
    "full weights": ((), ()),
    "full weights and a LoRA": ((), (LORAS[0],)),
    "DoRA": (({**LORAS[0], "use_dora": True},), (LORAS[1],)),
    "chains that differ": ((LORAS[0], LORAS[1]), (LORAS[1],)),
}


DEFAULT = [("full weights", "linear"), ("full weights and a LoRA", "slerp"), ("DoRA", "linear")]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "method"), by_default(DEFAULT, itertools.product(KINDS, ("linear", "slerp"))))
def test_full_weights(kind, method, make, model_folder, tmp_path, monkeypatch):
    loras, base, model = KINDS[kind], model_folder("llama"), None
    if method == "slerp" and () in loras:  # it needs the base, which a folder of full weights names
        monkeypatch.setitem(ASSETS, "tiny", base)
        model = "tiny"
    folders = [
        make(name, *each, seed=seed, model=model) for seed, (name, each) in enumerate(zip("ab", loras, strict=True))
    ]
    weights = (0.7, 0.3)
    average(folders, tmp_path / "out", method=method, mixtures=[weights], verify="fast")
    one, other = (by_peft(base, folder, len(each)) for folder, each in zip(folders, loras, strict=True))
    start = by_peft(base, base, 0)
    mean = {}
    for name, tensor in start.items():
        pair = one[name] - tensor, other[name] - tensor
        mixed = slerp_by_hand(*pair, 0.3) if method == "slerp" else 0.7 * pair[0] + 0.3 * pair[1]
        mean[name] = (tensor + mixed).float()
    memory = 0.7 * memory_of(folders[0]) + 0.3 * memory_of(folders[1])
    written = load_file(tmp_path / "out" / "weights" / "model.safetensors")
    assert all(torch.allclose(tensor, mean[name], atol=1e-6) for name, tensor in written.items()) and len(written) > 10
    assert np.abs(encoded(tmp_path / "out") - vectors_by_hand(base, mean, folders[0], memory)).max() < 1e-5


def test_a_chain_that_all_share_stays(make, tmp_path):
    """Two seeds of a second stage: the first stage's adapter is kept, and the second's averaged."""
    folders = [make(name, LORAS[0], LORAS[1], seed=7) for name in "ab"]
    encoder = Encoder.from_pretrained(folders[1], merge_adapter=False)
    stir(encoder.backbone, seed=5)
    encoder.save_pretrained(folders[1], overwrite=True, verify="off")
    average(folders, tmp_path / "out", verify="fast")
    settings = json.loads((tmp_path / "out" / "embrew.json").read_text())
    assert (settings["adapters"], settings["full_weights"]) == (2, False)
    shared = [load_file(folder / "adapters/0/adapter_model.safetensors") for folder in (folders[0], tmp_path / "out")]
    assert all(torch.equal(tensor, shared[1][name]) for name, tensor in shared[0].items())
    one, other, after = (changes(folder, 1) for folder in (*folders, tmp_path / "out"))
    assert all(torch.allclose(after[name], (one[name] + other[name]) / 2, atol=1e-7) for name in one)
    assert not torch.allclose(one[next(iter(one))], other[next(iter(one))], atol=1e-3)


def test_a_head_is_averaged(make, tmp_path):
    how: dict[str, Any] = {"pooling": Pooling("mean", "memory", latents=4, heads=2, head_width=8)}
    folders = []
    for seed, name in enumerate("ab"):
        encoder = Encoder.from_pretrained(make(name, LORAS[0], seed=seed, **how), merge_adapter=False)
        encoder.save_pretrained(tmp_path / name, overwrite=True, verify="off")
        folders.append(tmp_path / name)
    average(folders, tmp_path / "out", mixtures=[(0.25, 0.75)], verify="fast")
    one, other, after = (load_file(folder / "head.safetensors") for folder in (*folders, tmp_path / "out"))
    assert len(after) > 2 and any(not torch.equal(one[name], other[name]) for name in one)
    assert all(torch.allclose(after[name], 0.25 * one[name] + 0.75 * other[name]) for name in one)


def rows(folder: Path, split: str) -> Path:
    """STS rows, no two of which have the same score."""
    folder.mkdir(exist_ok=True)
    texts = [(a, b) for i, a in enumerate(SENTENCES) for b in SENTENCES[i + 1 :]]
    pairs = [{"sentence1": a, "sentence2": b, "score": 7 * i % 10} for i, (a, b) in enumerate(texts)]
    (folder / f"{split}.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return folder


def run(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["average", *map(str, words)])
    return result.exit_code, result.stderr.splitlines()[-1] if result.stderr else ""


@pytest.mark.parametrize("trained", [None, "float32", "bfloat16"])
def test_scored_as_trained(trained, monkeypatch):
    """Dev scores are of the arithmetic of training, where the device has it."""
    encoder: Any = SimpleNamespace(compute_dtype=trained, device=torch.device("cpu"))
    sets: Any = lambda _: {"dev": float(torch.is_autocast_enabled("cpu"))}  # noqa: E731
    for can in (True, False):
        monkeypatch.setattr("embrew.merging.supports_natively", lambda *_, can=can: can)
        tried = scores_of_mixtures(encoder, lambda _: None, sets, [(0.5, 0.5)], 2)
        assert tried == {(0.5, 0.5): {"dev": float(can and trained == "bfloat16")}}


def test_chosen_on_dev(make, tmp_path):
    """Each alone, then the best two and all three by equal weights; scores are recorded, and the best is written."""
    folders = [make(f"in-{seed}", LORAS[0], seed=seed) for seed in range(3)]
    dev = rows(tmp_path / "sts", "dev")
    code, error = run(*folders, "-o", tmp_path / "out", "--dev", dev, "--verify", "fast")
    assert code == 0, error
    sets = dev_sets([dev])
    document = json.loads((tmp_path / "out" / "training.json").read_text())["averaged"]
    assert document["records"] == [{}]
    alone = {seed: sets(Encoder.from_pretrained(folder))["dev"] for seed, folder in enumerate(folders)}
    best = sorted(alone, key=lambda seed: -alone[seed])[:2]
    tried = {tuple(each["weights"]): each["scores"]["dev"] for each in document["tried"]}
    singles = [tuple(float(i == seed) for i in range(3)) for seed in range(3)]
    expected = [*singles, tuple(0.5 * (i in best) for i in range(3)), (1 / 3,) * 3]
    assert list(tried) == [pytest.approx(each) for each in expected]
    assert [tried[each] for each in singles] == pytest.approx(list(alone.values()), abs=1e-6)
    chosen = tuple(document["weights"])
    assert tried[chosen] == max(tried.values())
    assert sets(Encoder.from_pretrained(tmp_path / "out"))["dev"] == pytest.approx(tried[chosen], abs=1e-6)
    card = (tmp_path / "out" / "README.md").read_text()
    for folder, each in zip(folders, document["inputs"], strict=True):
        assert each["sha256"] == Encoder.from_pretrained(folder, merge_adapter=False).weights_hash()
        assert each["sha256"] in card and str(tmp_path) not in card
    assert f"| averaging, 0.3333, 0.3333, 0.3333 | {tried[expected[-1]]:.4f}" in card
    assert "best of 5 by the mean of the dev sets" in card
    assert publication(tmp_path / "out").data == (), "the inputs were never trained"
    assert inspect(tmp_path / "out").kind == "encoder"


@pytest.mark.parametrize("loras", [LORAS[:1], pytest.param((), marks=pytest.mark.slow)], ids=["lora", "full"])
def test_what_was_tried_before_leaves_nothing(loras, make, tmp_path):
    """Memory, head and weights of a mixture are those that it has alone."""
    how: dict[str, Any] = {"pooling": Pooling("mean", "memory", latents=4, heads=2, head_width=8)}
    folders, dev = [make(name, *loras, seed=ord(name), **how) for name in "ab"], rows(tmp_path / "sts", "dev")
    mixtures = ("0.9,0.1", "0.2,0.8", "0.5,0.5", "0.3,0.7")
    weights = [word for mixture in mixtures for word in ("--weights", mixture)]
    code, error = run(*folders, "-o", tmp_path / "out", "--dev", dev, *weights, "--verify", "off")
    assert code == 0, error
    record = json.loads((tmp_path / "out" / "training.json").read_text())["averaged"]
    assert [each["weights"] for each in record["tried"]] == [[float(w) for w in m.split(",")] for m in mixtures]
    for number, each in enumerate(record["tried"]):
        alone = average(folders, tmp_path / str(number), mixtures=[each["weights"]], verify="off")
        assert dev_sets([dev])(alone)["dev"] == pytest.approx(each["scores"]["dev"], abs=1e-6)
        if each["weights"] == record["weights"]:
            equal(tmp_path / "out", tmp_path / str(number))


def test_refused(make, model_folder, tmp_path):
    a, b = make("a", LORAS[0]), make("b", LORAS[1], seed=1)
    dev, out = rows(tmp_path / "sts", "dev"), tmp_path / "out"
    two, three = (a, b, "-o", out), (a, b, a, "-o", out)
    (tmp_path / "work").mkdir()
    others = {
        "base": make("other-base", LORAS[0], model=str(model_folder("qwen3"))),
        "pooling": make("other-pooling", LORAS[0], pooling=Pooling("last", "memory")),
        "max_length": make("other-length", LORAS[0], max_length=32),
        "template": make("other-template", LORAS[0], template="text: {text}{memory}"),
    }
    for key, other in others.items():
        code, error = run(a, other, "-o", out)
        assert code == 1 and f"{other} has {key}=" in error and "of one base that read texts in the same way" in error
    memory = Encoder.from_pretrained(model_folder("llama"), memory_tokens=3, **HOW)
    memory.save_pretrained(tmp_path / "other-memory", verify="off")
    rows(tmp_path / "taken", "dev")
    test = rows(tmp_path / "only-test", "test")
    cases: list[tuple[tuple[object, ...], str]] = [
        ((a, tmp_path / "other-memory", "-o", out), "has memory tokens=3, and"),
        ((a, "-o", out), "1 encoders to average by linear; give two or more"),
        ((*three, "--method", "slerp"), "3 encoders to average by slerp; give exactly two"),
        ((a, tmp_path / "nowhere", "-o", out), "nowhere is no encoder written by embrew"),
        ((a, tmp_path / "work", "-o", out), "work is no encoder written by embrew"),
        ((*two, "--weights", "0.5,0.6"), "weights 0.5, 0.6 for 2 encoders; give one from 0 to 1 per encoder"),
        ((*two, "--weights", "-0.5,1.5"), "weights -0.5, 1.5 for 2 encoders"),
        ((*two, "--weights", "nan,1"), "weights nan, 1 for 2 encoders"),
        ((*two, "--weights", "1"), "weights 1 for 2 encoders"),
        ((*two, "--weights", "half,half"), "--weights half,half: give numbers with commas"),
        ((*two, "--weights", "1,0", "--weights", "0,1"), "2 mixtures and no dev set to choose by"),
        ((*two, "--dev", tmp_path / "no-data"), "no data folder"),
        ((*two, "--dev", test), "only-test has no dev split; it has test. Nothing is chosen on a test split"),
        ((*two, "--dev", test / "test.jsonl"), "is a test split by its name"),
        ((a, b, "-o", a, "--overwrite"), "is one of the encoders to average; give another folder"),
        ((a, b, "-o", tmp_path / "taken"), "choose another folder"),
    ]
    for words, message in cases:
        code, error = run(*words)
        assert code == 1 and message in error, (words, error)
    full = make("full")
    code, error = run(full, full, "-o", out, "--method", "slerp")
    assert code == 1 and "slerp needs the base, llama, which is not in the folders; use linear" in error
    assert not out.exists() and dev.exists()


FRESH = """
import sys, numpy
from embrew import Encoder
from tests.conftest import SENTENCES
numpy.save(sys.argv[2], Encoder.from_pretrained(sys.argv[1]).encode(SENTENCES))
"""


@pytest.mark.slow
def test_two_seeds_and_a_step_of_nano(tmp_path):
    """Trained, averaged, opened in a fresh process: the vectors of weights that plain torch and peft average."""
    (tmp_path / "pairs.jsonl").write_text(
        "".join(
            json.dumps({"query": text[:20], "positive": f"{i}: {text[20:]}"}) + "\n"
            for i in range(4)
            for text in SENTENCES
        )
    )
    for seed in (1, 2):
        recipe = one_stage(
            "nano", tmp_path / "pairs.jsonl", training={"max_steps": 4, "learning_rate": 0.01, "keep": [2]}
        )  # type: ignore[arg-type]
        train(recipe.model_copy(update={"seed": seed}), tmp_path / str(seed), verify="off")
    folders = [tmp_path / "1", tmp_path / "2" / "one", tmp_path / "2" / "one.step-2"]
    average(folders, tmp_path / "out", verify="fast")
    done = fresh.run([sys.executable, "-c", FRESH, str(tmp_path / "out"), str(tmp_path / "vectors.npy")])
    assert done.returncode == 0, done.stderr
    states = [by_peft(NANO, folder, 1) for folder in (tmp_path / "1" / "one", *folders[1:])]
    model: Any = AutoModelForCausalLM.from_pretrained(NANO, dtype=torch.float32)
    model.load_state_dict({name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]})
    reader, expected = Encoder.from_pretrained(tmp_path / "out"), []
    for text in SENTENCES:
        (row,) = reader.template.rows([text])
        states_of = model.model(torch.tensor([row.ids])).last_hidden_state[0].mean(0)
        expected.append(torch.nn.functional.normalize(states_of, dim=0).detach().numpy())
    found = np.load(tmp_path / "vectors.npy")
    assert np.abs(found - np.stack(expected)).max() < 1e-5
    assert np.abs(found - np.asarray(Encoder.from_pretrained(tmp_path / "1").encode(SENTENCES))).max() > 1e-4
    card = (tmp_path / "out" / "README.md").read_text()
    assert card.count("## Training before that") == 2, "a step of a run and the run are trained on the same"
    assert "## Scores" not in card and "| one | contrastive | pairs.jsonl |" in card
