"""One function per kind of analysis: its keyword arguments are the options that it takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from embrew.cli.analyze.outcome import Outcome, examine, flat, only

if TYPE_CHECKING:
    from embrew.analysis.efficiency import Curve
    from embrew.analysis.input_texts import Texts
    from embrew.analysis.surface import Cell, Surface
    from embrew.evaluation import Task

DEPTHS = (0.25, 0.5, 0.75, 1.0)  # layers 8, 16, 24 and 32 of 32, those of EPIC's Table 9


def spectrum(
    models: Sequence[str], *, data: Sequence[str], split: str | None = None, max_texts: int | None = None,
    seed: int = 42, batch_tokens: int | None = None, threshold: float = 1e-2,
) -> Outcome:  # fmt: skip
    """Measure how many dimensions the vectors use, by the singular values of their covariance."""
    from embrew.analysis.input_texts import read_texts
    from embrew.analysis.plots import plot_spectra
    from embrew.analysis.spectrum import spectrum_of
    from embrew.analysis.vectors import unnormalised, vector_chunks

    texts = read_texts(only(data), split=split, max_texts=max_texts, seed=seed)
    options = encoding(texts, batch_tokens)
    examined = examine(
        models,
        lambda model: spectrum_of(vector_chunks(unnormalised(model), texts.texts, **options), threshold=threshold),
    )
    entries = [
        {**entry, **result.summary(), "singular_values": result.singular_values.tolist()}
        for _, entry, result in examined
    ]
    shares = {"energy_dimensions.0.9": "90 %", "energy_dimensions.0.95": "95 %", "energy_dimensions.0.99": "99 %"}
    columns = {"texts": "texts", "dimensions": "dimensions", "effective_dimensions": f"σ > {threshold:g} σ₁", **shares}
    columns |= {"participation_ratio": "participation", "rankme": "RankMe"}
    drawn = [(name, result) for name, _, result in examined]
    return outcome(entries, columns, partial(plot_spectra, drawn), texts)


def memory(
    models: Sequence[str], *, data: Sequence[str], split: str | None = None, max_texts: int | None = None,
    seed: int = 42, batch_tokens: int | None = None, threshold: float = 0.9,
) -> Outcome:  # fmt: skip
    """Measure how similar the memory tokens are, and how many different ones there are."""
    from embrew.analysis.input_texts import read_texts
    from embrew.analysis.memory import memory_similarity, summarize
    from embrew.analysis.plots import plot_memory

    texts = read_texts(only(data), split=split, max_texts=max_texts, seed=seed)
    options = encoding(texts, batch_tokens)
    examined = examine(models, lambda model: memory_similarity(model, texts.texts, **options))
    entries, drawn = [], []
    for name, entry, similarity in examined:
        figures = summarize(similarity, threshold=threshold, seed=seed)
        entries.append({**entry, "texts": len(texts.texts), **figures, "similarity": similarity.tolist()})
        drawn.append((name, similarity, figures["effective_tokens"]))
    columns = {"texts": "texts", "k": "k", "k_eff": f"effective at {threshold:g}"}
    columns |= {"mean_cosine": "mean cosine", "lowest_cosine": "lowest", "highest_cosine": "highest"}
    return outcome(entries, columns, partial(plot_memory, drawn), texts)


def uniformity(
    models: Sequence[str], *, data: Sequence[str], split: str | None = None, max_texts: int | None = None,
    seed: int = 42, batch_tokens: int | None = None, threshold: float = 4.0,
) -> Outcome:  # fmt: skip
    """Measure whether positives are close (alignment) and all texts are spread out (uniformity). Lower is better."""
    from embrew.analysis.input_texts import find_split, read_texts
    from embrew.analysis.plots import plot_alignment_uniformity
    from embrew.analysis.uniformity import alignment_uniformity, positive_pairs
    from embrew.data import load

    rows = load(only(data), kind="scored", split=find_split(only(data), split))
    positives = positive_pairs(rows["sentence1"], rows["sentence2"], rows["score"], above=threshold)
    texts = read_texts(only(data), split=split, max_texts=max_texts, seed=seed)
    options: Any = {"batch_tokens": batch_tokens, "show_progress_bar": True}
    examined = examine(models, lambda model: alignment_uniformity(model, positives, texts.texts, **options))
    entries = [{**entry, **vars(result)} for _, entry, result in examined]
    columns = {name: name for name in ("alignment", "uniformity", "positives", "texts")}
    drawn = [(name, result) for name, _, result in examined]
    return outcome(entries, columns, partial(plot_alignment_uniformity, drawn), texts)


def sink(
    models: Sequence[str], *, data: Sequence[str], split: str | None = None, max_texts: int = 512,
    seed: int = 42, batch_tokens: int | None = None, prompt_name: Sequence[str] = (),
) -> Outcome:  # fmt: skip
    """Measure the share of the last token's attention on the first token, by layer, and on the other parts."""
    from embrew.analysis.input_texts import read_texts
    from embrew.analysis.plots import plot_sinks
    from embrew.analysis.sink import PARTS, Sink, sink_of
    from embrew.encoder import Encoder

    texts = read_texts(only(data), split=split, max_texts=max_texts, seed=seed)
    options = encoding(texts, batch_tokens)

    def measure(encoder: Any) -> list[tuple[str | None, Sink]]:
        if not isinstance(encoder, Encoder):
            raise ValueError("analyze sink needs an encoder of embrew; give its folder, or a recipe")
        return [(name, sink_of(encoder, texts.texts, prompt_name=name, **options)) for name in (None, *prompt_name)]

    entries, rows, table, drawn = [], [], [], []
    for model, entry, sinks in examine(models, measure):
        for prompt, result in sinks:
            named = {"model": model, "prompt_name": prompt}
            entries.append({**entry, "prompt_name": prompt, **result.summary()})
            shares = [dict(zip(PARTS, layer, strict=True)) for layer in result.shares.tolist()]
            rows += [{**named, "layer": i, **layer} for i, layer in enumerate(shares, start=1)]
            depths = {f"{depth:.0%}": result.at(depth) for depth in DEPTHS}
            means = {"mean": float(result.of("first").mean()), "on the text": float(result.of("text").mean())}
            table.append({**named, **depths, **means})
            drawn.append((model if prompt is None else f"{model}, {prompt}", result))
    title = "attention weight of the last token on the first token, by depth"
    return Outcome(entries, rows, table, partial(plot_sinks, drawn), {"texts_sha256": texts.sha256}, title=title)


def surface(
    models: Sequence[str], *, data: Sequence[str] = (), suite: str | None = None, split: str | None = None,
    layers: str | None = None, dims: str | None = None, pick: str | None = None, batch_tokens: int | None = None,
) -> Outcome:  # fmt: skip
    """Evaluate a model truncated to each number of layers and dimensions, against time and bytes per vector."""
    from embrew.analysis.plots import plot_surfaces
    from embrew.analysis.surface import surface_of
    from embrew.storage.card import export_options

    share = None if pick is None else read_share(pick)
    axes: Any = {"layers": layers and read_numbers(layers), "dims": dims and read_numbers(dims)}
    tasks = _tasks(data, suite, split, choosing=share is not None)

    def measure(encoder: Any) -> tuple[Surface, Cell | None, str]:
        result = surface_of(encoder, tasks, **axes, batch_tokens=batch_tokens, show_progress_bar=True)
        return result, None if share is None else result.pick(share), export_options(encoder)

    examined = examine(models, measure)
    entries, rows, table, lines = [], [], [], []
    for model, entry, (result, picked, export) in examined:
        entries.append({**entry, **result.summary(), "share": share, "picked": picked and vars(picked)})
        rows += _cells(model, result, picked)
        for i in reversed(range(len(result.layers))):
            scores = {str(dim): f"{100 * score:.2f}" for dim, score in zip(result.dims, result.means[i], strict=True)}
            table.append({"model": model, "layers": result.layers[i], **scores, "ms per text": result.milliseconds[i]})
        lines += _words(model, result, picked, export)
    drawn = [(model, result, picked) for model, _, (result, picked, _) in examined]
    return Outcome(entries, rows, table, partial(plot_surfaces, drawn), lines=lines)


def _tasks(data: Sequence[str], suite: str | None, split: str | None, *, choosing: bool) -> list[Task]:
    """Return the tasks to score: for --pick, dev splits unless the user gives a split or a suite."""
    from embrew.evaluation import Task, find_task
    from embrew.evaluation.dev import dev_task
    from embrew.evaluation.suites import read_suite

    if suite is not None:
        if len(data) > 1 or split:
            raise ValueError("--suite defines tasks and splits; give it with at most one --data")
        tasks: list[Any] = list(read_suite(suite, data=data[0] if data else None).tasks)
    elif choosing and split is None:
        try:
            tasks = [dev_task(folder) for folder in data]
        except ValueError as error:
            raise ValueError(
                f"--pick needs a dev split: {error}. To pick on the test split anyway, give --split test"
            ) from None
    else:
        tasks = [find_task(folder, split=split) for folder in data]
    if not tasks:
        raise ValueError("nothing to evaluate on; give --data DIR or --suite NAME")
    for task in tasks:
        if not isinstance(task, Task):
            raise ValueError(f"{task.name}: tasks of MTEB are not supported here; give --data")
    return tasks


def _cells(model: str, result: Surface, picked: Cell | None) -> list[dict[str, Any]]:
    """Return a row per cell, with the scores of each task."""
    front, names = result.pareto(), [task.name for task in result.tasks]
    scores = result.scores.reshape(len(names), -1).T.tolist()
    return [
        {"model": model, **vars(cell), "pareto": int(cell in front), "picked": int(cell == picked)}
        | dict(zip(names, each, strict=True))
        for cell, each in zip(result.cells, scores, strict=True)
    ]


def _words(name: str, result: Surface, picked: Cell | None, export: str) -> list[str]:
    tasks = zip(result.tasks, result.sizes, strict=True)
    lines = [f"{name}: scored on {'; '.join(f'{task.name} {task.shown_split}, {size}' for task, size in tasks)}"]
    shallow, least = result.shallow_average(), result.shallow_average(result.dims[0])
    if shallow is not None and least is not None:
        lines.append(f"≺Avg {100 * shallow:.2f} at {result.dims[-1]} dimensions, {100 * least:.2f} at {result.dims[0]}")
    if picked is not None:
        if any(task.split == "test" for task in result.tasks):
            lines.append("chosen on a test split: report scores of this choice on other data")
        full = result.cells[-1]
        lines += [
            f"{picked.layers} of {full.layers} layers and {picked.dim} of {full.dim} dimensions keep "
            f"{picked.kept:.1%}: {100 * picked.score:.2f} of {100 * full.score:.2f}",
            f"  {picked.milliseconds:.2f} of {full.milliseconds:.2f} ms per text, "
            f"{picked.bytes:,} of {full.bytes:,} bytes per vector",
            f"  embrew export {shlex.quote(name)} DIR --layers {picked.layers} --dim {picked.dim}{export}",
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


def read_numbers(text: str) -> list[int]:
    """Parse numbers such as `4,8,12` or `1-6,12`.

    >>> read_numbers("1-3,6")
    [1, 2, 3, 6]
    """
    numbers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if match is None:
            raise ValueError(f"{text!r} is not a list of numbers; write 4,8,12 or 1-6,12")
        numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return numbers


def truncation(
    models: Sequence[str], *, data: Sequence[str], split: str | None = None, max_texts: int = 3000,
    seed: int = 42, batch_tokens: int | None = None, dims: str | None = None,
) -> Outcome:  # fmt: skip
    """Embed full and truncated vectors together in the plane by t-SNE: how far truncation moves a text."""
    import numpy as np

    from embrew.analysis.input_texts import read_texts
    from embrew.analysis.plots import plot_truncations
    from embrew.analysis.truncation import Truncation, truncation_of
    from embrew.analysis.vectors import vector_chunks

    texts = read_texts(only(data), split=split, max_texts=max_texts, seed=seed)
    chosen = read_numbers(dims) if dims else [128]
    if len(chosen) > 1:
        raise ValueError(f"--dims {dims}; analyze truncation takes one number of dimensions")
    options = encoding(texts, batch_tokens)

    def measure(encoder: Any) -> Truncation:
        vectors = np.concatenate(list(vector_chunks(encoder, texts.texts, **options)))
        dim = chosen[0] if dims else min(chosen[0], vectors.shape[1] // 2)
        return truncation_of(vectors, dim, seed=seed)

    examined = examine(models, measure)
    entries = [
        {
            **entry,
            "dim": plane.dim,
            "texts": len(plane.whole),
            "distance": plane.distance,
            "distance_share": plane.share,
        }
        for _, entry, plane in examined
    ]
    columns = {"dim": "dimensions", "texts": "texts", "distance": "mean distance"}
    columns |= {"distance_share": "share of that between texts"}
    drawn = [(name, plane) for name, _, plane in examined]
    return outcome(entries, columns, partial(plot_truncations, drawn), texts)


def efficiency(models: Sequence[str], *, stage: str | None = None, against: str | None = None) -> Outcome:
    """Show learning curves, score against samples seen, of runs with evaluation.at or evaluation.every."""
    from embrew.analysis.efficiency import as_rows, pareto, read_curve
    from embrew.analysis.plots import plot_efficiency

    runs = [*models, *([against] if against and against not in models else [])]
    curves = [read_curve(run, stage=stage) for run in runs]
    target = None if against is None else curves[runs.index(against)]
    goal = None if target is None else target.best.score
    front = [name for name, _ in pareto(curves)]
    entries, table = [], []
    for run, curve in zip(runs, curves, strict=True):
        best = curve.best
        figures = {"first": curve.moments[0].score, "best": best.score, "samples": best.samples, "steps": best.step}
        figures |= {"epochs": best.epochs, "pareto": front.count(curve.name)}
        entry: dict[str, Any] = {"run": run, **figures, "scored_on": curve.scored_on}
        row: dict[str, Any] = {"run": curve.name, **figures}
        if target is not None and curve is not target:
            passing = _passing(curve, target)
            entry |= passing
            row[f"samples to pass {target.name}"] = passing["passes"]["samples"] if passing["passes"] else "never"
            row["share of its"] = passing.get("share")
        entries.append(entry)
        table.append(row)
    lines = [f"{curve.name}: dev is measured on {curve.scored_on}" for curve in curves]
    if target is not None:
        lines.append(f"best score of {target.name}: {goal:.4f}; only evaluated steps count, without interpolation")
    moments = as_rows(curves)
    plot = partial(plot_efficiency, curves, mark=goal)
    return Outcome(entries, moments, table, plot, {"moments": moments}, lines)


def _passing(curve: Curve, target: Curve) -> dict[str, Any]:
    """Return when a run first exceeds the best score of another, and its share of the samples of that one."""
    moment = curve.passes(target.best.score)
    if moment is None:
        return {"passes": None}
    passes = {"samples": moment.samples, "stage": moment.stage, "steps": moment.step, "epochs": moment.epochs}
    return {"passes": passes, "share": moment.samples / target.best.samples if target.best.samples else None}


def encoding(texts: Texts, batch_tokens: int | None) -> dict[str, Any]:
    """Return keywords for functions that encode texts."""
    return {"side": texts.side, "batch_tokens": batch_tokens, "show_progress_bar": True}


def outcome(entries: list[dict[str, Any]], columns: dict[str, str], plot: Any, texts: Texts) -> Outcome:
    """Return figures that are single values of each model's entry; `columns` are those of the table."""
    rows = [flat(entry) for entry in entries]
    table = [{"model": row["model"], **{head: row[name] for name, head in columns.items()}} for row in rows]
    return Outcome(entries, rows, table, plot, {"texts_sha256": texts.sha256})
