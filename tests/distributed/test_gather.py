"""Two processes are one: losses and gradients over shards equal those of the global batch."""

import pytest
import torch
from safetensors.torch import load_file

from embrew.distributed import gather, rank, sum_over_processes, world_size
from tests.distributed.launch import in_forks

CASES = 22
LORA_AND_MEMORY = 2 * 7 * 2 + 1  # layers × linear layers × (A, B), and the memory tokens
PROJECTION = 4  # weights and biases of two layers


@pytest.mark.slow
def test_two_processes_equal_one(model_folder, tmp_path):
    out = tmp_path / "results.safetensors"
    in_forks(2, "tests.distributed.gather_worker", str(model_folder("llama")), str(out), timeout=240)
    results = {}
    for place, tensor in load_file(out).items():
        case, side, key = place.split(" | ")
        results.setdefault(case, {}).setdefault(side, {})[key] = tensor
    assert len(results) == CASES
    for case, sides in results.items():
        joint, split = sides["joint"], sides["split"]
        assert joint.keys() == split.keys(), case
        trained = LORA_AND_MEMORY + (PROJECTION if case.endswith("epic") else 0)
        assert len(joint) == 1 + (1 if case.startswith(("gather", "vectors")) else trained), case
        # Pooled embeddings and the row weights of a vocabulary loss are float32; everything else is float64.
        close = 1e-12 if case.startswith(("gather", "vectors")) else 2e-6
        for key, wanted in joint.items():
            assert wanted.abs().max() > 0, (case, key)
            difference = (split[key] - wanted).abs().max() / wanted.abs().max()
            assert difference <= close, (case, key, float(difference))


def test_a_single_process_needs_nothing():
    rows = torch.randn(3, 2, requires_grad=True)
    assert world_size() == 1
    assert rank() == 0
    assert gather(rows) is rows
    assert sum_over_processes(rows) is rows
