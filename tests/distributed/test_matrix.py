"""The matrix of docs/how-to/multi-gpu.md: every cell learns what one process learns from the global batch."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from embrew.methods import OBJECTIVES
from tests.distributed import matrix
from tests.distributed.launch import in_processes
from tests.distributed.matrix import CASES, GROUPS, SHARDED, Case

Trained = dict[str, dict[str, Tensor]]


def by_case(tensors: dict[str, Tensor]) -> Trained:
    found: Trained = {}
    for place, tensor in tensors.items():
        case, _, name = place.partition(" | ")
        found.setdefault(case, {})[name] = tensor
    return found


@pytest.fixture(scope="module")
def folder(model_folder) -> str:
    families = sorted({case.family for case in [*CASES, *SHARDED]})
    folders = [model_folder(family) for family in families]
    return str(folders[0].parent)


def test_training_moves_what_is_trained(folder):
    """By far more than the cells may differ; so a wrong factor in a gradient would show."""
    for lora in (True, False):
        case = Case("contrastive", lora)
        encoder = matrix.encoder_for(case, folder)
        start = {f"encoder.{name}": p.detach() for name, p in encoder.named_parameters() if p.requires_grad}
        ours = matrix.train(case, folder)
        assert ours.pop("losses")[0] > 0.1
        assert ours.keys() == start.keys()
        moved = [float((tensor - ours[name]).abs().max()) for name, tensor in start.items()]
        assert min(moved) > 5e-5 and max(moved) > 5e-3


def test_what_is_sharded():
    """Every objective, with everything that saves memory; the original LM inside and as a second copy."""
    assert {case.objective for case in CASES} == {case.objective for case in SHARDED} == set(OBJECTIVES)
    for switch in ("lora", "checkpointing", "accumulated", "adamw"):
        assert {case.objective for case in SHARDED if getattr(case, switch)} == set(OBJECTIVES), switch
    assert {case.objective for case in SHARDED if case.cached} == set(matrix.EMBEDDING)
    assert {case.objective for case in SHARDED if case.merged} == set(matrix.COMPARES) >= {"compression", "alignment"}
    assert len(SHARDED) == len(set(map(str, SHARDED))) > 10 * len(OBJECTIVES)


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "group"), [(2, "all"), (4, "four")])
def test_several_processes(processes, group, folder, tmp_path):
    """DistributedDataParallel and FSDP2, on gloo; a few of these run by default, in test_runs."""
    out = tmp_path / "trained.safetensors"
    in_processes(processes, "tests.distributed.matrix", folder, str(out), group, timeout=3600)
    same(by_case(load_file(out)), GROUPS[group], folder)


@pytest.mark.slow
def test_bfloat16(folder, tmp_path):
    """Gathered in bfloat16, float32 shards move as one float32 process moves them, as far as bfloat16 goes."""
    out = tmp_path / "trained.safetensors"
    in_processes(2, "tests.distributed.matrix", folder, str(out), "bfloat16", timeout=3600)
    found = by_case(load_file(out))
    for case in GROUPS["bfloat16"]:
        encoder = matrix.encoder_for(case, folder)
        start = {f"encoder.{name}": p.detach().clone() for name, p in encoder.named_parameters() if p.requires_grad}
        wanted, ours = matrix.train(case.reference, folder), found[str(case)]
        assert float(ours.pop("losses")[0]) == pytest.approx(float(wanted.pop("losses")[0]), rel=0.03), case
        assert {tensor.dtype for tensor in ours.values()} == {torch.float32}
        moved = [torch.cat([(of[name] - start[name]).flatten() for name in start]) for of in (wanted, ours)]
        assert torch.cosine_similarity(*moved, dim=0) > 0.98, case
        assert float(moved[1].norm() / moved[0].norm()) == pytest.approx(1, abs=0.05), case


def same(found: Trained, cases: list[Case], folder: str) -> None:
    """As one process with nothing switched on."""
    plain: Trained = {}
    assert found.keys() == {str(case) for case in cases}
    for case in cases:
        wanted, ours = plain.setdefault(str(case.reference), {}), found[str(case)]
        wanted.update(wanted or matrix.train(case.reference, folder))
        assert wanted.keys() == ours.keys(), case
        for name, tensor in wanted.items():
            scale = max(1.0, float(tensor.abs().max()))
            assert (ours[name] - tensor).abs().max() <= 1e-5 * scale, (case, name)
