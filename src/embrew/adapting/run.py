"""Adapt a language model: data, baselines, training, scores, page and export. Finished parts are not repeated."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from embrew import assembly
from embrew.adapting.baselines import score, score_bm25
from embrew.adapting.defaults import DISTILLATION, PREFIX, Defaults, ModelDefaults, method_names, read_defaults
from embrew.adapting.outcome import ADAPTED, Row, first_lines, has_page, write_page
from embrew.adapting.prepare import Prepared, check_same, prepare
from embrew.adapting.reading import Given, given
from embrew.adapting.recipes import (
    as_described,
    check_one_process,
    steps_in_time,
    text_lengths,
    trained_recipe,
    untrained_recipe,
    write_recipe,
    written_recipe,
)
from embrew.adapting.scan import check
from embrew.analysis.dev_uniformity import evaluation_of
from embrew.config.overrides import Override, as_text, parse_override
from embrew.data.reading import expand
from embrew.distributed import claimed_by_first
from embrew.encoder import Encoder
from embrew.evaluation import find_task
from embrew.evaluation.paths import write_paths
from embrew.export.exporting import export_encoder
from embrew.files import formats
from embrew.files.checksums import NAME, file_sha256, is_intact
from embrew.files.names import public_path
from embrew.files.reading import BrokenFile, read_json
from embrew.files.sealed import sealed
from embrew.files.writing import recover, write_json
from embrew.opening import check_pooling, is_bare
from embrew.progress import within
from embrew.recipe import Recipe
from embrew.report.sources import RECIPES, Source
from embrew.training.stages import train

logger = logging.getLogger(__name__)
PLAN, TRAINED, RESULTS, DEV, EXPORT = "plan.json", "model", "results", "dev", "export"
BEFORE, CONTRAST, BM25 = "before", "contrast", "bm25"
REPAIR = "remove the file; the same command makes it again"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a model is adapted; see `adapt`."""

    method: str
    defaults: Defaults
    overrides: tuple[Override, ...]
    seed: int
    export: bool
    quick: bool


def adapt(
    model: str | Path,
    *,
    output: str | Path,
    pairs: str | Path | Mapping[str, Any] | None = None,
    documents: str | Path | Mapping[str, Any] | None = None,
    columns: Mapping[str, str] | None = None,
    method: str = "none",
    teacher: str | None = None,
    minutes: float | None = None,
    quick: bool = False,
    seed: int = 42,
    export: bool = True,
    overrides: Sequence[str] = (),
) -> dict[str, Any]:
    """Make an encoder of a language model, from pairs of texts, documents, or both.

    A dev set and a test are held out. Untrained poolings are scored on dev. Contrastive learning is trained from the
    better of mean and PromptEOL pooling, and `method` beside it. Dev chooses steps and encoder; the test comes last.

    Writes `data/`, `recipes/`, `model/` (runs), `dev/` and `results/` (scores), `export/` (the best trained encoder for
    Sentence-Transformers, verified), `report.html` and `adapted.json`. The same call resumes an interrupted one.

    Args:
        model: a causal language model: a folder, GGUF file, LoRA adapter, Hub id, `smollm2-135m` or `nano`.
        output: output folder.
        pairs: file, folder or Hub id of pairs in any form of `read_qa`; or the keys of a recipe's `data`.
        documents: folder or file of documents (`read_folder`), Hub id; or the keys of a recipe's `data`.
        columns: `question`, `answer`, `choices`, `negatives`, `source` -> column of `pairs`.
        method: `llm2comp`, `ese`, `autoregembed`, `lbr`, `epic` or `distillation`; `none`: contrast alone.
        teacher: an embedding model whose vectors the method `distillation` learns: a folder or Hub id of a
            Sentence-Transformers model, or a folder that embrew trained.
        minutes: time of training, for each trained model; default: 30.
        quick: every part in a few minutes, too short to compare methods.
        seed: random seed of the split and of training.
        export: write `export/`.
        overrides: `key.path=value` for the recipes, `adapt.key=value` for the defaults.

    Returns:
        The content of `adapted.json`: scores of each model on dev and test, the best one, and what the data were.

    Raises:
        FileExistsError: `output` holds other files, or a run with other settings; another process works in it.
        FileNotFoundError, ValueError: a model or data that cannot be read or used; anything that `train` raises.
    """
    if pairs is None and documents is None:
        raise ValueError("neither pairs nor documents; give one of them, or both")
    check_one_process("adapt", output, CONTRAST, {"encoder.model": str(model)})
    chosen: list[Override] = [(f"{PREFIX}minutes", minutes)] if minutes is not None else []
    chosen += [text for text in overrides if text.startswith(PREFIX)]
    defaults = read_defaults(chosen, quick=quick)
    of_recipes: tuple[Override, ...] = tuple(text for text in overrides if not text.startswith(PREFIX))
    if teacher is not None:
        of_recipes = (("stages.distill.objective.teacher", teacher), *of_recipes)
        method = DISTILLATION if method == "none" else method
    if (teacher is None) == (method == DISTILLATION):
        raise ValueError(f"method={method!r} and teacher={teacher!r}: {DISTILLATION} needs a teacher, no other has one")
    _check_method(method, defaults)
    settings = Settings(method=method, defaults=defaults, overrides=of_recipes, seed=seed, export=export, quick=quick)
    texts = None if documents is None else given(documents, "documents")
    examples = None if pairs is None else given(pairs, "pairs", columns=columns)
    _check_model(str(model))
    has_page()
    with claimed_by_first(Path(output), "working in"):
        return _adapt(str(model), texts, examples, Path(output), settings)


def _check_method(name: str, defaults: Defaults) -> None:
    """Raise if the name of the method, or of a pooling, is unknown."""
    names = ("none", *method_names())
    if name not in names:
        raise ValueError(f"method={name!r}; choose from {', '.join(names)}")
    for pooling in defaults.poolings:
        check_pooling(pooling)


def _check_model(model: str) -> None:
    """Raise unless a model is a language model without embedding settings, by its files."""
    if not is_bare(model):
        raise ValueError(
            f"{model} is an encoder already, or a recipe; give a causal language model (a folder, GGUF file, LoRA "
            "adapter or Hub id). An encoder of embrew is trained further with embrew train RECIPE --from DIR"
        )


def _adapt(
    model: str, documents: Given | None, pairs: Given | None, folder: Path, settings: Settings
) -> dict[str, Any]:
    recover(folder / "data")  # of a call that was killed in its first seconds
    ours = any((folder / "data" / name).is_file() for name in (formats.ADAPTED.file, NAME))
    if folder.exists() and any(folder.iterdir()) and not ours:
        raise FileExistsError(f"{folder} holds other files; choose another output folder")
    defaults = settings.defaults
    data = prepare(documents, pairs, folder / "data", defaults=defaults, seed=settings.seed)
    _say(data)
    models = _models(settings, data)
    encoder, plan = _plan(model, models, data, folder, settings)
    rows = [_before(encoder, plan, data, folder, settings)]
    del encoder
    rows += [_trained(model, name, data, folder, settings) for name in plan["trained"]]
    results = [folder / RESULTS / name for name in (BEFORE, *plan["trained"], BM25)]
    dev, test = score_bm25(data.dev, "dev", folder / DEV / BM25), score_bm25(data.test, "test", results[-1])
    rows.append(Row(name="BM25", dev=dev, test=test))
    best = max(rows[1:-1], key=lambda row: row.dev.main_score)
    assert best.stage is not None, "it was trained"
    if settings.export:
        trusted = Recipe.load(folder / RECIPES / f"{best.name}.yaml").encoder.trust_remote_code
        _export(Encoder.from_pretrained(best.stage, trust_remote_code=trusted), folder / EXPORT)
    report = sealed(
        {
            "format": formats.ADAPTED.number,
            "model": public_path(model),
            "said": first_lines(rows, best, data, quick=settings.quick),
            "best": best.name,
            "encoder": str(best.stage.relative_to(folder)),
            "exported": EXPORT if settings.export else None,
            "models": [row.summary(place, folder) for row, place in zip(rows, results, strict=True)],
            "poolings": plan["poolings"],
            "data": dict(data.manifest),
            "plan": {key: plan[key] for key in ("lengths", "trained", "minutes")},
            "versions": formats.versions(),
        }
    )
    said = report["said"]
    write_page(folder, rows, results, test=data.test, said=said, opener=partial(_open, model))
    write_json(folder / ADAPTED, report)
    return report


def _open(model: str, source: Source) -> Any:
    """Return the encoder of a source of the page; recipes hold no path of the language model."""
    if source.model and Path(source.model).suffix == ".yaml":
        return assembly.encoder(Recipe.load(source.model, [("encoder.model", model)]))
    return source.open()


def _say(data: Prepared) -> None:
    """Log what is trained on and what is held out."""
    count = data.count
    made = f" and {count('made_pairs')} made of passages" if count("made_pairs") else ""
    logger.info(
        "to train on: %d pairs%s (%d with negatives), %d passages; held out: %d questions for dev, %d for the test",
        *(count("train_pairs"), made, count("with_negatives"), count("train_passages")),
        *(count("dev_queries"), count("test_queries")),
    )
    removed = {
        "passages": count("passages_with_question") + count("passages_with_answer"),
        "pairs": count("pairs_dropped"),
        "negatives": count("negatives_dropped"),
        "duplicate pairs": count("duplicate_pairs"),
    }
    if any(removed.values()):
        said = ", ".join(f"{number} {name}" for name, number in removed.items() if number)
        logger.info("left out of training, since they repeat others or hold held-out texts: %s", said)
    if data.manifest["questions_made"]:
        logger.warning(
            "no pairs were given: first sentences of passages replace questions; they compare models, but users ask "
            "other questions"
        )


def _models(settings: Settings, data: Prepared) -> dict[str, dict[str, ModelDefaults]]:
    """Return the models to train: contrast by the pooling that it starts from, and the method."""
    models = {CONTRAST: settings.defaults.contrast}
    if settings.method == "none":
        return models
    chosen = settings.defaults.methods[settings.method]
    if any(stage.stage["objective"]["type"] == "alignment" for stage in chosen.stages) and not data.count(
        "with_negatives"
    ):
        raise ValueError(
            f"--method {settings.method} contrasts with negatives, and no pair to train on has some; add them (embrew "
            "data mine finds hard ones), or choose another method"
        )
    return {**models, settings.method: {"": chosen}}


# ---- before training ---------------------------------------------------------------------------------------


def _plan(
    model: str, models: Mapping[str, Mapping[str, ModelDefaults]], data: Prepared, folder: Path, settings: Settings
) -> tuple[Encoder, dict[str, Any]]:
    """Return an encoder of the model, and what was decided: poolings and recipes, which are written."""
    defaults, overrides, seed = settings.defaults, settings.overrides, settings.seed
    _check_overrides(models, overrides)
    check(data.folder)
    asked = {
        "model": public_path(model),
        "method": settings.method,
        "defaults": json.loads(defaults.model_dump_json()),
        "overrides": [as_text(override) for override in overrides],
        "seed": seed,
        "data": data.manifest["made_of"]["sha256"],
    }
    kept = _kept_plan(folder, asked)
    logger.info("opening %s", model)
    encoder = assembly.encoder(untrained_recipe(model, "mean", overrides=overrides, seed=seed))
    lengths = kept["lengths"] if kept else text_lengths(encoder, data, defaults.longest)
    common: Any = {"lengths": lengths, "encoder": encoder, "overrides": overrides, "seed": seed}
    recipes = {name: untrained_recipe(model, name, **common) for name in defaults.poolings}
    scored = {}
    for name, recipe in recipes.items():
        reader = as_described(encoder, recipe)
        scored[name] = score(
            reader, data.dev, "dev", folder / DEV / name, name=name, batch_tokens=defaults.batch_tokens
        )
    scores = {name: result.main_score for name, result in scored.items()}
    before = max(scores, key=lambda name: scores[name])
    logger.info("without training, the best pooling on dev is %s (%.1f)", before, 100 * scores[before])
    write_recipe(folder / RECIPES / f"{BEFORE}.yaml", recipes[before], f"{before}: the best untrained pooling on dev.")
    if kept:
        return encoder, kept
    start = max(defaults.contrast, key=lambda name: scores.get(name, -1.0))
    dev_seconds = scored[start].seconds if start in scored else max(result.seconds for result in scored.values())
    for name, choices in models.items():
        recipe = _in_time(model, name, choices.get(start) or choices[""], data, defaults, dev_seconds, common)
        from_pooling = f" from {start} pooling" if len(choices) > 1 else ""
        said = f"{name}{from_pooling}, in about {defaults.minutes:g} minutes on the machine that planned it."
        write_recipe(folder / RECIPES / f"{name}.yaml", recipe, said)
    plan = {
        "asked": asked,
        "lengths": lengths,
        "poolings": scores,
        "before": before,
        "trained": list(models),
        "minutes": defaults.minutes,
        "recipes": {name: file_sha256(folder / RECIPES / f"{name}.yaml") for name in models},
    }
    write_json(folder / PLAN, sealed(plan))
    return encoder, plan


def _kept_plan(folder: Path, asked: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the plan of an earlier call with the same settings; None: there is none.

    Raises:
        FileExistsError: it has other settings.
    """
    if not (folder / PLAN).is_file():
        return None
    kept = read_json(folder / PLAN, keys=("asked", "lengths", "poolings", "trained"), repair=REPAIR, sealed=True)
    check_same(asked, kept["asked"], folder)
    for name, sha256 in kept.get("recipes", {}).items():
        file = folder / RECIPES / f"{name}.yaml"
        if not file.is_file() or file_sha256(file) != sha256:
            raise BrokenFile(
                f"{file} is missing or has changed since it was written; remove {folder / PLAN}, and the same command "
                "plans again; for a setting of your own, give it as key.path=value and another output folder"
            )
    return kept


def _in_time(
    model: str,
    name: str,
    chosen: ModelDefaults,
    data: Prepared,
    defaults: Defaults,
    dev_seconds: float,
    common: Mapping[str, Any],
) -> Recipe:
    """Return the recipe of a model with the steps that the minutes allow, which are logged."""
    one_step = trained_recipe(model, chosen, data, defaults=defaults, **common)
    check(data.folder, _other_rows(one_step, data))
    steps, evaluations, seconds = steps_in_time(one_step, chosen, data, defaults, dev_seconds)
    recipe = trained_recipe(model, chosen, data, defaults=defaults, **common, steps=steps, evaluations=evaluations)
    counts = [stage.training["max_steps"] for stage in recipe.stages]
    each = zip(recipe.stages, counts, seconds, strict=True)
    total = sum(count * one for count, one in zip(counts, seconds, strict=True))
    words = ", ".join(f"{stage.name} {count} steps of {one:.2g} s" for stage, count, one in each)
    logger.info("%s: %s; about %.1f min", name, words, total / 60)
    return recipe


def _check_overrides(models: Mapping[str, Mapping[str, ModelDefaults]], overrides: Sequence[Override]) -> None:
    """Raise if an override is of a stage that no recipe has."""
    chosen = [one for choices in models.values() for one in choices.values()]
    names = {stage.stage["name"] for one in chosen for stage in one.stages}
    for text in overrides:
        key, _ = parse_override(text)
        if key[0] == "stages" and (len(key) < 2 or key[1] not in names):
            raise ValueError(f"override {as_text(text)!r}: the stages are {', '.join(sorted(names))}")


def _other_rows(recipe: Recipe, data: Prepared) -> Iterator[Mapping[str, Any]]:
    """Yield the training rows of a recipe that are not from the prepared folder (by overrides)."""
    for stage in recipe.stages:
        for config in stage.datasets:
            if any(Path(expand(path)).resolve().parent != data.folder.resolve() for path in config.paths):
                yield from assembly.rows(config, assembly.objective(stage.objective), max_rows=config.max_rows)


# ---- training and scores -----------------------------------------------------------------------------------


def _before(encoder: Encoder, plan: Mapping[str, Any], data: Prepared, folder: Path, settings: Settings) -> Row:
    """Return the scores of the best untrained pooling."""
    name, recipe = plan["before"], folder / RECIPES / f"{BEFORE}.yaml"
    common: Any = {"name": f"untrained, {name}", "batch_tokens": settings.defaults.batch_tokens}
    reader = as_described(encoder, Recipe.load(recipe, [("encoder.model", plan["asked"]["model"])]))
    dev = score(reader, data.dev, "dev", folder / DEV / name, **common)
    test = score(reader, data.test, "test", folder / RESULTS / BEFORE, **common)
    return Row(name=common["name"], dev=dev, test=test, recipe=recipe)


def _trained(model: str, name: str, data: Prepared, folder: Path, settings: Settings) -> Row:
    """Train a model, or resume, and return its scores."""
    recipe = written_recipe(folder / RECIPES / f"{name}.yaml", model, settings.overrides)
    run = folder / TRAINED / name
    with within(name):
        train(recipe, run, resume=run.exists(), evaluate=evaluation_of(recipe))
    stage = run / recipe.stages[-1].name
    log = read_json(run / "run.json", keys=("seconds",), kind=formats.RUN)
    trusted = recipe.encoder.trust_remote_code
    encoder = Encoder.from_pretrained(stage, dtype="as_trained", trust_remote_code=trusted)
    common: Any = {"name": name, "batch_tokens": settings.defaults.batch_tokens}
    dev = score(encoder, data.dev, "dev", folder / DEV / name, **common)
    test = score(encoder, data.test, "test", folder / RESULTS / name, **common)
    write_paths(folder / RESULTS / name, str(stage), [find_task(data.test)])
    kept = log.get("kept", {}).get(stage.name)
    return Row(
        name=name,
        dev=dev,
        test=test,
        stage=stage,
        seconds=sum(log["seconds"].values()),
        kept=kept,
        steps=recipe.stages[-1].training["max_steps"],
    )


def _export(encoder: Encoder, folder: Path) -> None:
    """Export the encoder as a stock folder, unless that folder exists."""
    said, length = folder / formats.EXPORT.file, encoder.max_seq_length
    written = json.loads(json.dumps(encoder.with_settings(max_length=length).describe()))
    if (
        said.is_file()
        and is_intact(folder)
        and read_json(said, keys=("encoder",), repair=REPAIR, kind=formats.EXPORT)["encoder"] == written
    ):
        logger.info("%s  already exported", folder)
        return
    export_encoder(encoder, folder, overwrite=folder.exists(), max_length=length)
