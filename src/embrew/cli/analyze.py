"""`embrew analyze`: dimensions, memory tokens and spread of the vectors of one or several models."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.text import Text

from embrew.cli.analyses import (
    BatchTokens,
    Models,
    Output,
    Overwrite,
    Plot,
    check,
    model_entry,
    new_table,
    opened,
    write,
)
from embrew.cli.console import out

app = typer.Typer(no_args_is_help=True)

Data = Annotated[
    str,
    typer.Option("--data", "-d", metavar="DIR_OR_FILE", help="Corpus, rows with text, or sentence pairs."),
]
Pairs = Annotated[
    str, typer.Option("--data", "-d", metavar="DIR_OR_FILE", help="Sentence pairs with scores (an STS set).")
]
Split = Annotated[str | None, typer.Option(help="Split of a folder; by default test, else dev, else train.")]
MaxTexts = Annotated[
    int | None, typer.Option("--max-texts", min=2, metavar="N", help="Take a sample of N texts; always the same one.")
]


class Pick(StrEnum):
    """Which memory token stands for those that are like it."""

    RANDOM = "random"
    MEDOID = "medoid"


@app.callback()
def _group() -> None:
    """Look inside a model's vectors."""


@app.command()
def spectrum(
    models: Models,
    data: Data,
    split: Split = None,
    max_texts: MaxTexts = None,
    threshold: Annotated[
        float, typer.Option(min=0, help="A dimension is used above this share of the largest singular value.")
    ] = 1e-2,
    plot: Plot = None,
    output: Output = None,
    overwrite: Overwrite = False,
    batch_tokens: BatchTokens = None,
) -> None:
    """How many dimensions the vectors use: the singular values of their covariance."""
    from embrew.analysis import plots, read_texts, spectrum_of, unnormalised, vector_chunks

    check(models, overwrite, pictures=[plot], files=[output])
    if threshold >= 1:
        raise ValueError(f"threshold={threshold:g}; it is a share of the largest singular value, so below 1")
    texts = read_texts(data, split=split, max_texts=max_texts)
    options: dict[str, Any] = {"side": texts.side, "batch_tokens": batch_tokens, "show_progress_bar": out().is_terminal}
    shown = new_table("texts", "dimensions", f"σ > {threshold:g} σ₁", "90 %", "95 %", "99 %", "participation", "RankMe")
    found, entries = [], []
    for name in models:
        with opened(name) as encoder:
            chunks = vector_chunks(unnormalised(encoder), texts.texts, **options)
            result = spectrum_of(chunks, threshold=threshold)
            figures = result.summary()
            entries.append(
                {**model_entry(name, encoder), **figures, "singular_values": result.singular_values.tolist()}
            )
        found.append((name, result))
        shown.add_row(
            Text(name),
            *(str(figures[key]) for key in ("texts", "dimensions", "effective_dimensions")),
            *map(str, figures["energy_dimensions"].values()),
            f"{figures['participation_ratio']:.1f}",
            f"{figures['rankme']:.1f}",
        )
    out().print(shown)
    if plot is not None:
        plots.plot_spectra(found, plot)
    write(output, "spectrum", entries, data=data, texts_sha256=texts.sha256)


@app.command()
def memory(
    models: Models,
    data: Data,
    split: Split = None,
    max_texts: MaxTexts = None,
    merge_above: Annotated[
        float, typer.Option(min=-1, max=1, help="Memory tokens whose mean cosine is above this count as one.")
    ] = 0.9,
    pick: Annotated[Pick, typer.Option(help="Which of them is kept; random is the paper's, and seeded.")] = Pick.RANDOM,
    plot: Plot = None,
    output: Output = None,
    overwrite: Overwrite = False,
    batch_tokens: BatchTokens = None,
) -> None:
    """How alike the memory tokens are, and how many different ones there are."""
    from embrew.analysis import memory_similarity, plots, read_texts, summarize

    check(models, overwrite, pictures=[plot], files=[output])
    texts = read_texts(data, split=split, max_texts=max_texts)
    options: dict[str, Any] = {"side": texts.side, "batch_tokens": batch_tokens, "show_progress_bar": out().is_terminal}
    shown = new_table("texts", "k", f"effective at {merge_above:g}", "mean cosine", "lowest", "highest", "kept")
    found, entries = [], []
    for name in models:
        with opened(name) as encoder:
            similarity = memory_similarity(encoder, texts.texts, **options)
            figures = {"texts": len(texts.texts), **summarize(similarity, threshold=merge_above, pick=pick.value)}
            entries.append({**model_entry(name, encoder), **figures, "similarity": similarity.tolist()})
        found.append((name, similarity, figures["effective_tokens"]))
        cosines = (figures[f"{which}_cosine"] for which in ("mean", "lowest", "highest"))
        shown.add_row(
            Text(name),
            *(str(figures[key]) for key in ("texts", "k", "k_eff")),
            *("–" if cosine is None else f"{cosine:.3f}" for cosine in cosines),
            " ".join(map(str, figures["effective_tokens"])),
        )
    out().print(shown)
    if plot is not None:
        plots.plot_memory(found, plot)
    write(output, "memory", entries, data=data, texts_sha256=texts.sha256)


@app.command()
def uniformity(
    models: Models,
    data: Pairs,
    split: Split = None,
    max_texts: MaxTexts = None,
    above: Annotated[float, typer.Option(help="Pairs that score above this are positives.")] = 4.0,
    plot: Plot = None,
    output: Output = None,
    overwrite: Overwrite = False,
    batch_tokens: BatchTokens = None,
) -> None:
    """Whether positives are close (alignment) and all texts spread out (uniformity); less is better for both."""
    from embrew.analysis import alignment_uniformity, plots, positive_pairs, read_texts
    from embrew.analysis.texts import find_split
    from embrew.data import load

    check(models, overwrite, pictures=[plot], files=[output])
    rows = load(data, kind="scored", split=find_split(data, split))
    positives = positive_pairs(rows["sentence1"], rows["sentence2"], rows["score"], above=above)
    texts = read_texts(data, split=split, max_texts=max_texts)
    options: dict[str, Any] = {"batch_tokens": batch_tokens, "show_progress_bar": out().is_terminal}
    shown = new_table("alignment", "uniformity", "positives", "texts")
    found, entries = [], []
    for name in models:
        with opened(name) as encoder:
            result = alignment_uniformity(encoder, positives, texts.texts, **options)
            entries.append({**model_entry(name, encoder), **vars(result)})
        found.append((name, result))
        figures = (f"{result.alignment:.4f}", f"{result.uniformity:.4f}", str(result.positives), str(result.texts))
        shown.add_row(Text(name), *figures)
    out().print(shown)
    if plot is not None:
        plots.plot_alignment_uniformity(found, plot)
    write(output, "uniformity", entries, data=data, texts_sha256=texts.sha256, above=above, alpha=2, t=2)
