"""`embrew analyze memory`: similarity of the memory tokens."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any

import typer

from embrew.cli.analyze import options
from embrew.cli.analyze.comparison import Row, compare, encode_settings, write
from embrew.cli.arguments import AsJson, Quiet


class Pick(StrEnum):
    """Which memory token represents a group of similar ones."""

    RANDOM = "random"
    MEDOID = "medoid"


def memory(
    models: options.Models,
    data: options.Data,
    split: options.Split = None,
    max_texts: options.MaxTexts = None,
    merge_above: Annotated[
        float, typer.Option(min=-1, max=1, help="Memory tokens with a mean cosine above this value count as one.")
    ] = 0.9,
    pick: Annotated[
        Pick,
        typer.Option(
            help="Which of similar memory tokens is kept: random (as in the paper, with a fixed seed) or medoid."
        ),
    ] = Pick.RANDOM,
    plot: options.Plot = None,
    output: options.Output = None,
    overwrite: options.Overwrite = False,
    batch_tokens: options.BatchTokens = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure how similar the memory tokens are, and how many different ones there are."""
    from embrew.analysis import memory_similarity, plots, read_texts, summarize

    options.check_files(models, overwrite, plots=[plot], files=[output])
    texts = read_texts(data, split=split, max_texts=max_texts)
    settings = encode_settings(batch_tokens, side=texts.side)

    def examine(name: str, encoder: Any) -> Iterator[Row]:
        similarity = memory_similarity(encoder, texts.texts, **settings)
        figures = {"texts": len(texts.texts), **summarize(similarity, threshold=merge_above, pick=pick.value)}
        cosines = (figures[f"{which}_cosine"] for which in ("mean", "lowest", "highest"))
        cells = [
            *(str(figures[key]) for key in ("texts", "k", "k_eff")),
            *("–" if cosine is None else f"{cosine:.3f}" for cosine in cosines),
            " ".join(map(str, figures["effective_tokens"])),
        ]
        drawn = (name, similarity, figures["effective_tokens"])
        yield Row(cells, {**figures, "similarity": similarity.tolist()}, drawn)

    columns = ["texts", "k", f"effective at {merge_above:g}", "mean cosine", "lowest", "highest", "kept"]
    entries, drawn = compare(models, examine, columns=columns)
    if plot is not None:
        plots.plot_memory(drawn, plot)
    write(output, "memory", entries, data=data, texts_sha256=texts.sha256)
