"""`embrew analyze sink`: where the last token looks, by layer, with and without a prompt."""

from __future__ import annotations

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
from embrew.cli.analyze import Data, MaxTexts, Split
from embrew.cli.console import out

DEPTHS = (0.25, 0.5, 0.75, 1.0)  # layers 8, 16, 24 and 32 of 32, those of EPIC's Table 9


def sink(
    models: Models,
    data: Data,
    prompt_names: Annotated[
        list[str] | None,
        typer.Option(
            "--prompt-name", metavar="NAME", help="Also with this prompt or context in front; may be given again."
        ),
    ] = None,
    split: Split = None,
    max_texts: MaxTexts = 512,
    plot: Plot = None,
    output: Output = None,
    overwrite: Overwrite = False,
    batch_tokens: BatchTokens = None,
) -> None:
    """How much of the last token's attention ends on the first token, by layer, and where the rest goes."""
    from embrew.analysis import read_texts, sink_of
    from embrew.analysis.sink_plots import plot_sinks
    from embrew.modeling.encoder import Encoder

    check(models, overwrite, pictures=[plot], files=[output])
    texts = read_texts(data, split=split, max_texts=max_texts)
    options: dict[str, Any] = {"side": texts.side, "batch_tokens": batch_tokens, "show_progress_bar": out().is_terminal}
    shown = new_table("prompt", *(f"{depth:.0%}" for depth in DEPTHS), "mean", "on the text")
    shown.title = "attention of the last token on the first, by depth"
    found, entries = [], []
    for name in models:
        with opened(name) as encoder:
            if not isinstance(encoder, Encoder):
                raise ValueError("attention weights are read of embrew's own encoders; give a folder or recipe of one")
            for prompt_name in (None, *(prompt_names or ())):
                result = sink_of(encoder, texts.texts, prompt_name=prompt_name, **options)
                entry = {**model_entry(name, encoder), "prompt_name": prompt_name}
                entries.append({**entry, **result.summary()})
                found.append((name if prompt_name is None else f"{name}, {prompt_name}", result))
                shown.add_row(
                    Text(name),
                    Text("–" if prompt_name is None else prompt_name),
                    *(f"{result.at(depth):.3f}" for depth in DEPTHS),
                    *(f"{result.of(part).mean():.3f}" for part in ("first", "text")),
                )
    out().print(shown)
    if plot is not None:
        plot_sinks(found, plot)
    write(output, "sink", entries, data=data, texts_sha256=texts.sha256, texts=len(texts.texts))
