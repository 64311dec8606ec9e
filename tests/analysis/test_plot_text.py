"""The text in plots: large enough, inside the picture, and no two texts on each other."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from embrew.analysis import plots
from embrew.analysis.efficiency import Curve, Moment
from embrew.analysis.separation import BINS, Separation
from embrew.analysis.sink import PARTS, Sink
from embrew.analysis.spectrum import Spectrum
from embrew.analysis.surface import Surface
from embrew.analysis.truncation import Truncation
from embrew.analysis.uniformity import AlignmentUniformity

NAMES = ("nano untrained", "LLM2Comp: compress", "LLM2Comp: unsupervised", "LLM2Comp: supervised", "out/ese-minilm")
SMALLEST = 8  # points
RANDOM = np.random.default_rng(0)


def curve(name: str) -> Curve:
    spread = {"alignment": 0.2, "uniformity": -2.0}
    return Curve(
        name, tuple(Moment("one", i, 32 * i, i / 9, {"dev": RANDOM.uniform(), **spread}) for i in (0, 1, 2, 4, 8))
    )


def surface() -> Surface:
    layers, dims = tuple(range(1, 13)), (16, 32, 64, 128, 256, 384, 512, 768)
    task: Any = SimpleNamespace(name="STSB")
    scores = RANDOM.uniform(0.2, 0.9, (1, len(layers), len(dims)))
    return Surface(layers, dims, (task,), scores, tuple(RANDOM.uniform(1, 30, len(layers))), 100, ("100 pairs",))


def separation() -> Separation:
    counts = RANDOM.multinomial(500, np.full(len(BINS) - 1, 1 / (len(BINS) - 1)), 2)
    return Separation(500, 249_000, (0.6, 0.4), (0.1, 0.1), 0.3, counts, 500, 0.1)


def figures(name: str) -> Any:
    return SimpleNamespace(name=name, separation=separation(), perplexity=SimpleNamespace(bits_per_byte=1.55))


POINTS = RANDOM.normal(size=(40, 2))
PLOTS: dict[str, Callable[[Path], None]] = {
    "spectra": lambda path: plots.plot_spectra(
        [(name, Spectrum(np.sort(RANDOM.exponential(size=64))[::-1], 100, 0.01)) for name in NAMES], path
    ),
    "memory": lambda path: plots.plot_memory([(name, np.eye(8), list(range(8))) for name in NAMES], path),
    "many memory tokens": lambda path: plots.plot_memory([("k = 128", np.eye(128), list(range(128)))], path),
    "uniformity": lambda path: plots.plot_alignment_uniformity(
        [(name, AlignmentUniformity(0.2, -2.0, 5, 9)) for name in NAMES], path
    ),
    "sink": lambda path: plots.plot_sinks(
        [(name, Sink(np.full((12, len(PARTS)), 1 / len(PARTS)), 9, 9.0)) for name in NAMES], path
    ),
    "efficiency": lambda path: plots.plot_efficiency([curve(name) for name in NAMES], path, mark=0.5),
    "separation": lambda path: plots.plot_separations(
        [(name, [figures("medquad_pairs"), figures("squad_sentence_triplets")]) for name in NAMES[:2]], path
    ),
    "surface": lambda path: plots.plot_surfaces([(name, surface(), None) for name in NAMES[:2]], path),
    "t-SNE": lambda path: plots.plot_truncations(
        [(name, Truncation(POINTS, POINTS + 0.1, 128, 384)) for name in NAMES], path
    ),
}


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures in the order in which they were written; nothing is written."""
    figures: list[Figure] = []

    def keep(figure: Figure, path: Path, **options: Any) -> None:
        FigureCanvasAgg(figure)
        figure.draw_without_rendering()
        figures.append(figure)
        path.touch()

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


def shown(figure: Figure) -> list[Text]:
    """The texts of a figure that are drawn; ticks outside of the limits of their axis are not."""
    hidden = {text for axes in figure.axes if not axes.get_visible() for text in axes.findobj(Text)}
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            every = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
            outside = [tick for tick in every if not low - 1e-9 <= tick.get_loc() <= high + 1e-9]
            hidden |= {text for tick in outside for text in (tick.label1, tick.label2)}
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    return [text for text in texts if text not in hidden]


def faults(figure: Figure) -> list[str]:
    """What is wrong with the texts of a figure, in words."""
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    boxes = [(text, text.get_window_extent(renderer)) for text in shown(figure)]
    assert len(boxes) >= 5
    found = [f"small: {text.get_text()!r}" for text, _ in boxes if text.get_fontsize() < SMALLEST]
    width, height = figure.bbox.width, figure.bbox.height
    found += [
        f"outside: {text.get_text()!r}"
        for text, box in boxes
        if box.x0 < -1 or box.y0 < -1 or box.x1 > width + 1 or box.y1 > height + 1
    ]
    for (one, a), (other, b) in combinations(boxes, 2):
        across, along = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
        if across > 1 and along > 1:
            found.append(f"overlap: {one.get_text()!r} and {other.get_text()!r}")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", PLOTS)
def test_texts_are_readable(name: str, tmp_path: Path, saved: list[Figure]) -> None:
    PLOTS[name](tmp_path / "plot.png")
    (figure,) = saved
    assert faults(figure) == []


def test_faults_are_found(tmp_path: Path, saved: list[Figure]) -> None:
    with plots.drawing(tmp_path / "plot.png", 4, 3) as figure:
        axes = figure.subplots()
        axes.text(0.5, 0.5, "a text")
        axes.text(0.51, 0.5, "another")
        axes.text(0.2, 0.2, "tiny", fontsize=5)
        axes.text(0.9, 0.9, "a text that leaves the picture").set_in_layout(False)
    assert sorted(fault.split(":")[0] for fault in faults(saved[0])) == ["outside", "overlap", "small"]


def test_an_svg_is_the_same_each_time_and_other_formats_are_refused(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        plots.plot_memory([("model", np.eye(4), [0, 1])], tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    assert "2 of 4 effective" in (tmp_path / "one.svg").read_text()
    with pytest.raises(ValueError, match=r"choose from \.png, \.pdf, \.svg"):
        plots.plot_memory([("model", np.eye(4), [0, 1])], tmp_path / "one.jpg")
