"""The predicted peak of resident memory against that of training, each in a process of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import plan as benchmark

from embrew.modeling.storage.loading import computes

FLOAT32 = pytest.mark.xfail(
    not computes(torch.bfloat16, torch.device("cpu")),
    reason="epic/nano in float32 takes about 200 MB more than predicted, 15 % to 16 % of its peak; cause unknown",
    strict=False,
)


@pytest.mark.slow
@pytest.mark.skipif("EMBREW_DATA" not in os.environ, reason="needs the data folder EMBREW_DATA names")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[FLOAT32] if name == "epic/nano" else []) for name in benchmark.TRAINED]
)
def test_the_predicted_peak_is_within_15_percent(name, tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "TRAINED", {name: benchmark.TRAINED[name]})
    found: dict = {}
    benchmark.memory(tmp_path, found, lambda: None)
    assert found[name]["predicted"] == pytest.approx(found[name]["measured"], rel=0.15)
