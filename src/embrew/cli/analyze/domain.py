"""`embrew analyze domain`: how well a model knows a domain, and what training on it may gain."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from embrew.cli.analyze import options
from embrew.cli.analyze.comparison import encode_settings, model_entry, new_table, opened, write
from embrew.cli.arguments import AsJson, ModelPooling, Quiet
from embrew.cli.console import out

if TYPE_CHECKING:
    from embrew.analysis.domain_knowledge import Figures, Sample

Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="OURS=THEIRS",
        help="Name a column of the file: question, answer, choices, negatives or source = its name. Repeatable.",
    ),
]


def domain(
    models: options.Models,
    data: Annotated[
        str,
        typer.Option("--data", "-d", metavar="PATH", help="Data of the domain: question-answer pairs, or texts."),
    ],
    general: Annotated[
        str | None,
        typer.Option(
            "--general", "-g", metavar="PATH", help="General pairs or texts that the domain is compared with."
        ),
    ] = None,
    column: Columns = None,
    pooling: ModelPooling = None,
    max_pairs: Annotated[
        int, typer.Option("--max-pairs", min=2, metavar="N", help="Number of rows to sample, with a fixed seed.")
    ] = 500,
    plot: options.Plot = None,
    output: options.Output = None,
    overwrite: options.Overwrite = False,
    batch_tokens: options.BatchTokens = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure whether a model knows a domain: separation of right and wrong pairs, and perplexity on the texts."""
    from embrew.analysis import domain_knowledge
    from embrew.analysis.separation_plots import plot_separations

    options.check_files(models, overwrite, plots=[plot], files=[output])
    mapping = columns_of(column)
    samples = [read_sample(data, mapping, max_pairs)]
    samples += [] if general is None else [read_sample(general, {}, max_pairs)]
    if plot is not None and not any(sample.questions for sample in samples):
        raise ValueError(f"{data} has texts but no pairs, and --plot draws pairs; leave out --plot")
    shown = new_table(
        "data", "pairs", "d′", "95 % interval", "ratio", "own is nearest", "texts", "perplexity", "bits per byte"
    )
    named, entries, words = [], [], []
    for name in models:
        with opened(name, partial(untrained, pooling=pooling)) as encoder:
            found = [domain_knowledge.measure(encoder, sample, **encode_settings(batch_tokens)) for sample in samples]
            entry = {**model_entry(name, encoder), "data": [each.summary() for each in found]}
        both = found[0], found[1] if len(found) > 1 else None
        entry |= {"shift": domain_knowledge.shift(*both), "gap": domain_knowledge.gap(*both)}
        entry |= {"gain": domain_knowledge.gain(*both), "words": domain_knowledge.in_words(*both)}
        named.append((name, found))
        entries.append(entry)
        words += [Text(f"{name}: {line}") for line in entry["words"]]
        for each in found:
            shown.add_row(Text(name), *cells(each))
    out().print(shown)
    out().print()
    for line in words:
        out().print(line)
    if plot is not None:
        plot_separations(named, plot)
    write(
        output,
        "domain",
        entries,
        data=data,
        general=general,
        max_pairs=max_pairs,
        thresholds=domain_knowledge.THRESHOLDS,
    )


def cells(found: Figures) -> list[str]:
    """Return the figures of a data set as cells; a dash for a missing figure."""
    apart, surprise = found.separation, found.perplexity
    pairs = ["–"] * 5
    if apart is not None:
        ratio = "–" if apart.ratio is None else f"{apart.ratio:.2f}"
        between = "–" if apart.interval is None else f"[{apart.interval[0]:.2f}, {apart.interval[1]:.2f}]"
        pairs = [str(apart.matched), f"{apart.d_prime:.2f}", between, ratio, f"{apart.nearest:.1%}"]
    texts = ["–"] * 3
    if surprise is not None:
        texts = [str(surprise.texts), f"{surprise.perplexity:.1f}", f"{surprise.bits_per_byte:.3f}"]
    return [found.name, *pairs, *texts]


def columns_of(column: Sequence[str] | None) -> dict[str, str]:
    """Return `OURS=THEIRS` options as a mapping."""
    found = dict(part.split("=", 1) for part in column or () if "=" in part)
    if len(found) < len(column or ()):
        raise ValueError(f"--column {' '.join(column or ())}: give OURS=THEIRS, once each, e.g. question=title")
    return found


def read_sample(path: str, columns: dict[str, str], most: int) -> Sample:
    """Read pairs if rows have questions, else texts; from a folder of documents, its passages."""
    from embrew.analysis.domain_knowledge import Sample
    from embrew.analysis.input_texts import read_texts
    from embrew.analysis.qa import ACCEPTED, read_qa
    from embrew.data.formats import SUFFIXES, same_name
    from embrew.data.reading import SPLITS, expand, is_beir, is_saved, public_name, qrels_files, read, splits, stem
    from embrew.domain.folder import passages, read_folder

    place = Path(expand(path))
    name = public_name(path)[0]
    if not place.exists():
        raise FileNotFoundError(f"no file or folder {place}")
    if is_beir(place):
        found = sorted(qrels_files(place))
        split = next((one for one in ("train", "dev", "test") if one in found), found[0] if found else "train")
        return Sample.of_pairs(name, read_qa(place, split=split), most=most)
    inside = [] if place.is_file() else [file for file in place.iterdir() if file.is_file()]
    rows = place.is_file() or is_saved(place) or any(f.name.endswith(SUFFIXES) or stem(f) in SPLITS for f in inside)
    if not rows:
        parts = [passage.content for document in read_folder(place) for passage in passages(document)]
        return Sample(name, (), (), tuple(random.Random(42).sample(parts, min(most, len(parts)))))
    if not columns:
        found = splits(place) if place.is_dir() else []
        first = next(iter(read(place, split=found[0] if len(found) == 1 else "train")), None)
        if first is not None and not any(same_name(first.values, question) for question in ACCEPTED["question"]):
            return Sample(name, (), (), tuple(read_texts(path, max_texts=most).texts))
    return Sample.of_pairs(name, read_qa(place, columns=columns), most=most)


def untrained(name: str, pooling: str | None = None) -> Any:
    """Open a model in float32; for a recipe with stages, return its untrained encoder."""
    from embrew.assembly import encoder
    from embrew.opening import is_recipe, open_model
    from embrew.recipe import Recipe

    if is_recipe(name):
        return encoder(Recipe.load(name, ["encoder.dtype=float32"]))
    return open_model(name, dtype="float32", pooling=pooling)
