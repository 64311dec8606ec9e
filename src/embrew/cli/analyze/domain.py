"""`embrew analyze domain`: how well a model knows a domain, and what training on it may gain."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from embrew.cli.analyze.kinds import Data, Outcome, Seed, flat, measure_all, only
from embrew.cli.arguments import Columns, Count, ModelPooling, columns_of
from embrew.cli.console import Record

if TYPE_CHECKING:
    from embrew.analysis.domain_knowledge import Figures, Sample
    from embrew.text_encoder import TextEncoder


def domain(
    models: Sequence[str],
    *,
    data: Data,
    max_texts: Annotated[int, typer.Option(min=2)] = 500,
    seed: Seed = 42,
    batch_tokens: Count = None,
    general: Annotated[str | None, typer.Option("--general", "-g")] = None,
    column: Columns = None,
    pooling: ModelPooling = None,
) -> Outcome:
    """Measure whether a model knows a domain: separation of right and wrong pairs, and perplexity on the texts.

    Args:
        data (PATH): Data folder or file.
        max_texts (N): Number of texts or rows to sample.
        seed: Random seed of samples.
        batch_tokens: Maximum number of tokens per batch, padding included.
        general (PATH): General pairs or texts to compare with.
    """
    from embrew.analysis.domain_knowledge import THRESHOLDS, diagnose, measure_knowledge
    from embrew.analysis.plots import plot_separations

    samples = [read_sample(only(data), columns_of(column), max_texts, seed=seed)]
    if general is not None:
        samples.append(read_sample(general, {}, max_texts, seed=seed))

    def figures_of(encoder: TextEncoder) -> list[Figures]:
        return [
            measure_knowledge(encoder, sample, batch_tokens=batch_tokens, show_progress_bar=True) for sample in samples
        ]

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


def _shown(name: str, figures: Figures) -> Record:
    """Return a row of the table."""
    row: Record = {"model": name, "data": figures.name}
    if (apart := figures.separation) is not None:
        interval = None if apart.interval is None else f"[{apart.interval[0]:.2f}, {apart.interval[1]:.2f}]"
        row |= {"pairs": apart.matched, "d′": apart.d_prime, "95 % interval": interval, "ratio": apart.ratio}
        row |= {"own is nearest": f"{apart.nearest:.1%}"}
    if (surprise := figures.perplexity) is not None:
        row |= {"texts": surprise.texts, "perplexity": surprise.perplexity, "bits per byte": surprise.bits_per_byte}
    return row


def read_sample(path: str, columns: dict[str, str], limit: int, *, seed: int = 42) -> Sample:
    """Read pairs if rows have questions, else texts; from a folder of documents, its passages."""
    from embrew.adapting.preparation.sources import read_document_folder, split_into_passages
    from embrew.analysis.domain_knowledge import Sample
    from embrew.analysis.input_texts import read_texts
    from embrew.analysis.qa import ACCEPTED, read_qa
    from embrew.data.formats import SUFFIXES, same_name
    from embrew.data.reading import SPLITS, expand, is_beir, is_saved, public_name, qrels_files, read, splits, stem
    from embrew.ranking import sample_in_order

    location, name = Path(expand(path)), public_name(path)[0]
    if not location.exists():
        raise FileNotFoundError(f"no file or folder {location}")
    if is_beir(location):
        names = sorted(qrels_files(location))
        split = next((split for split in ("train", "dev", "test", *names) if split in names), "train")
        return Sample.of_pairs(name, read_qa(location, split=split), max_pairs=limit, seed=seed)
    inside = [] if location.is_file() else [file for file in location.iterdir() if file.is_file()]
    rows = (
        location.is_file() or is_saved(location) or any(f.name.endswith(SUFFIXES) or stem(f) in SPLITS for f in inside)
    )
    if not rows:
        parts = [
            passage.content for document in read_document_folder(location) for passage in split_into_passages(document)
        ]
        return Sample(name, (), (), tuple(sample_in_order(parts, limit, seed=seed)))
    if not columns:
        names = splits(location) if location.is_dir() else []
        first = next(iter(read(location, split=names[0] if len(names) == 1 else "train")), None)
        if first is not None and not any(same_name(first.values, question) for question in ACCEPTED["question"]):
            return Sample(name, (), (), tuple(read_texts(path, max_texts=limit, seed=seed).texts))
    return Sample.of_pairs(name, read_qa(location, columns=columns), max_pairs=limit, seed=seed)


def untrained(name: str, pooling: str | None = None) -> Any:
    """Open a model in float32; for a recipe with stages, return its untrained encoder."""
    from embrew.opening import is_recipe, open_model
    from embrew.recipe import Recipe
    from embrew.recipe.build import encoder

    if is_recipe(name):
        return encoder(Recipe.load(name, [("encoder.dtype", "float32")]))
    return open_model(name, dtype="float32", pooling=pooling)
