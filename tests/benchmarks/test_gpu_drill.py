"""The GPU drill's own logic, on a CPU: every method trains, and each line has its figures."""

import argparse
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import gpu_drill

FIVE = ["LLM2Comp", "ESE", "AutoRegEmbed", "LBR", "EPIC"]
pytestmark = pytest.mark.slow  # a script for people with a GPU


def test_lines_of_methods(capsys):
    methods = [*FIVE, gpu_drill.CONTRAST]
    assert list(gpu_drill.METHODS) == methods
    gpu_drill.drill(argparse.Namespace(model="nano", device="cpu", steps=2, batch=4))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    names = [*methods, gpu_drill.PEER]
    shown = {line[0]: [float(figure) for figure in line[1:]] for line in lines if line and line[0] in names}
    assert list(shown) == names
    for name, figures in shown.items():
        assert len(figures) == (2 if name == gpu_drill.PEER else 3) and min(figures) > 0
