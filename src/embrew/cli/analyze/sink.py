"""`embrew analyze sink`: the last token's attention by layer, with and without a prompt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.text import Text

from embrew.cli import completion
from embrew.cli.analyze import options
from embrew.cli.analyze.comparison import Row, compare, encode_settings, write
from embrew.cli.arguments import AsJson, Quiet

DEPTHS = (0.25, 0.5, 0.75, 1.0)  # layers 8, 16, 24 and 32 of 32, those of EPIC's Table 9


def sink(
    models: options.Models,
    data: options.Data,
    prompt_names: Annotated[
        list[str] | None,
        typer.Option(
            "--prompt-name",
            metavar="NAME",
            autocompletion=completion.contexts,
            help="Also examine the texts with this prompt or context as prefix. Repeatable.",
        ),
    ] = None,
    split: options.Split = None,
    max_texts: options.MaxTexts = 512,
    plot: options.Plot = None,
    output: options.Output = None,
    overwrite: options.Overwrite = False,
    batch_tokens: options.BatchTokens = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure the share of the last token's attention on the first token, by layer, and on the other parts."""
    from embrew.analysis import read_texts, sink_of
    from embrew.analysis.sink_plots import plot_sinks
    from embrew.encoder import Encoder

    options.check_files(models, overwrite, plots=[plot], files=[output])
    texts = read_texts(data, split=split, max_texts=max_texts)
    settings = encode_settings(batch_tokens, side=texts.side)

    def examine(name: str, encoder: Any) -> Iterator[Row]:
        if not isinstance(encoder, Encoder):
            raise ValueError("analyze sink needs an encoder of embrew; give its folder, or a recipe")
        for prompt_name in (None, *(prompt_names or ())):
            result = sink_of(encoder, texts.texts, prompt_name=prompt_name, **settings)
            cells: list[str | Text] = [
                Text("–" if prompt_name is None else prompt_name),
                *(f"{result.at(depth):.3f}" for depth in DEPTHS),
                *(f"{result.of(part).mean():.3f}" for part in ("first", "text")),
            ]
            label = name if prompt_name is None else f"{name}, {prompt_name}"
            yield Row(cells, {"prompt_name": prompt_name, **result.summary()}, (label, result))

    columns = ["prompt", *(f"{depth:.0%}" for depth in DEPTHS), "mean", "on the text"]
    entries, drawn = compare(
        models, examine, columns=columns, title="attention weight of the last token on the first token, by depth"
    )
    if plot is not None:
        plot_sinks(drawn, plot)
    write(output, "sink", entries, data=data, texts_sha256=texts.sha256, texts=len(texts.texts))
