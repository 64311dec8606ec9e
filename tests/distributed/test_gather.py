"""Two processes are one: losses and gradients over shards equal those of the global batch."""

import pytest
import torch
from safetensors.torch import load_file

from embrew.distributed import gather, rank, sum_over_processes, world_size
from tests.distributed.launch import in_forks

CASES = 7


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path):
    """With as many rows in each, and with unequal numbers; encoders are in the matrix."""
    out = tmp_path / "results.safetensors"
    in_forks(2, "tests.distributed.gather_worker", str(out), timeout=240)
    results = {}
    for place, tensor in load_file(out).items():
        case, side, key = place.split(" | ")
        results.setdefault(case, {}).setdefault(side, {})[key] = tensor
    assert len(results) == CASES
    for case, sides in results.items():
        joint, split = sides["joint"], sides["split"]
        assert joint.keys() == split.keys() and len(joint) == 2, case
        for key, wanted in joint.items():
            assert wanted.abs().max() > 0, (case, key)
            difference = (split[key] - wanted).abs().max() / wanted.abs().max()
            assert difference <= 1e-12, (case, key, float(difference))


def test_a_single_process_needs_nothing():
    rows = torch.randn(3, 2, requires_grad=True)
    assert world_size() == 1
    assert rank() == 0
    assert gather(rows) is rows
    assert sum_over_processes(rows) is rows
