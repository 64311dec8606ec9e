"""`embrew analyze uniformity`: closeness of positives and spread of all texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from embrew.cli.analyze import options
from embrew.cli.analyze.comparison import Row, compare, encode_settings, write
from embrew.cli.arguments import AsJson, Quiet


def uniformity(
    models: options.Models,
    data: options.Pairs,
    split: options.Split = None,
    max_texts: options.MaxTexts = None,
    above: Annotated[float, typer.Option(help="Pairs with a score above this value are positives.")] = 4.0,
    plot: options.Plot = None,
    output: options.Output = None,
    overwrite: options.Overwrite = False,
    batch_tokens: options.BatchTokens = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure whether positives are close (alignment) and all texts are spread out (uniformity). Lower is better."""
    from embrew.analysis import alignment_uniformity, plots, positive_pairs, read_texts
    from embrew.analysis.input_texts import find_split
    from embrew.data import load

    options.check_files(models, overwrite, plots=[plot], files=[output])
    rows = load(data, kind="scored", split=find_split(data, split))
    positives = positive_pairs(rows["sentence1"], rows["sentence2"], rows["score"], above=above)
    texts = read_texts(data, split=split, max_texts=max_texts)
    settings = encode_settings(batch_tokens)

    def examine(name: str, encoder: Any) -> Iterator[Row]:
        result = alignment_uniformity(encoder, positives, texts.texts, **settings)
        cells = [f"{result.alignment:.4f}", f"{result.uniformity:.4f}", str(result.positives), str(result.texts)]
        yield Row(cells, vars(result), (name, result))

    columns = ["alignment", "uniformity", "positives", "texts"]
    entries, drawn = compare(models, examine, columns=columns)
    if plot is not None:
        plots.plot_alignment_uniformity(drawn, plot)
    write(output, "uniformity", entries, data=data, texts_sha256=texts.sha256, above=above, alpha=2, t=2)
