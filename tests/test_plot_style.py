"""Colours of plots: each method has its own, and the series of one plot differ."""

import pytest

from embrew.plot_style import CYCLE, METHODS, colours


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
