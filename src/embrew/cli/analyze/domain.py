"""`embrew analyze domain`: how well a model knows a domain, and what training on it may gain."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from embrew.cli.analyze.kinds import Outcome, flat, measure_all, only

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
    models: Sequence[str], *, data: Sequence[str], general: str | None = None, column: Sequence[str] = (),
    pooling: str | None = None, max_texts: int = 500, seed: int = 42, batch_tokens: int | None = None,
) -> Outcome:  # fmt: skip
    """Measure whether a model knows a domain: separation of right and wrong pairs, and perplexity on the texts."""
    from embrew.analysis.domain_knowledge import THRESHOLDS, diagnose, measure
    from embrew.analysis.plots import plot_separations

    samples = [read_sample(only(data), columns_of(column), max_texts, seed=seed)]
    if general is not None:
        samples.append(read_sample(general, {}, max_texts, seed=seed))

    def figures_of(encoder: Any) -> list[Figures]:
        return [measure(encoder, sample, batch_tokens=batch_tokens, show_progress_bar=True) for sample in samples]

    drawn: list[tuple[str, list[Figures]]] = []
    has_pairs = any(sample.questions for sample in samples)
    outcome = Outcome(partial(plot_separations, drawn) if has_pairs else None, {"thresholds": THRESHOLDS})
    for entry, figures in measure_all(models, figures_of, partial(untrained, pooling=pooling)):
        model, diagnosis = entry["model"], diagnose(*figures)
        outcome.models.append({**entry, "data": [each.summary() for each in figures], **diagnosis})
        outcome.rows += [{"model": model, **flat(each.summary())} for each in figures]
        outcome.table += [_shown(model, each) for each in figures]
        outcome.lines += [f"{model}: {line}" for line in diagnosis["words"]]
        drawn.append((model, figures))
    return outcome


def _shown(name: str, figures: Figures) -> dict[str, Any]:
    """Return a row of the table."""
    row: dict[str, Any] = {"model": name, "data": figures.name}
    if (apart := figures.separation) is not None:
        interval = None if apart.interval is None else f"[{apart.interval[0]:.2f}, {apart.interval[1]:.2f}]"
        row |= {"pairs": apart.matched, "d′": apart.d_prime, "95 % interval": interval, "ratio": apart.ratio}
        row |= {"own is nearest": f"{apart.nearest:.1%}"}
    if (surprise := figures.perplexity) is not None:
        row |= {"texts": surprise.texts, "perplexity": surprise.perplexity, "bits per byte": surprise.bits_per_byte}
    return row


def columns_of(column: Sequence[str] | None) -> dict[str, str]:
    """Return `OURS=THEIRS` options as a mapping."""
    columns = dict(part.split("=", 1) for part in column or () if "=" in part)
    if len(columns) < len(column or ()):
        raise ValueError(f"--column {' '.join(column or ())}: give OURS=THEIRS, once each, e.g. question=title")
    return columns


def read_sample(path: str, columns: dict[str, str], most: int, *, seed: int = 42) -> Sample:
    """Read pairs if rows have questions, else texts; from a folder of documents, its passages."""
    from embrew.adapting.preparation.documents import read_folder, split_into_passages
    from embrew.analysis.domain_knowledge import Sample
    from embrew.analysis.input_texts import read_texts
    from embrew.analysis.qa import ACCEPTED, read_qa
    from embrew.data.formats import SUFFIXES, same_name
    from embrew.data.reading import expand, is_beir, is_saved, public_name, qrels_files, read, splits, stem
    from embrew.data.splits import SPLITS
    from embrew.sampling import sample_in_order

    place, name = Path(expand(path)), public_name(path)[0]
    if not place.exists():
        raise FileNotFoundError(f"no file or folder {place}")
    if is_beir(place):
        names = sorted(qrels_files(place))
        split = next((one for one in ("train", "dev", "test", *names) if one in names), "train")
        return Sample.of_pairs(name, read_qa(place, split=split), max_pairs=most, seed=seed)
    inside = [] if place.is_file() else [file for file in place.iterdir() if file.is_file()]
    rows = place.is_file() or is_saved(place) or any(f.name.endswith(SUFFIXES) or stem(f) in SPLITS for f in inside)
    if not rows:
        parts = [passage.content for document in read_folder(place) for passage in split_into_passages(document)]
        return Sample(name, (), (), tuple(sample_in_order(parts, most, seed=seed)))
    if not columns:
        names = splits(place) if place.is_dir() else []
        first = next(iter(read(place, split=names[0] if len(names) == 1 else "train")), None)
        if first is not None and not any(same_name(first.values, question) for question in ACCEPTED["question"]):
            return Sample(name, (), (), tuple(read_texts(path, max_texts=most, seed=seed).texts))
    return Sample.of_pairs(name, read_qa(place, columns=columns), max_pairs=most, seed=seed)


def untrained(name: str, pooling: str | None = None) -> Any:
    """Open a model in float32; for a recipe with stages, return its untrained encoder."""
    from embrew.opening import is_recipe, open_model
    from embrew.recipe import Recipe
    from embrew.recipe.build import encoder

    if is_recipe(name):
        return encoder(Recipe.load(name, [("encoder.dtype", "float32")]))
    return open_model(name, dtype="float32", pooling=pooling)
