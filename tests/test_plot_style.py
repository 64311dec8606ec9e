"""Colours of plots: each method has its own, and the series of one plot differ."""

import re
from pathlib import Path

import pytest

from embrew.plot_style import CYCLE, METHODS, colours

ROOT = Path(__file__).parents[1]


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
def test_a_name_has_the_colour_of_its_method(name, method):
    assert colours([name, name]) == [METHODS[method]] * 2


def test_the_series_of_one_plot_differ():
    llm2comp, ese = METHODS["llm2comp"], METHODS["ese"]
    assert llm2comp == CYCLE[0] and ese == CYCLE[6]  # so that the others have the colours between them
    names = ["base", "LLM2Comp: compress", "LLM2Comp: supervised", "tuned", "ESE"]
    assert colours(names) == [CYCLE[1], llm2comp, llm2comp, CYCLE[2], ese]
    assert colours([str(i) for i in range(9)]) == [*CYCLE, *CYCLE[:2]]
    assert colours([]) == []


def test_every_plot_is_drawn_in_this_style():
    """Who draws with matplotlib uses `drawing`, and has no colours of its own."""
    files = [path for folder in ("src", "benchmarks", "scripts") for path in (ROOT / folder).rglob("*.py")]
    sources = {path.name: path.read_text(encoding="utf-8") for path in files if path.name != "plot_style.py"}
    assert [name for name, text in sources.items() if re.search(r"import pyplot|matplotlib\.figure", text)] == [
        "plots.py"
    ]
    drawn = {name: text for name, text in sources.items() if "with drawing(" in text}
    assert drawn
    assert [name for name, text in drawn.items() if re.search(r'"#[0-9a-fA-F]{3,8}"|"(?:tab|xkcd):|"C\d"', text)] == []
