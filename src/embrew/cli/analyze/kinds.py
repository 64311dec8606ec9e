"""One function per kind of analysis: its keyword arguments are the options that it takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from embrew.cli import completion
from embrew.cli.arguments import Count, Suite, read_numbers
from embrew.cli.console import Record, loading
from embrew.cli.options import options_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from embrew.analysis.input_texts import Texts
    from embrew.analysis.surface import Cell, Surface
    from embrew.encoder import Encoder
    from embrew.evaluation import Task
    from embrew.text_encoder import TextEncoder

Data = Annotated[Sequence[str], typer.Option("--data", "-d")]
Seed = Annotated[int, typer.Option(min=0)]
PromptNames = Annotated[Sequence[str], typer.Option(autocompletion=completion.contexts)]

Measured = TypeVar("Measured")
DEPTHS = (0.25, 0.5, 0.75, 1.0)  # layers 8, 16, 24 and 32 of 32, those of EPIC's Table 9


@dataclass
class Outcome:
    """Figures of an analysis.

    Attributes:
        plot: draws all models in one picture; None: there is nothing to draw.
        settings: further entries of the JSON file.
        title: of the table.
        models: an entry per model for the JSON file.
        rows: rows of the CSV file.
        table: rows of the printed table.
        lines: sentences below the table.
    """

    plot: Callable[[Path], None] | None
    settings: Record = field(default_factory=dict)
    title: str | None = None
    models: list[Record] = field(default_factory=list)
    rows: list[Record] = field(default_factory=list)
    table: list[Record] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


def measure_all(
    models: Sequence[str], measure: Callable[[Any], Measured], opener: Callable[[str], Any] | None = None
) -> Iterator[tuple[Record, Measured]]:
    """Measure models one after the other; yield name and hash of each with its result. Errors begin with the name."""
    from embrew.opening import open_model
    from embrew.text_encoder import model_hash

    for name in models:
        loading(name)
        encoder: Any = (opener or open_model)(name)
        try:
            result = measure(encoder)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        yield {"model": name, "model_hash": model_hash(encoder)}, result


def flat(entry: Record) -> Record:
    """Return the single values of an entry, those of mappings by both names."""
    row: Record = {}
    for name, value in entry.items():
        values = {f"{name}.{key}": each for key, each in value.items()} if isinstance(value, Mapping) else {name: value}
        row |= {key: each for key, each in values.items() if not isinstance(each, list | Mapping)}
    return row


def only(data: Sequence[str]) -> str:
    """Return the single value of --data."""
    if len(data) > 1:
        raise ValueError(f"--data is given {len(data)} times; this analysis takes one")
    return data[0]


def texts_of(
    *,
    data: Sequence[str],
    split: str | None = None,
    max_texts: int | None = None,
    seed: int = 42,
    batch_tokens: int | None = None,
) -> tuple[Texts, Record]:
    """Return the texts of --data, and keywords of functions that encode them.

    Args:
        data (PATH): Data folder or file.
        split: Split of a data folder; by default test, else dev, else train.
        max_texts: Number of texts to sample; by default all.
        seed: Random seed of samples.
        batch_tokens: Maximum number of tokens per batch, padding included.
    """
    from embrew.analysis.input_texts import read_texts

    texts = read_texts(only(data), split=split, max_texts=max_texts, seed=seed)
    return texts, {"side": texts.side, "batch_tokens": batch_tokens, "show_progress_bar": True}


reading_options = options_of(
    "embrew.cli.analyze.kinds:texts_of",
    data=typer.Option("--data", "-d"),
    split=typer.Option(),
    max_texts=typer.Option(min=2, metavar="N"),
    seed=typer.Option(min=0),
    batch_tokens=typer.Option(min=1),
)


def one_row_each(
    models: Sequence[str],
    texts: Texts,
    measure: Callable[[Any], tuple[Record, Any]],
    columns: dict[str, str],
    plot: Callable[..., None],
) -> Outcome:
    """Return an outcome with one row per model.

    Args:
        models: their names.
        texts: the texts that are analysed.
        measure: returns of an encoder its figures for the JSON file, and those that `plot` takes.
        columns: names of figures, and their heads in the printed table.
        plot: draws a list of pairs of a name and such figures.
    """
    drawn: list[tuple[str, Any]] = []
    outcome = Outcome(partial(plot, drawn), {"texts_sha256": texts.sha256})
    for entry, (figures, drawn_figures) in measure_all(models, measure):
        row = flat({**entry, **figures})
        outcome.models.append({**entry, **figures})
        outcome.rows.append(row)
        outcome.table.append({"model": row["model"], **{head: row[name] for name, head in columns.items()}})
        drawn.append((entry["model"], drawn_figures))
    return outcome


@reading_options
def spectrum(models: Sequence[str], *, threshold: float = 1e-2, **reading: Any) -> Outcome:
    """Measure how many dimensions the vectors use, by the singular values of their covariance.

    Args:
        threshold: Share of the largest singular value above which a dimension counts.
    """
    from embrew.analysis.input_texts import unnormalised, vectors_of
    from embrew.analysis.plots import plot_spectra
    from embrew.analysis.spectrum import Spectrum, spectrum_of

    texts, options = texts_of(**reading)

    def measure(encoder: Encoder | SentenceTransformer) -> tuple[Record, Spectrum]:
        result = spectrum_of(vectors_of(unnormalised(encoder), texts.texts, **options), threshold=threshold)
        return {**result.summary(), "singular_values": result.singular_values.tolist()}, result

    columns = {"texts": "texts", "dimensions": "dimensions", "effective_dimensions": f"σ > {threshold:g} σ₁"}
    columns |= {f"energy_dimensions.{share}": f"{float(share):.0%}" for share in ("0.9", "0.95", "0.99")}
    columns |= {"participation_ratio": "participation", "rankme": "RankMe"}
    return one_row_each(models, texts, measure, columns, plot_spectra)


@reading_options
def memory(models: Sequence[str], *, threshold: float = 0.9, **reading: Any) -> Outcome:
    """Measure how similar the memory tokens are, and how many different ones there are.

    Args:
        threshold: Cosine above which tokens count as one.
    """
    from embrew.analysis.memory import MemoryTokens, memory_similarity
    from embrew.analysis.plots import plot_memory

    texts, options, seed = *texts_of(**reading), reading.get("seed", 42)

    def measure(encoder: Encoder) -> tuple[Record, MemoryTokens]:
        tokens = MemoryTokens(memory_similarity(encoder, texts.texts, **options), threshold, seed)
        figures = {"texts": len(texts.texts), **tokens.summary()}
        return {**figures, "similarity": tokens.similarity.tolist()}, tokens

    columns = {"texts": "texts", "k": "k", "k_eff": f"effective at {threshold:g}"}
    columns |= {"mean_cosine": "mean cosine", "lowest_cosine": "lowest", "highest_cosine": "highest"}
    return one_row_each(models, texts, measure, columns, plot_memory)


@reading_options
def uniformity(models: Sequence[str], *, threshold: float = 4.0, **reading: Any) -> Outcome:
    """Measure whether positives are close (alignment) and all texts are spread out (uniformity). Lower is better.

    Args:
        threshold: Score above which pairs are positives.
    """
    from embrew.analysis.input_texts import find_split
    from embrew.analysis.plots import plot_alignment_uniformity
    from embrew.analysis.uniformity import AlignmentUniformity, alignment_uniformity, positive_pairs
    from embrew.data import load

    folder = only(reading["data"])
    rows = load(folder, kind="scored", split=find_split(folder, reading.get("split")))
    positives = positive_pairs(rows["sentence1"], rows["sentence2"], rows["score"], above=threshold)
    texts, options = texts_of(**reading)
    del options["side"]

    def measure(encoder: TextEncoder) -> tuple[Record, AlignmentUniformity]:
        point = alignment_uniformity(encoder, positives, texts.texts, **options)
        return vars(point), point

    columns = {name: name for name in ("alignment", "uniformity", "positives", "texts")}
    return one_row_each(models, texts, measure, columns, plot_alignment_uniformity)


@reading_options
def truncation(models: Sequence[str], *, dims: str | None = None, **reading: Any) -> Outcome:
    """Embed full and truncated vectors together in the plane by t-SNE: how far truncation moves a text.

    Args:
        max_texts: Number of texts to sample; 3000 by default.
        dims (K): Number of dimensions; by default 128, or half of all where these are fewer than 256.
    """
    from embrew.analysis.input_texts import vectors_of
    from embrew.analysis.plots import plot_truncations
    from embrew.analysis.surface import Truncation, truncation_of

    texts, options = texts_of(**{"max_texts": 3000, **reading})
    chosen = read_numbers(dims) if dims else []
    if len(chosen) > 1:
        raise ValueError(f"--dims {dims}; analyze truncation takes one number of dimensions")

    def measure(encoder: TextEncoder) -> tuple[Record, Truncation]:
        vectors = vectors_of(encoder, texts.texts, **options)
        dim = chosen[0] if chosen else min(128, vectors.shape[1] // 2)
        plane = truncation_of(vectors, dim, seed=reading.get("seed", 42))
        return plane.summary(), plane

    columns = {"dim": "dimensions", "texts": "texts", "distance": "mean distance"}
    columns |= {"distance_share": "share of that between texts"}
    return one_row_each(models, texts, measure, columns, plot_truncations)


@reading_options
def sink(models: Sequence[str], *, prompt_name: PromptNames = (), **reading: Any) -> Outcome:
    """Measure the share of the last token's attention on the first token, by layer, and on the other parts.

    Args:
        max_texts: Number of texts to sample; 512 by default.
        prompt_name (NAME): Also with this prompt or context as prefix. Repeatable.
    """
    from embrew.analysis.plots import plot_sinks
    from embrew.analysis.sink import Sink, sink_of
    from embrew.encoder import Encoder

    texts, options = texts_of(**{"max_texts": 512, **reading})

    def measure(encoder: TextEncoder) -> list[Sink]:
        if not isinstance(encoder, Encoder):
            raise ValueError("analyze sink needs an encoder of embrew; give its folder, or a recipe")
        return [sink_of(encoder, texts.texts, prompt_name=name, **options) for name in (None, *prompt_name)]

    drawn: list[tuple[str, Sink]] = []
    title = "attention weight of the last token on the first token, by depth"
    outcome = Outcome(partial(plot_sinks, drawn), {"texts_sha256": texts.sha256}, title)
    for entry, sinks in measure_all(models, measure):
        for prompt, result in zip((None, *prompt_name), sinks, strict=True):
            model, figures = entry["model"], result.summary()
            names = {"model": model, "prompt_name": prompt}
            outcome.models.append({**entry, "prompt_name": prompt, **figures})
            layers = zip(*figures["shares"].values(), strict=True)
            outcome.rows += [
                {**names, "layer": i, **dict(zip(figures["shares"], layer, strict=True))}
                for i, layer in enumerate(layers, start=1)
            ]
            depths = {f"{depth:.0%}": result.first_token_share(depth) for depth in DEPTHS}
            mean = figures["mean"]
            outcome.table.append({**names, **depths, "mean": mean["first"], "on the text": mean["text"]})
            drawn.append((model if prompt is None else f"{model}, {prompt}", result))
    return outcome


def surface(
    models: Sequence[str],
    *,
    data: Data = (),
    split: str | None = None,
    batch_tokens: Count = None,
    suite: Suite = None,
    layers: str | None = None,
    dims: str | None = None,
    pick: str | None = None,
) -> Outcome:
    """Evaluate a model truncated to each number of layers and dimensions, against time and bytes per vector.

    Args:
        data (PATH): Data folder or file. Repeatable.
        split: Split of a data folder; by default test, else dev; with --pick, dev.
        batch_tokens: Maximum number of tokens per batch, padding included.
        suite: A shipped suite or a YAML file; --data is the folder of its data sets.
        layers (N,…): Numbers of layers, e.g. 4,8 or 1-6; by default the last 12.
        dims (K,…): Numbers of dimensions, e.g. 64,128; by default 8, 16, … 512.
        pick (SHARE): Name the cheapest cell with a share of the score, e.g. "≥ 98 %".
    """
    from embrew.analysis.plots import plot_surfaces
    from embrew.analysis.surface import surface_of

    share = None if pick is None else read_share(pick)
    layer_counts, dim_counts = (None if text is None else read_numbers(text) for text in (layers, dims))
    tasks = tasks_of(data, suite, split, choosing=share is not None)

    def measure(encoder: Encoder) -> tuple[Surface, Cell | None, Encoder]:
        result = surface_of(
            encoder, tasks, layers=layer_counts, dims=dim_counts, batch_tokens=batch_tokens, show_progress_bar=True
        )
        return result, None if share is None else result.pick(share), encoder

    drawn: list[tuple[str, Surface, Cell | None]] = []
    outcome = Outcome(partial(plot_surfaces, drawn))
    for entry, (result, picked, encoder) in measure_all(models, measure):
        model, front = entry["model"], result.pareto()
        outcome.models.append({**entry, **result.summary(), "share": share, "picked": picked and vars(picked)})
        of_tasks = result.scores.reshape(len(tasks), -1).T.tolist()
        outcome.rows += [
            {"model": model, **vars(cell), "pareto": int(cell in front), "picked": int(cell == picked)}
            | dict(zip([task.name for task in tasks], scores, strict=True))
            for cell, scores in zip(result.cells, of_tasks, strict=True)
        ]
        for i in reversed(range(len(result.layers))):
            scores = {str(dim): f"{100 * score:.2f}" for dim, score in zip(result.dims, result.means[i], strict=True)}
            row = {"model": model, "layers": result.layers[i], **scores, "ms per text": result.milliseconds[i]}
            outcome.table.append(row)
        outcome.lines += _words(model, result, picked, encoder)
        drawn.append((model, result, picked))
    return outcome


def tasks_of(data: Sequence[str], suite: str | None, split: str | None, *, choosing: bool) -> list[Task]:
    """Return the tasks to score: for --pick, dev splits unless the user gives a split or a suite."""
    from embrew.evaluation import Task
    from embrew.evaluation.dev import dev_task
    from embrew.evaluation.suites import read_tasks

    tasks: list[Task] = []
    if choosing and suite is None and split is None:
        try:
            tasks = [dev_task(folder) for folder in data]
        except ValueError as error:
            raise ValueError(
                f"--pick needs a dev split: {error}. To pick on the test split anyway, give --split test"
            ) from None
    else:
        for task in read_tasks(suite, data, split=split)[0]:
            if not isinstance(task, Task):
                raise ValueError(f"{task.name}: tasks of MTEB are not supported here; give --data")
            tasks.append(task)
    if not tasks:
        raise ValueError("nothing to evaluate on; give --data DIR or --suite NAME")
    return tasks


def _words(name: str, result: Surface, picked: Cell | None, encoder: Encoder) -> list[str]:
    from embrew.storage.card import export_options

    tasks = zip(result.tasks, result.sizes, strict=True)
    lines = [f"{name}: scored on {'; '.join(f'{task.name} {task.split_label}, {size}' for task, size in tasks)}"]
    shallow, least = result.shallow_average(), result.shallow_average(result.dims[0])
    if shallow is not None and least is not None:
        lines.append(f"≺Avg {100 * shallow:.2f} at {result.dims[-1]} dimensions, {100 * least:.2f} at {result.dims[0]}")
    if picked is not None:
        smaller = f"--layers {picked.layers} --dim {picked.dim}{export_options(encoder)}"
        if any(task.split == "test" for task in result.tasks):
            lines.append("chosen on a test split: report scores of this choice on other data")
        full = result.cells[-1]
        lines += [
            f"{picked.layers} of {full.layers} layers and {picked.dim} of {full.dim} dimensions keep "
            f"{picked.kept:.1%}: {100 * picked.score:.2f} of {100 * full.score:.2f}",
            f"  {picked.milliseconds:.2f} of {full.milliseconds:.2f} ms per text, "
            f"{picked.bytes:,} of {full.bytes:,} bytes per vector",
            f"  embrew export {shlex.quote(name)} DIR {smaller}",
        ]
    return lines


def read_share(text: str) -> float:
    """Parse a share such as `≥ 98 %`, `>=98%`, `98%` or `0.98`.

    >>> read_share("≥ 98 %")
    0.98
    """
    match = re.fullmatch(r"(?:≥|>=)?(\d*\.?\d+)(%?)", text.replace(" ", ""))
    share = float(match[1]) / (100 if match[2] else 1) if match else 0
    if not 0 < share <= 1:
        raise ValueError(f'{text!r} is not a share of the full score; write "≥ 98 %", or 0.98')
    return share


def efficiency(models: Sequence[str], *, stage: str | None = None, against: str | None = None) -> Outcome:
    """Show learning curves, score against samples seen, of runs with evaluation.at or evaluation.every.

    Args:
        models (RUN): Folders of runs.
        stage: One stage only.
        against (RUN): How many samples each run needs to exceed this run's best.
    """
    from embrew.analysis.efficiency import as_rows, pareto, read_curve
    from embrew.analysis.plots import plot_efficiency

    curves = [read_curve(run, stage=stage) for run in dict.fromkeys([*models, *([against] if against else [])])]
    target = next((curve for curve in curves if curve.name == against), None)
    goal = None if target is None else target.best
    moments, front = as_rows(curves), [name for name, _ in pareto(curves)]
    plot = partial(plot_efficiency, curves, mark=None if goal is None else goal.score)
    outcome = Outcome(plot, {"moments": moments}, rows=moments)
    for curve in curves:
        best = curve.best
        row: Record = {"run": curve.name, "first": curve.evaluations[0].score, "best": best.score}
        row |= {"samples": best.samples, "steps": best.step, "epochs": best.epochs, "pareto": front.count(curve.name)}
        entry = {**row, "scored_on": curve.scored_on}
        if goal is not None and curve is not target:
            moment = curve.passes(goal.score)
            share = moment.samples / goal.samples if moment is not None and goal.samples else None
            entry["passes"] = moment and {
                "samples": moment.samples, "stage": moment.stage, "steps": moment.step, "epochs": moment.epochs
            }  # fmt: skip
            entry |= {} if moment is None else {"share": share}
            row |= {f"samples to pass {against}": moment.samples if moment else "never", "share of its": share}
        outcome.models.append(entry)
        outcome.table.append(row)
        outcome.lines.append(f"{curve.name}: dev is measured on {curve.scored_on}")
    if goal is not None:
        outcome.lines.append(
            f"best score of {against}: {goal.score:.4f}; only evaluated steps count, without interpolation"
        )
    return outcome
