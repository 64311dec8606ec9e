"""Complete runs of two processes, data-parallel and sharded, save the same as one process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from embrew.encoder import Encoder
from embrew.losses import espresso
from embrew.settings.encoder import Pooling
from embrew.training.stages import train
from tests.conftest import SENTENCES
from tests.distributed import matrix, runs
from tests.distributed.launch import in_forks
from tests.distributed.targets import KINDS, SPECTRA, K, targets, texts_of
from tests.distributed.test_matrix import by_case
from tests.distributed.test_matrix import same as same_as_plain


@pytest.fixture(scope="module")
def folder(model_folder, tmp_path_factory) -> Path:
    """With the runs of two processes in it."""
    place = tmp_path_factory.mktemp("together")
    for family in {case.family for case in matrix.QUICK}:
        shutil.copytree(model_folder(family), place / family)
    runs.write_data(place)
    in_forks(2, "tests.distributed.runs", str(place), timeout=400)
    return place


def trained(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("[aw]*/**/*.safetensors")]):
        found |= {f"{path.relative_to(folder)} {name}": tensor for name, tensor in load_file(path).items()}
    return found


def same(ours: Path, alone: Path) -> None:
    one, two = trained(alone / "one"), trained(ours / "one")
    assert one.keys() == two.keys() and len(one) > 10
    for name, tensor in one.items():
        exact = 1e-5 if tensor.dtype != torch.float16 else 5e-4  # vectors under faults, of a passport
        assert (two[name] - tensor).abs().max() <= exact, name
    vectors = [Encoder.from_pretrained(place).encode(SENTENCES) for place in (ours, alone)]
    assert abs(vectors[0] - vectors[1]).max() <= 1e-4


def test_processes_have_one_target_to_the_bit(folder):
    """ESE's, in every process, whatever its random numbers, and that of all texts in one process."""
    ours, theirs = (load_file(folder / "runs2" / f"targets-{rank}.safetensors") for rank in range(2))
    assert ours.keys() == theirs.keys() and len(ours) == 2 * len(SPECTRA) * (len(KINDS) + 1)
    for key, target in ours.items():
        if "loss" not in key:  # which is that of a process' own texts
            assert torch.equal(target, theirs[key]), key
        assert torch.equal(target, ours[key[:-1] + "0"]), f"{key}: another after other random numbers"
    for name, spectrum in SPECTRA.items():
        together = torch.cat([texts_of(rank, spectrum) for rank in range(2)], dim=1)
        assert (espresso._iterated(together[:1], K)[0] is None) == (name == "flat")
        for kind, alone in targets(together).items():
            torch.testing.assert_close(ours[f"{name} | {kind} | 0"], alone, rtol=1e-4, atol=1e-5)


def test_cells_of_the_matrix(folder):
    same_as_plain(by_case(load_file(folder / "runs2" / "matrix.safetensors")), matrix.QUICK, str(folder))


def test_a_joint_batch_is_of_one_data_set(folder, tmp_path):
    """Over all processes, over the end of an epoch, and the very rows that one process reads together."""
    runs.train_mixed(folder, tmp_path)
    alone = json.loads((tmp_path / "batches-0.json").read_text())
    shares = [json.loads((folder / "runs2" / f"batches-{rank}.json").read_text()) for rank in range(2)]
    joint = [one + other for one, other in zip(*shares, strict=False)]
    assert sum(runs.DATA_SETS.values()) < runs.MIXED_STEPS * 4, "more than an epoch"
    assert len(joint) >= runs.MIXED_STEPS and {len(batch) for batch in joint} == {4}
    assert all(len({query[0] for query in batch}) == 1 for batch in joint)
    assert {batch[0][0] for batch in joint} == set(runs.DATA_SETS)
    assert joint[: runs.MIXED_STEPS] == alone[: runs.MIXED_STEPS]
    same(folder / "runs2" / "mixed", tmp_path / "mixed")


def test_alignment_whose_references_are_shared_out(folder, tmp_path):
    """Of five files with 22 rows the first process computes three, the second two; both read all."""
    runs.train_aligned(folder, tmp_path, 1)
    shares = [json.loads((folder / "runs2" / f"scored-{rank}.json").read_text()) for rank in range(2)]
    assert shares == [12, 10] and json.loads((tmp_path / "scored-0.json").read_text()) == 22
    same(folder / "runs2" / "aligned", tmp_path / "aligned")


@pytest.mark.parametrize("name", ["compressed", "compressed-sharded"])
def test_the_share_of_the_gap_closed(name, folder, tmp_path):
    """Measured by the first process, of the same texts and weights as in one process; sharded too."""
    evaluated = name == "compressed"
    runs.train_compressed(folder, tmp_path / "alone", 1, evaluated=evaluated)
    ours, alone = (
        json.loads((place / "run.json").read_text())["gap"]["one"]
        for place in (folder / "runs2" / name, tmp_path / "alone")
    )
    assert ours["texts"] == alone["texts"] == 2 and ours["tokens"] == alone["tokens"]
    assert [point["step"] for point in ours["curve"]] == ([0, 1, 2] if evaluated else [0, 2])
    assert len({point["share"] for point in ours["curve"]}) == len(ours["curve"])
    for key in ("none", "context"):
        assert ours[key] == pytest.approx(alone[key], abs=1e-5)
    for one, other in zip(ours["curve"], alone["curve"], strict=True):
        assert one == pytest.approx(other, abs=2e-3)
    same(folder / "runs2" / name, tmp_path / "alone")


def test_in_pieces_stopped_and_gone_on(folder, tmp_path):
    """LoRA with gradient caching and checkpointing under FSDP2; resumed in two processes, and refused in one."""
    train(runs.cached(folder), tmp_path / "whole")
    same(folder / "runs2" / "cached", tmp_path / "whole")
    halves = folder / "runs2" / "cached-stopped"
    checkpoint = halves / "one.work" / "checkpoint-2"
    assert {"trainable.safetensors", "optimizer.pt", "scheduler.pt", "manifest.json"} <= {
        path.name for path in checkpoint.iterdir()
    }
    with pytest.raises(ValueError, match="was begun in 2 processes, and is resumed in 1; resume it in 2"):
        train(runs.cached(folder), halves, resume=True)


def test_every_weight_in_pieces(folder, tmp_path):
    train(runs.full(folder), tmp_path / "whole")
    same(folder / "runs2" / "full", tmp_path / "whole")
    start = Encoder.from_pretrained(folder / "llama", memory_tokens=3, template="{text}{memory}").backbone.causal_lm
    now = Encoder.from_pretrained(tmp_path / "whole").backbone.causal_lm
    moved = [float((a - b).detach().abs().max()) for a, b in zip(start.parameters(), now.parameters(), strict=True)]
    assert sorted(moved)[1] > 1e-4, "all but the head, which no embedding depends on"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["launch/ddp", "launch/fsdp2"])
def test_as_a_user_starts_it(name, folder, tmp_path):
    """The shipped configuration, accelerate's launcher, the shipped model; on a machine without a GPU."""
    (tmp_path / "recipe.yaml").write_text(
        f"""
encoder:
  model: nano
  dtype: float32
  template: "{{instruction}}{{text}}"
  attention: bidirectional
  pooling: {{mode: mean, over: text}}
  max_length: {{query: 64, document: 64}}
  lora: {{r: 8}}
stages:
  - name: supervised
    objective: {{type: contrastive}}
    data: {{path: {folder / "c.jsonl"}}}
    batch: {{size: 8, mini_batch_size: 3}}
    training: {{max_steps: 5, learning_rate: 1.0e-3, keep: [3]}}
"""
    )
    embrew = [sys.executable, "-m", "embrew"]
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

    def run(*command: str) -> str:
        options = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True, "timeout": 300}
        done = subprocess.run(command, check=False, **options)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout + done.stderr

    run(*embrew, "recipe", "copy", name, "launch.yaml")
    launch = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--config_file",
        "launch.yaml",
        "--num_processes",
        "2",
    ]
    said = run(*launch, "-m", "embrew", "train", "recipe.yaml", "--output", "two")
    assert ("weights sharded over 2 processes (FSDP2)" in said) == (name == "launch/fsdp2")
    run(*embrew, "train", "recipe.yaml", "--output", "one")
    vectors = [Encoder.from_pretrained(tmp_path / place).encode(SENTENCES) for place in ("one", "two")]
    assert abs(vectors[0] - vectors[1]).max() <= 1e-4
    kept = [tmp_path / place / "supervised.step-3" for place in ("one", "two")]
    third = [Encoder.from_pretrained(place).encode(SENTENCES) for place in kept]
    assert abs(third[0] - third[1]).max() <= 1e-4 < abs(third[0] - vectors[0]).max()
    untrained = Encoder.from_pretrained("nano", attention="bidirectional", pooling=Pooling("mean", "text"))
    assert abs(vectors[0] - untrained.encode(SENTENCES)).max() > 1e-2
