"""One function per kind of analysis: its keyword arguments are the options that it takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embrew.cli.arguments import read_numbers
from embrew.cli.console import loading

if TYPE_CHECKING:
    from embrew.analysis.input_texts import Texts
    from embrew.analysis.surface import Cell, Surface
    from embrew.evaluation import Task

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
    settings: dict[str, Any] = field(default_factory=dict)
    title: str | None = None
    models: list[dict[str, Any]] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    table: list[dict[str, Any]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


def measure_all(
    models: Sequence[str], measure: Callable[[Any], Any], opener: Callable[[str], Any] | None = None
) -> Iterator[tuple[dict[str, Any], Any]]:
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


def flat(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the single values of an entry, those of mappings by both names."""
    row: dict[str, Any] = {}
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
    *, data: Sequence[str], split: str | None = None, max_texts: int | None = None, seed: int = 42,
    batch_tokens: int | None = None,
) -> tuple[Texts, dict[str, Any]]:  # fmt: skip
    """Return the texts of --data, and keywords of functions that encode them."""
    from embrew.analysis.input_texts import read_texts

    texts = read_texts(only(data), split=split, max_texts=max_texts, seed=seed)
    return texts, {"side": texts.side, "batch_tokens": batch_tokens, "show_progress_bar": True}


def one_row_each(
    models: Sequence[str], texts: Texts, measure: Callable[[Any], tuple[Any, Any]], columns: dict[str, str], plot: Any
) -> Outcome:
    """Return an outcome with one row per model.

    Args:
        models: their names.
        texts: the texts that are analysed.
        measure: returns of an encoder its figures for the JSON file, and what `plot` takes beside the name.
        columns: names of figures, and their heads in the printed table.
        plot: draws a list of names with what `measure` returned.
    """
    drawn: list[tuple[Any, ...]] = []
    outcome = Outcome(partial(plot, drawn), {"texts_sha256": texts.sha256})
    for entry, (figures, shown) in measure_all(models, measure):
        row = flat({**entry, **figures})
        outcome.models.append({**entry, **figures})
        outcome.rows.append(row)
        outcome.table.append({"model": row["model"], **{head: row[name] for name, head in columns.items()}})
        drawn.append((entry["model"], *shown))
    return outcome


def spectrum(models: Sequence[str], *, threshold: float = 1e-2, **reading: Any) -> Outcome:
    """Measure how many dimensions the vectors use, by the singular values of their covariance."""
    from embrew.analysis.input_texts import unnormalised, vectors_of
    from embrew.analysis.plots import plot_spectra
    from embrew.analysis.spectrum import spectrum_of

    texts, options = texts_of(**reading)

    def measure(encoder: Any) -> Any:
        result = spectrum_of(vectors_of(unnormalised(encoder), texts.texts, **options), threshold=threshold)
        return {**result.summary(), "singular_values": result.singular_values.tolist()}, [result]

    columns = {"texts": "texts", "dimensions": "dimensions", "effective_dimensions": f"σ > {threshold:g} σ₁"}
    columns |= {f"energy_dimensions.{share}": f"{float(share):.0%}" for share in ("0.9", "0.95", "0.99")}
    columns |= {"participation_ratio": "participation", "rankme": "RankMe"}
    return one_row_each(models, texts, measure, columns, plot_spectra)


def memory(models: Sequence[str], *, threshold: float = 0.9, **reading: Any) -> Outcome:
    """Measure how similar the memory tokens are, and how many different ones there are."""
    from embrew.analysis.memory import MemoryTokens, memory_similarity
    from embrew.analysis.plots import plot_memory

    texts, options, seed = *texts_of(**reading), reading.get("seed", 42)

    def measure(encoder: Any) -> Any:
        tokens = MemoryTokens(memory_similarity(encoder, texts.texts, **options), threshold, seed)
        figures = {"texts": len(texts.texts), **tokens.summary()}
        return {**figures, "similarity": tokens.similarity.tolist()}, [tokens]

    columns = {"texts": "texts", "k": "k", "k_eff": f"effective at {threshold:g}"}
    columns |= {"mean_cosine": "mean cosine", "lowest_cosine": "lowest", "highest_cosine": "highest"}
    return one_row_each(models, texts, measure, columns, plot_memory)


def uniformity(models: Sequence[str], *, threshold: float = 4.0, **reading: Any) -> Outcome:
    """Measure whether positives are close (alignment) and all texts are spread out (uniformity). Lower is better."""
    from embrew.analysis.input_texts import find_split
    from embrew.analysis.plots import plot_alignment_uniformity
    from embrew.analysis.uniformity import alignment_uniformity, positive_pairs
    from embrew.data import load

    folder = only(reading["data"])
    rows = load(folder, kind="scored", split=find_split(folder, reading.get("split")))
    positives = positive_pairs(rows["sentence1"], rows["sentence2"], rows["score"], above=threshold)
    texts, options = texts_of(**reading)
    del options["side"]

    def measure(encoder: Any) -> Any:
        point = alignment_uniformity(encoder, positives, texts.texts, **options)
        return vars(point), [point]

    columns = {name: name for name in ("alignment", "uniformity", "positives", "texts")}
    return one_row_each(models, texts, measure, columns, plot_alignment_uniformity)


def truncation(models: Sequence[str], *, dims: str | None = None, **reading: Any) -> Outcome:
    """Embed full and truncated vectors together in the plane by t-SNE: how far truncation moves a text."""
    from embrew.analysis.input_texts import vectors_of
    from embrew.analysis.plots import plot_truncations
    from embrew.analysis.truncation import truncation_of

    texts, options = texts_of(**{"max_texts": 3000, **reading})
    chosen = read_numbers(dims) if dims else []
    if len(chosen) > 1:
        raise ValueError(f"--dims {dims}; analyze truncation takes one number of dimensions")

    def measure(encoder: Any) -> Any:
        vectors = vectors_of(encoder, texts.texts, **options)
        plane = truncation_of(
            vectors, chosen[0] if chosen else min(128, vectors.shape[1] // 2), seed=reading.get("seed", 42)
        )
        return plane.summary(), [plane]

    columns = {"dim": "dimensions", "texts": "texts", "distance": "mean distance"}
    columns |= {"distance_share": "share of that between texts"}
    return one_row_each(models, texts, measure, columns, plot_truncations)


def sink(models: Sequence[str], *, prompt_name: Sequence[str] = (), **reading: Any) -> Outcome:
    """Measure the share of the last token's attention on the first token, by layer, and on the other parts."""
    from embrew.analysis.plots import plot_sinks
    from embrew.analysis.sink import Sink, sink_of
    from embrew.encoder import Encoder

    texts, options = texts_of(**{"max_texts": 512, **reading})

    def measure(encoder: Any) -> list[Sink]:
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
    models: Sequence[str], *, data: Sequence[str] = (), suite: str | None = None, split: str | None = None,
    layers: str | None = None, dims: str | None = None, pick: str | None = None, batch_tokens: int | None = None,
) -> Outcome:  # fmt: skip
    """Evaluate a model truncated to each number of layers and dimensions, against time and bytes per vector."""
    from embrew.analysis.plots import plot_surfaces
    from embrew.analysis.surface import surface_of

    share = None if pick is None else read_share(pick)
    axes: Any = {"layers": layers and read_numbers(layers), "dims": dims and read_numbers(dims)}
    tasks = tasks_of(data, suite, split, choosing=share is not None)

    def measure(encoder: Any) -> tuple[Surface, Cell | None, Any]:
        result = surface_of(encoder, tasks, **axes, batch_tokens=batch_tokens, show_progress_bar=True)
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

    if choosing and suite is None and split is None:
        try:
            tasks: list[Any] = [dev_task(folder) for folder in data]
        except ValueError as error:
            raise ValueError(
                f"--pick needs a dev split: {error}. To pick on the test split anyway, give --split test"
            ) from None
    else:
        tasks = list(read_tasks(suite, data, split=split)[0])
    if not tasks:
        raise ValueError("nothing to evaluate on; give --data DIR or --suite NAME")
    for task in tasks:
        if not isinstance(task, Task):
            raise ValueError(f"{task.name}: tasks of MTEB are not supported here; give --data")
    return tasks


def _words(name: str, result: Surface, picked: Cell | None, encoder: Any) -> list[str]:
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
    """Show learning curves, score against samples seen, of runs with evaluation.at or evaluation.every."""
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
        row: dict[str, Any] = {"run": curve.name, "first": curve.evaluations[0].score, "best": best.score}
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
