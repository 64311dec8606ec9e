"""`embrew analyze spectrum`: how many dimensions the vectors use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from embrew.cli.analyze import options
from embrew.cli.analyze.comparison import Row, compare, encode_settings, write
from embrew.cli.arguments import AsJson, Quiet


def spectrum(
    models: options.Models,
    data: options.Data,
    split: options.Split = None,
    max_texts: options.MaxTexts = None,
    threshold: Annotated[
        float, typer.Option(min=0, help="Singular values above this share of the largest count as used dimensions.")
    ] = 1e-2,
    plot: options.Plot = None,
    output: options.Output = None,
    overwrite: options.Overwrite = False,
    batch_tokens: options.BatchTokens = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure how many dimensions the vectors use, by the singular values of their covariance."""
    from embrew.analysis import plots, read_texts, spectrum_of, unnormalised, vector_chunks

    options.check_files(models, overwrite, plots=[plot], files=[output])
    if threshold >= 1:
        raise ValueError(f"threshold={threshold:g}; it is a share of the largest singular value, so below 1")
    texts = read_texts(data, split=split, max_texts=max_texts)
    settings = encode_settings(batch_tokens, side=texts.side)

    def examine(name: str, encoder: Any) -> Iterator[Row]:
        result = spectrum_of(vector_chunks(unnormalised(encoder), texts.texts, **settings), threshold=threshold)
        figures = result.summary()
        cells = [
            *(str(figures[key]) for key in ("texts", "dimensions", "effective_dimensions")),
            *map(str, figures["energy_dimensions"].values()),
            f"{figures['participation_ratio']:.1f}",
            f"{figures['rankme']:.1f}",
        ]
        yield Row(cells, {**figures, "singular_values": result.singular_values.tolist()}, (name, result))

    columns = ["texts", "dimensions", f"σ > {threshold:g} σ₁", "90 %", "95 %", "99 %", "participation", "RankMe"]
    entries, drawn = compare(models, examine, columns=columns)
    if plot is not None:
        plots.plot_spectra(drawn, plot)
    write(output, "spectrum", entries, data=data, texts_sha256=texts.sha256)
