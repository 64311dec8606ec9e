"""Pictures: the same file each time. `tests/cli/test_analyze.py` draws one of each kind."""

import warnings

import numpy as np

from embrew.analysis import plots
from embrew.analysis.memory import MemoryTokens
from embrew.analysis.surface import Surface


def test_an_svg_is_the_same_each_time(tmp_path):
    for name in ("one.svg", "two.svg"):
        plots.plot_memory([("model", MemoryTokens(np.eye(4)))], tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    assert "4 of 4 effective" in (tmp_path / "one.svg").read_text()


def test_thirty_layers_leave_room_for_the_panels(tmp_path):
    """Matplotlib warns where a legend is longer than its panel."""
    layers, dims = tuple(range(1, 31)), (32, 64, 576)
    scores = np.linspace(0, 1, len(layers) * len(dims)).reshape(1, len(layers), len(dims))
    surface = Surface(layers, dims, (), scores, tuple(map(float, layers)), 9, (9,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plots.plot_surfaces([("model", surface, None)], tmp_path / "surface.svg")
