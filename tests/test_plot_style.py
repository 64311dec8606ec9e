"""Colours of plots: distances with three kinds of colour vision, contrast with both backgrounds, names of methods."""

from __future__ import annotations

import re
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest

from embrew.analysis.plots import looks
from embrew.plot_style import CYCLE, METHODS, colours, matplotlib_settings
from embrew.recipe import list_recipes

# Machado, Oliveira and Fernandes (2009), "A Physiologically-based Model for Simulation of Color Vision Deficiency",
# table 1, severity 1.0; they apply to linear RGB.
VISION = {
    "normal": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
}
XYZ = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
ROOT = Path(__file__).parents[1]
WHITE, DARK = "#FFFFFF", "#1E2129"  # the dark background of mkdocs-material's scheme `slate`


def linear(value: str) -> np.ndarray:
    """Linear RGB of `#RRGGBB` (IEC 61966-2-1)."""
    channels = np.array([int(value[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def lab(value: str, vision: str) -> np.ndarray:
    """CIELAB with white D65, as seen with this kind of colour vision."""
    seen = np.clip(np.array(VISION[vision]) @ linear(value), 0, 1)
    xyz = np.array(XYZ) @ seen / [0.95047, 1.0, 1.08883]
    x, y, z = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def distance(one: str, other: str, vision: str) -> float:
    """Euclidean distance in CIELAB (CIE 1976)."""
    return float(np.linalg.norm(lab(one, vision) - lab(other, vision)))


def contrast(one: str, other: str) -> float:
    """Contrast ratio of WCAG 2.1."""
    light, dark = sorted((float(linear(value) @ XYZ[1]) for value in (one, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_the_measures_themselves() -> None:
    assert contrast("#FFFFFF", "#000000") == pytest.approx(21)
    assert contrast("#777777", WHITE) == pytest.approx(4.48, abs=0.01)  # the grey that just misses 4.5:1
    assert lab("#FF0000", "normal") == pytest.approx([53.24, 80.09, 67.20], abs=0.05)
    red, green = "#CC0000", "#557700"  # confused with deuteranopia only
    assert distance(red, green, "deuteranopia") < 0.4 * distance(red, green, "normal")
    default = ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22"]
    assert (
        min(distance(a, b, "protanopia") for a, b in pairwise(default)) < 30
    )  # matplotlib's cycle fails the next test


@pytest.mark.parametrize("vision", VISION)
def test_colours_are_told_apart(vision: str) -> None:
    neighbours = [*pairwise(CYCLE), (CYCLE[-1], CYCLE[0])]
    assert min(distance(a, b, vision) for a, b in neighbours) >= 40
    assert min(distance(a, b, vision) for a, b in combinations(CYCLE, 2)) >= 9
    papers = [METHODS[name] for name in ("llm2comp", "ese", "autoregembed", "lbr", "epic")]
    assert min(distance(a, b, vision) for a, b in combinations(papers, 2)) >= 12
    assert min(distance(a, b, "normal") for a, b in combinations(METHODS.values(), 2)) >= 12


@pytest.mark.parametrize("value", sorted({*CYCLE, *METHODS.values()}))
def test_contrast_with_both_backgrounds(value: str) -> None:
    assert contrast(value, WHITE) >= 3 and contrast(value, DARK) >= 3  # WCAG 2.1, 1.4.11


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("LLM2Comp: compress", "llm2comp"),
        ("out/ese_384/main", "ese"),
        ("ESE on MiniLM", "ese"),
        ("sentence-transformers/all-MiniLM-L6-v2", "stock"),
        ("BAAI/bge-base-en-v1.5", "stock"),
        ("no pretext, bidirectional mean (SimCSE): supervised", "infonce"),
        ("mean, untrained", "untrained"),
        ("baselines/weighted-mean", "untrained"),
        ("last token", "untrained"),
        ("Llama2Vec (EBAE + EBAR): words", "llama2vec"),
        ("2DMSE", "matryoshka"),
        ("MetaEOL", "prompted"),
    ],
)
def test_a_name_has_the_colour_of_its_method(name: str, method: str) -> None:
    assert colours([name, name]) == [METHODS[method]] * 2


@pytest.mark.parametrize("name", ["Chinese", "cheese", "mean, in-batch", "epicentre", "out/supervised"])
def test_other_names_have_the_colour_of_their_position(name: str) -> None:
    assert colours([name] * 8) == [*CYCLE, CYCLE[0]]


def test_every_method_with_recipes_has_a_colour() -> None:
    folders = {name.split("/")[0] for name in list_recipes()} - {"baselines", "launch"}
    assert len(folders) >= 5 and folders <= set(METHODS)
    assert len(set(METHODS.values())) == len(METHODS)


def test_the_series_of_one_plot_differ() -> None:
    own, other = METHODS["llm2comp"], METHODS["ese"]
    assert own == CYCLE[0] and other == CYCLE[6]  # so that the others have the colours between them
    names = ["base", "LLM2Comp: compress", "LLM2Comp: supervised", "tuned", "ESE"]
    assert colours(names) == [CYCLE[1], own, own, CYCLE[2], other]
    assert colours([str(i) for i in range(9)]) == [*CYCLE, *CYCLE[:2]]
    assert colours([]) == []


def test_lines_that_share_a_colour_differ_otherwise() -> None:
    names = [*(f"LLM2Comp: {i}" for i in range(3)), *(f"out/{i}" for i in range(13))]
    found = looks(names)
    assert len({tuple(look.values()) for look in found}) == len(names)
    assert {look["color"] for look in found[:3]} == {METHODS["llm2comp"]}


def test_every_plot_is_drawn_in_this_style() -> None:
    """Who draws with matplotlib uses `drawing`, and has no colours of its own."""
    files = [path for folder in ("src", "benchmarks", "scripts") for path in (ROOT / folder).rglob("*.py")]
    sources = {path.name: path.read_text(encoding="utf-8") for path in files if path.name != "plot_style.py"}
    assert [name for name, text in sources.items() if re.search(r"import pyplot|matplotlib\.figure", text)] == [
        "plots.py"
    ]
    drawn = {name: text for name, text in sources.items() if "with drawing(" in text}
    assert len(drawn) >= 5
    assert [name for name, text in drawn.items() if re.search(r'"#[0-9a-fA-F]{3,8}"|"(?:tab|xkcd):|"C\d"', text)] == []


def test_matplotlib_takes_the_settings() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    with matplotlib.rc_context(matplotlib_settings()):
        assert tuple(matplotlib.rcParams["axes.prop_cycle"].by_key()["color"]) == CYCLE
        assert matplotlib.rcParams["font.size"] >= 10
