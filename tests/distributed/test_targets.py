"""ESE's targets are the same to the bit in every process, whatever its random numbers."""

from __future__ import annotations

import torch
from safetensors.torch import load_file

from embrew.losses import dependencies
from tests.distributed.launch import in_two_forks
from tests.distributed.targets import KINDS, SPECTRA, K, targets, texts_of


def test_two_processes_have_one_target(tmp_path):
    in_two_forks("tests.distributed.targets", str(tmp_path), timeout=240)
    ours, theirs = (load_file(tmp_path / f"{rank}.safetensors") for rank in range(2))
    assert ours.keys() == theirs.keys() and len(ours) == 2 * len(SPECTRA) * (len(KINDS) + 1)
    for key, target in ours.items():
        if "loss" not in key:  # which is that of a process' own texts
            assert torch.equal(target, theirs[key]), key
        assert torch.equal(target, ours[key[:-1] + "0"]), f"{key}: another after other random numbers"
    for name, spectrum in SPECTRA.items():
        together = torch.cat([texts_of(rank, spectrum) for rank in range(2)], dim=1)
        assert (dependencies._iterated(together[0], K) is None) == (name == "flat")
        for kind, alone in targets(together).items():
            torch.testing.assert_close(ours[f"{name} | {kind} | 0"], alone, rtol=1e-4, atol=1e-5)
