"""Plan the training of a candidate: its scores as it is on dev, mined negatives, a learning rate, and recipes."""

from __future__ import annotations

import logging
import shutil
import timeit
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from embrew.adapting.candidate import (
    AS_IS,
    CENTERED,
    CONTRAST,
    MINED,
    PLANS,
    REPAIR,
    TRAINED,
    Candidate,
    Plan,
    read_plan,
)
from embrew.adapting.defaults import ModelDefaults
from embrew.adapting.negatives import mined_pairs
from embrew.adapting.preparation.leaks import check_leaks
from embrew.adapting.preparation.prepare import Prepared, check_same_settings
from embrew.adapting.recipes import (
    seconds_per_step,
    spread,
    steps_in_time,
    text_lengths,
    training_recipe,
    untrained_recipe,
    with_recipe_settings,
    write_recipe,
)
from embrew.adapting.starts import open_to_train
from embrew.analysis.uniformity import evaluation_of
from embrew.data.reading import expand
from embrew.encoder import Encoder
from embrew.files.checksums import NAME as CHECKSUMS
from embrew.files.checksums import file_sha256, sealed
from embrew.files.reading import read_json
from embrew.files.writing import write_json
from embrew.model.center import centered
from embrew.progress import within
from embrew.recipe import Recipe, build
from embrew.recipe.overrides import as_text
from embrew.text_encoder import TextEncoder
from embrew.training.stages import train

logger = logging.getLogger(__name__)
TIMED, REPETITIONS = 64, 3  # texts, and how often they are encoded to take the time
LEAST_TIMED, TIMED_SECONDS = 8, 4.0  # so many texts at least; fewer than `TIMED` where these would take longer


def plan_training(candidate: Candidate) -> Plan:
    """Score a model as it is on dev, and write the recipes that it is trained by; the plan of an earlier call stands.

    A bare language model is scored in each untrained pooling. It is trained by contrast from the better of two of them,
    and by the method. A ready model is trained by contrast from where it is.
    """
    return _plan_bare(candidate) if candidate.start.is_bare else _plan_ready(candidate)


def earlier_plan(candidate: Candidate) -> Plan | None:
    """Return the plan of an earlier call, as `read_plan`."""
    return read_plan(candidate.plan_file, candidate.folder, inputs=candidate.inputs)


def _plan_bare(candidate: Candidate) -> Plan:
    start, data, defaults = candidate.start, candidate.data, candidate.options.defaults
    earlier = earlier_plan(candidate)
    logger.info("opening %s", start.name)
    recipe_of = partial(
        untrained_recipe, start.model, overrides=candidate.options.overrides, seed=candidate.options.seed
    )
    encoder = build.encoder(recipe_of("mean"))
    lengths = earlier.lengths if earlier else text_lengths(encoder, data, defaults.longest)
    recipes = {name: recipe_of(name, lengths=lengths, encoder=encoder) for name in defaults.poolings}
    results = {
        name: candidate.score(with_recipe_settings(encoder, recipe), name, "dev") for name, recipe in recipes.items()
    }
    scores = {name: result.main_score for name, result in results.items()}
    best = max(scores, key=lambda name: scores[name])
    logger.info("without training, the best pooling on dev is %s (%.1f)", best, 100 * scores[best])
    write_recipe(candidate.recipe_file(AS_IS), recipes[best], f"{best}: the best untrained pooling on dev.")
    if earlier:
        return earlier
    as_is = _score_centered(candidate, with_recipe_settings(encoder, recipes[best]), best, scores)
    first = max(defaults.contrast, key=lambda name: scores.get(name, -1.0))
    dev_seconds = results[first].seconds if first in results else max(result.seconds for result in results.values())
    milliseconds = _milliseconds(with_recipe_settings(encoder, recipes[best]), data)
    methods = candidate.methods if start.trains else {}
    miner = with_recipe_settings(encoder, recipes.get(first, recipes[best]))
    with_negatives = _with_negatives(candidate, miner, milliseconds) if methods else candidate
    for name, by_pooling in methods.items():
        origin = f" from {first} pooling" if len(by_pooling) > 1 else ""
        choices = by_pooling.get(first) or by_pooling[""]
        _plan_recipe(with_negatives, name, choices, encoder, lengths, dev_seconds, origin=origin)
    plan = Plan(
        inputs=candidate.inputs,
        trained=list(methods),
        minutes=defaults.minutes,
        files=_file_hashes(candidate, methods, is_centered=as_is != best),
        as_is=as_is,
        parameters=_parameters(encoder.backbone),
        milliseconds=milliseconds,
        lengths=lengths,
        poolings=scores,
    )
    plan.write(candidate.plan_file)
    return plan


def _score_centered(candidate: Candidate, encoder: Encoder, best: str, scores: dict[str, float]) -> str:
    """Score the best untrained pooling centred, and write it where it is better on dev; return the name of the better.

    Args:
        candidate: the candidate.
        encoder: an encoder with that pooling.
        best: name of the pooling.
        scores: dev scores by name, to which the new one is added.
    """
    settings, name = candidate.options.defaults.center, f"{best}-{CENTERED}"
    if settings is None:
        return best
    texts, count = candidate.data.texts(), settings.texts // 2
    try:
        new = centered(encoder, {(side, None): spread(texts[side], count) for side in texts}, settings.components)
    except ValueError as error:
        logger.warning("%s is not tried centred: %s", best, error)
        return best
    scores[name] = candidate.score(new, name, "dev").main_score
    if scores[name] <= scores[best]:
        logger.info("centred, it is no better on dev (%.1f)", 100 * scores[name])
        return best
    logger.info("without the mean and %d components, it has %.1f", settings.components, 100 * scores[name])
    new.save_pretrained(candidate.centered, overwrite=True)
    return name


def _plan_ready(candidate: Candidate) -> Plan:
    if (earlier := earlier_plan(candidate)) is not None:
        return earlier
    start, data, defaults = candidate.start, candidate.data, candidate.options.defaults
    logger.info("opening %s", start.name)
    opened = start.open()
    dev = candidate.score(opened, AS_IS, "dev")
    parameters, milliseconds = _parameters(opened), _milliseconds(opened, data)
    del opened
    logger.info("as it is, it has %.1f on dev", 100 * dev.main_score)
    trained, lengths, why_untrained = list[str](), dict[str, int](), ""
    if start.trains:
        try:
            encoder, keys = open_to_train(start)
        except ValueError as error:
            logger.warning("%s is not trained: %s", start.name, error)
            why_untrained = str(error)
        else:
            trained = [CONTRAST]
            if not start.is_saved_by_embrew:  # which keeps its limits
                lengths = text_lengths(encoder, data, defaults.longest)
            choices = defaults.ready.model(keys, parameters)
            with_negatives = _with_negatives(candidate, encoder, milliseconds)
            _plan_recipe(with_negatives, CONTRAST, choices, encoder, lengths, dev.seconds)
    plan = Plan(
        inputs=candidate.inputs,
        trained=trained,
        minutes=defaults.minutes,
        files=_file_hashes(candidate, trained),
        parameters=parameters,
        milliseconds=milliseconds,
        lengths=lengths,
        why_untrained=why_untrained,
    )
    plan.write(candidate.plan_file)
    return plan


def _with_negatives(candidate: Candidate, encoder: Encoder, milliseconds: float) -> Candidate:
    """Return the candidate with pairs that have mined negatives, and the minutes that mining leaves.

    Args:
        candidate: the candidate.
        encoder: finds the negatives.
        milliseconds: time in which it encodes a text.
    """
    defaults = candidate.options.defaults
    if defaults.negatives is None:
        return candidate
    file = candidate.folder / MINED / f"{candidate.start.name}.jsonl"
    seconds = mined_pairs(
        encoder,
        candidate.data,
        file,
        defaults.negatives,
        inputs=candidate.inputs,
        milliseconds=milliseconds,
        minutes=defaults.minutes,
    )
    if seconds is None:
        return candidate
    minutes = max(defaults.minutes - seconds / 60, defaults.minutes / 2)
    options = replace(candidate.options, defaults=defaults.model_copy(update={"minutes": minutes}))
    return replace(candidate, data=replace(candidate.data, mined=file), options=options)


def _plan_recipe(
    candidate: Candidate,
    name: str,
    choices: ModelDefaults,
    encoder: Encoder,
    lengths: Mapping[str, int],
    dev_seconds: float,
    *,
    origin: str = "",
) -> None:
    """Write the recipe of a model with the steps that the minutes allow, which are logged.

    Args:
        candidate: the candidate.
        name: name of the recipe.
        choices: defaults of its encoder and stages.
        encoder: any encoder of the candidate's model.
        lengths: from `text_lengths`.
        dev_seconds: time of an evaluation on dev.
        origin: where training starts from, for the first line of the recipe.
    """
    data, defaults, overrides = candidate.data, candidate.options.defaults, candidate.options.overrides
    build_recipe = partial(
        training_recipe,
        candidate.base_model,
        choices,
        data,
        defaults=defaults,
        lengths=lengths,
        encoder=encoder,
        seed=candidate.options.seed,
    )
    one_step = build_recipe(overrides=overrides)
    check_leaks(data.folder, _other_rows(one_step, data))
    seconds = list(seconds_per_step(one_step, candidate.source))
    minutes = defaults.minutes
    key = f"stages.{choices.stages[0].stage['name']}.training.learning_rate"
    if name == CONTRAST and not any(as_text(override).startswith(f"{key}=") for override in overrides):
        rates = _rates(candidate, choices)
        if len(rates) == 1:
            overrides = (*overrides, (key, rates[0]))
        elif (best := _searched_rate(candidate, name, key, rates, build_recipe, seconds[0], dev_seconds)) is not None:
            minutes *= 1 - defaults.rates.share
            overrides = (*overrides, (key, best))
    budget = defaults.model_copy(update={"minutes": minutes})
    steps, evaluations = steps_in_time(one_step, choices, data, budget, dev_seconds, seconds)
    recipe = build_recipe(overrides=overrides, steps=steps, evaluations=evaluations)
    counts = [stage.training["max_steps"] for stage in recipe.stages]
    total = sum(count * each for count, each in zip(counts, seconds, strict=True))
    stages = zip(recipe.stages, counts, seconds, strict=True)
    text = ", ".join(f"{stage.name} {count} steps of {each:.2g} s" for stage, count, each in stages)
    logger.info("%s: %s; about %.1f min", name, text, total / 60)
    time_limit = f"in about {defaults.minutes:g} minutes on the machine that planned it"
    write_recipe(candidate.recipe_file(name), recipe, f"{candidate.start.name}, {name}{origin}, {time_limit}.")


def _rates(candidate: Candidate, choices: ModelDefaults) -> list[float]:
    """Return the learning rates to choose from; of an embedding model without a question of a user, the lowest.

    Questions that were made of the documents, dev's too, prefer higher rates than those of users do.
    """
    default = choices.stages[0].stage["training"]["learning_rate"]
    rates = [float(f"{factor * default:.2g}") for factor in candidate.options.defaults.rates.factors]
    if candidate.start.is_bare or not candidate.data.manifest["questions_made"]:
        return rates
    logger.info("dev has no question of a user, so the lowest learning rate is taken: %.2g", min(rates))
    return [min(rates)]


def _searched_rate(
    candidate: Candidate,
    name: str,
    key: str,
    rates: Sequence[float],
    build_recipe: Callable[..., Recipe],
    seconds: float,
    dev_seconds: float,
) -> float | None:
    """Return the learning rate whose first steps are the best on dev; None: the minutes allow too few of them.

    Scores are written, so that a stopped search resumes; the encoders are removed.

    Args:
        candidate: the candidate.
        name: name of the recipe.
        key: of the rate in the recipe.
        rates: learning rates.
        build_recipe: `training_recipe` of the model, for overrides and steps.
        seconds: time of a step.
        dev_seconds: time of an evaluation on dev.
    """
    defaults, overrides = candidate.options.defaults, candidate.options.overrides
    seconds_per_rate = 60 * defaults.minutes * defaults.rates.share / len(rates)
    steps = int((seconds_per_rate - 2 * dev_seconds) / seconds)
    if steps < defaults.rates.least:
        logger.info("the minutes allow %d steps for each learning rate, so none is searched", max(0, steps))
        return None
    file = candidate.folder / PLANS / f"{candidate.start.name}--rates.json"
    file.parent.mkdir(exist_ok=True)
    scores = dict[str, float]()
    if file.is_file():
        earlier = read_json(file, keys=("inputs", "steps", "scores"), repair=REPAIR, sealed=True)
        check_same_settings(candidate.inputs, earlier["inputs"], candidate.folder)
        steps, scores = earlier["steps"], earlier["scores"]
    for rate in (f"{each:.2g}" for each in rates):
        write_json(file, sealed({"inputs": candidate.inputs, "steps": steps, "scores": scores}))
        if rate in scores:
            continue
        recipe = build_recipe(overrides=[*overrides, (key, float(rate))], steps=[steps], evaluations=2)
        run = candidate.subfolder(TRAINED, f"rate-{rate}")
        with within(f"{name}, rate {rate}"):
            dev = evaluation_of(recipe)
            encoder = train(recipe, run, resume=run.exists(), evaluate=dev, start=candidate.source)
            scores[rate] = candidate.score(encoder, f"rate-{rate}", "dev").main_score
        shutil.rmtree(run)
    write_json(file, sealed({"inputs": candidate.inputs, "steps": steps, "scores": scores}))
    best = max(scores, key=lambda each: scores[each])
    logger.info("of %d steps each, the learning rate %s is the best on dev: %s", steps, best, scores)
    return float(best)


def _file_hashes(candidate: Candidate, trained: Iterable[str], *, is_centered: bool = False) -> dict[str, str]:
    """Return the sha256 of recipes, mined pairs and the centred encoder's checksums, by path in the output folder."""
    mined = candidate.folder / MINED / f"{candidate.start.name}.jsonl"
    files = [*map(candidate.recipe_file, trained), mined, *([candidate.centered / CHECKSUMS] if is_centered else [])]
    return {str(file.relative_to(candidate.folder)): file_sha256(file) for file in files if file.is_file()}


def _milliseconds(encoder: TextEncoder, data: Prepared) -> float:
    """Return the time per text of encoding some documents in one call; the shortest of `REPETITIONS`."""
    texts = data.texts()["document"][:TIMED]
    encode = partial(encoder.encode_document, show_progress_bar=False)
    each = timeit.timeit(lambda: encode(texts[:LEAST_TIMED]), number=1) / len(texts[:LEAST_TIMED])
    timed = texts[: max(LEAST_TIMED, int(TIMED_SECONDS / REPETITIONS / each))]
    return 1000 * min(timeit.repeat(lambda: encode(timed), number=1, repeat=REPETITIONS)) / len(timed)


def _parameters(model: Any) -> int:
    """Return the number of weights of a model; of a runtime that has none to show, 0."""
    return sum(weight.numel() for weight in model.parameters()) if hasattr(model, "parameters") else 0


def _other_rows(recipe: Recipe, data: Prepared) -> Iterator[Mapping[str, Any]]:
    """Yield the training rows of a recipe that are not from the prepared folder (by overrides)."""
    for stage in recipe.stages:
        for config in stage.datasets:
            if any(Path(expand(path)).resolve().parent != data.folder.resolve() for path in config.paths):
                yield from build.rows(config, build.objective(stage.objective), max_rows=config.max_rows)
