"""Where does a language model overtake a ready encoder: `python benchmarks/learning_curves.py WORK [DOMAIN ...]`.

all-MiniLM-L6-v2 ($MINILM), SmolLM2-135M and Gemma 3 270M ($GEMMA; as in plans/real-gemma.yaml) are trained on the first
100, 300, 1,000 and 3,000 pairs of a domain ($EMBREW_DATA), with the recipes, rates and batches of `embrew adapt`: at
most five epochs, and at most 94 steps of 32 pairs. Each is scored as it is, too: a language model with the better of
mean and PromptEOL pooling on dev. Dev keeps the best step, and the model as it is where no step is better. Larger sets
hold the smaller ones; dev and test are the same for all.

Stopped? The same command resumes. `--only MODEL ...` and `--seeds` run parts of it. Results go to
`results/learning-curves.md`, `.json` and `.svg`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from harness import RESULTS, circumstances, origin, table, write

from embrew import evaluate, train
from embrew.adapting.baselines import score_bm25
from embrew.adapting.defaults import Defaults, ModelDefaults, read_defaults
from embrew.adapting.preparation.prepare import Prepared, prepare_data
from embrew.adapting.preparation.sources import data_source
from embrew.adapting.recipes import text_lengths, training_recipe, untrained_recipe, with_recipe_settings
from embrew.adapting.starts import find_start, open_to_train
from embrew.analysis.plots import drawing
from embrew.analysis.uniformity import evaluation_of
from embrew.evaluation import Result
from embrew.evaluation.uncertainty import compare
from embrew.plot_style import CYCLE
from embrew.recipe import Recipe, build
from embrew.report import read_folder

COMMAND = "python benchmarks/learning_curves.py WORK"
DOMAINS: dict[str, dict[str, Any]] = {
    "medquad": {"path": "$EMBREW_DATA/medquad_pairs", "max_rows": 4200, "shuffle_seed": 1},
    "glossary": {"path": "$EMBREW_DATA/openstax_glossary_pairs", "shuffle_seed": 1},
}
LANGUAGE_MODELS = {"SmolLM2": "smollm2-135m", "Gemma 3 270M": "$GEMMA"}
MODELS = {"MiniLM": "$MINILM", **LANGUAGE_MODELS}
SIZES = (100, 300, 1000, 3000)
STEPS = 94  # at most; of 32 pairs, one epoch of 3,000
EVALUATIONS = 4
SETTINGS = ["adapt.longest=128", "adapt.max_documents.dev=200"]
Found = dict[str, dict[str, Any]]


def main() -> None:
    """Train and score what is not there, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("domains", nargs="*", default=list(DOMAINS))
    parser.add_argument("--only", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    asked = parser.parse_args()
    defaults = read_defaults(SETTINGS)
    for seed in asked.seeds:
        for domain in asked.domains:
            folder = asked.work / f"{domain}-{seed}"
            pairs = data_source(DOMAINS[domain], "pairs")
            data = prepare_data(None, pairs, folder / "data", defaults=defaults, seed=seed)
            _add(f"{domain}, seed {seed}: BM25", lambda: _bm25(data, folder))  # noqa: B023
            for model in asked.only:
                _curve(model, f"{domain}, seed {seed}", data, folder, defaults, seed)
    _page(_results())


def _add(key: str, score: Any) -> None:
    """Add a row that is not there, and write the page."""
    found = _results()
    if key not in found:
        found[key] = {**score(), "made": circumstances(COMMAND)}
        _page({name: found[name] for name in sorted(found, key=_order)})


def _results() -> Found:
    """Return the results that are there."""
    file = RESULTS / "learning-curves.json"
    return json.loads(file.read_text())["found"] if file.is_file() else {}


def _order(key: str) -> tuple[str, int]:
    """Return what rows are sorted by: race and model, then the number of pairs."""
    name, _, size = key.rpartition(", ")
    return (name, int(size)) if size.isdigit() else (key, 0)


# ---- rows ----------------------------------------------------------------------------------------------------------


def _bm25(data: Prepared, folder: Path) -> dict[str, Any]:
    return {"test": score_bm25(data.test, "test", folder / "results" / "BM25").main_score}


def _curve(model: str, race: str, data: Prepared, folder: Path, defaults: Defaults, seed: int) -> None:
    """Score a model as it is, and trained on more and more pairs."""
    keys = {size: f"{race}: {model}, {size}" for size in (0, *_sizes(data))}
    if set(keys.values()) <= _results().keys():
        return
    start = find_start(os.path.expandvars(MODELS[model]), trains=True)
    choices: ModelDefaults
    if start.is_bare:
        make = partial(untrained_recipe, start.model, overrides=(), seed=seed)
        encoder = build.encoder(make("mean"))
        lengths = text_lengths(encoder, data, defaults.longest)
        recipes = {name: make(name, lengths=lengths, encoder=encoder) for name in defaults.contrast}
        of_pooling = {name: with_recipe_settings(encoder, recipe) for name, recipe in recipes.items()}
        dev = {name: _score(one, data, "dev", folder, f"{model}-{name}") for name, one in of_pooling.items()}
        best = max(dev, key=lambda name: dev[name].main_score)
        as_is, choices, dev_as_is = of_pooling[best], defaults.contrast[best], dev[best].main_score
    else:
        encoder, values = open_to_train(start)
        lengths = text_lengths(encoder, data, defaults.longest)
        choices = defaults.ready.model(values, sum(weight.numel() for weight in encoder.parameters()))
        as_is, best = start.open(), "as it is"
        dev_as_is = _score(as_is, data, "dev", folder, model).main_score
    before = _score(as_is, data, "test", folder, f"{model}-0")
    about = {"pooling": best, **_above_minilm(before, folder, 0)}
    _add(keys[0], lambda: {"test": before.main_score, "dev": dev_as_is, **about})
    for size in _sizes(data):
        pairs = min(size, data.count("train_pairs"))
        steps = min(STEPS, math.ceil(choices.stages[0].epochs * pairs / defaults.batch["size"]))
        recipe = training_recipe(
            start.model,
            choices,
            data,
            defaults=defaults,
            lengths=lengths,
            encoder=encoder,
            overrides=[("stages.contrast.data.max_rows", pairs), ("stages.contrast.data.shuffle_seed", 1)],
            seed=seed,
            steps=[steps],
            evaluations=EVALUATIONS,
        )
        _add(keys[size], partial(_trained, recipe, model, size, data, folder, dev_as_is, before))


def _sizes(data: Prepared) -> Sequence[int]:
    """Return the sizes that a domain has; the last one may be all of its pairs."""
    pairs = data.count("train_pairs")
    return [size for size in SIZES if size <= pairs] + ([pairs] if SIZES[-2] < pairs < SIZES[-1] else [])


def _trained(
    recipe: Recipe, model: str, size: int, data: Prepared, folder: Path, dev_as_is: float, before: Result
) -> dict[str, Any]:
    """Train and score; where no step was better on dev, the scores of the model as it is."""
    name = f"{model}-{size}"
    run = folder / "runs" / name
    began = time.process_time()
    encoder = train(recipe, run, resume=run.exists(), evaluate=evaluation_of(recipe), verify="off")
    seconds = time.process_time() - began
    dev = _score(encoder, data, "dev", folder, name).main_score
    test = _score(encoder, data, "test", folder, name) if dev > dev_as_is else before
    stage = recipe.stages[0]
    about = {"steps": stage.training["max_steps"], "learning_rate": stage.training["learning_rate"]}
    about |= {"dev": max(dev, dev_as_is), "dev_trained": dev, "cpu_seconds": seconds}
    return {"test": test.main_score, **about, **_above_minilm(test, folder, size)}


def _above_minilm(test: Result, folder: Path, size: int) -> dict[str, Any]:
    """Return a test result minus that of MiniLM, trained on as many pairs, with its interval."""
    trained, as_is = (folder / "test" / f"MiniLM-{number}" for number in (size, 0))
    results = trained if trained.is_dir() else as_is
    if not results.is_dir():
        return {}
    (minilm,) = read_folder(results)
    tested = compare(minilm, test)
    assert tested is not None, "retrieval has examples"
    return {"above_minilm": {"difference": tested.difference, "low": tested.low, "high": tested.high}}


def _score(encoder: Any, data: Prepared, split: str, folder: Path, name: str) -> Result:
    path = data.dev if split == "dev" else data.test
    (result,) = evaluate(encoder, [path], split=split, output_dir=folder / split / name, batch_tokens=4096)
    return result


# ---- the page ------------------------------------------------------------------------------------------------------


def _page(found: Found) -> None:
    """Write scores by number of pairs, and from how many the language model is ahead."""
    races = list(dict.fromkeys(key.partition(":")[0] for key in found))
    domains = list(dict.fromkeys(race.partition(",")[0] for race in races))
    lines = ["# Learning curves", "", "nDCG@10 × 100 on the test, means over seeds; ± their standard deviation.", ""]
    for domain in domains:
        scores = _by_size(found, domain)
        sizes = sorted({size for of_model in scores.values() for size in of_model})
        cells = [
            [f"{size:,}", *(_cell(scores.get(model, {}).get(size)) for model in MODELS)]
            + [_ahead(scores, model, size) for model in LANGUAGE_MODELS]
            for size in sizes
        ]
        words = [row["test"] for key, row in found.items() if key.startswith(f"{domain},") and key.endswith("BM25")]
        lines += [
            f"## {domain}",
            "",
            *table(["pairs", *MODELS, *(f"{model} − MiniLM" for model in LANGUAGE_MODELS)], cells),
            "",
            f"BM25: {_cell(words)}",
            "",
        ]
    differences = [[race, *row] for race in races for row in _differences(found, race)]
    if differences:
        lines += [
            "Language model − MiniLM on the same test queries, with 95 % intervals (paired bootstrap):",
            "",
            *table(["race", "model", "pairs", "difference"], differences),
            "",
        ]
    curves = {
        domain: {
            f"{size}": {
                model: [score / 100 for score in by_size[size]] for model, by_size in scores.items() if size in by_size
            }
            for size in sorted({size for by_size in scores.values() for size in by_size})
        }
        for domain in domains
        for scores in [_by_size(found, domain)]
    }
    write("learning-curves", [*lines, *origin(list(found.values())[-1]["made"])], {"found": found, "curves": curves})
    _draw(found, domains)


def _by_size(found: Found, domain: str) -> dict[str, dict[int, list[float]]]:
    scores: dict[str, dict[int, list[float]]] = {}
    for key, row in found.items():
        race, _, name = key.partition(": ")
        if race.startswith(f"{domain},") and name != "BM25":
            model, _, size = name.partition(", ")
            scores.setdefault(model, {}).setdefault(int(size), []).append(100 * row["test"])
    return scores


def _cell(values: Sequence[float] | None) -> str:
    if not values:
        return "–"
    values = [value if value > 1 else 100 * value for value in values]
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread}"


def _ahead(scores: Mapping[str, Mapping[int, Sequence[float]]], model: str, size: int) -> str:
    both = [scores.get(name, {}).get(size) for name in ("MiniLM", model)]
    return f"{statistics.mean(both[1]) - statistics.mean(both[0]):+.1f}" if both[0] and both[1] else "–"


def _differences(found: Found, race: str) -> list[list[str]]:
    """Return rows of differences of one race that have results of both models on this machine."""
    return [
        [model, f"{int(size):,}", "{difference:+.1f} ({low:+.1f} to {high:+.1f})".format(**tested)]
        for key, row in found.items()
        for model, _, size in [key.removeprefix(f"{race}: ").rpartition(", ")]
        if model in LANGUAGE_MODELS and "above_minilm" in row
        for tested in [{name: 100 * value for name, value in row["above_minilm"].items()}]
    ]


def _draw(found: Found, domains: Sequence[str]) -> None:
    """Draw a panel per domain: score against pairs, a line per model."""
    with drawing(RESULTS / "learning-curves.svg", 5.6 * len(domains), 4.0) as figure:
        for axes, domain in zip(figure.subplots(1, len(domains), squeeze=False).flat, domains, strict=True):
            scores = _by_size(found, domain)
            for (model, by_size), color in zip(scores.items(), CYCLE, strict=False):
                sizes = sorted(by_size)
                means = [statistics.mean(by_size[size]) for size in sizes]
                axes.plot([max(size, 30) for size in sizes], means, "o-", color=color, label=model)
            words = [row["test"] for key, row in found.items() if key.startswith(f"{domain},") and "BM25" in key]
            axes.axhline(100 * statistics.mean(words), color="0.6", linestyle="--", label="BM25")
            axes.set(xscale="log", xlabel="training pairs", ylabel="test nDCG@10 × 100", title=domain)
            ticks = [30, *SIZES]
            axes.set_xticks(ticks, ["0", *(f"{size:,}" for size in SIZES)])
            axes.set_xticks([], minor=True)
            axes.legend()


if __name__ == "__main__":
    main()
