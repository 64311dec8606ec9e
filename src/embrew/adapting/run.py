"""Race models on a user's texts: data, scores, training, page and export. Finished parts are not repeated."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from embrew.adapting.baselines import score_bm25, score_hybrid
from embrew.adapting.chosen_models import models_that_fit
from embrew.adapting.defaults import DISTILLATION, PREFIX, Defaults, ModelDefaults, method_names, read_defaults
from embrew.adapting.leaks import check
from embrew.adapting.outcome import ADAPTED, Row, best_of, cheapest_of, first_lines, write_page
from embrew.adapting.prepare import Prepared, prepare
from embrew.adapting.race import CONTRAST, DEV, REPAIR, RESULTS, Lane, Settings
from embrew.adapting.reading import Given, given
from embrew.adapting.recipes import check_one_process
from embrew.adapting.starts import STARTS, Start, find_start, start_name, with_earlier, write_starts
from embrew.config.overrides import Override, as_text, parse_override
from embrew.distributed import claimed_by_first
from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from embrew.files import formats
from embrew.files.checksums import NAME, is_intact
from embrew.files.names import public_path
from embrew.files.reading import read_json
from embrew.files.sealed import sealed
from embrew.files.writing import atomic_folder, link_or_copy, recover, write_json
from embrew.opening import check_pooling
from embrew.recipe import Recipe
from embrew.storage.opening import SETTINGS

logger = logging.getLogger(__name__)
EXPORT, ENCODER, BM25 = "export", "encoder", "bm25"


def adapt(
    model: str | Path | Sequence[str | Path] = (),
    *,
    output: str | Path,
    pairs: str | Path | Mapping[str, Any] | None = None,
    documents: str | Path | Mapping[str, Any] | None = None,
    columns: Mapping[str, str] | None = None,
    as_is: Sequence[str | Path] = (),
    method: str = "none",
    teacher: str | None = None,
    minutes: float | None = None,
    quick: bool = False,
    seed: int = 42,
    export: bool = True,
    overrides: Sequence[str] = (),
) -> dict[str, Any]:
    """Race models on a user's texts, each as it is and trained, and export the best.

    A dev set and a test are held out. A ready model, such as a Sentence-Transformers one, is scored as it is, and
    trained from there; a bare language model is scored in its best untrained pooling, and trained from the better of
    mean and PromptEOL pooling, with `method` beside it. Dev chooses steps and the best; the test is read once.

    Writes `data/`, `recipes/`, `model/` (runs), `dev/` and `results/` (scores), `encoder/` (the best one), `export/`
    (the same for Sentence-Transformers, verified), `report.html` and `adapted.json`. The same call resumes an
    interrupted one; a call with further models does not repeat what is finished of the others.

    Args:
        model: one model or several: causal language models (folders, GGUF files, LoRA adapters, Hub ids,
            `smollm2-135m`, `nano`), Sentence-Transformers models, encoders and exports of embrew, output folders of
            `adapt` (whose best is meant), BERT-type encoders. None: those of earlier calls in `output`, or those of
            `models.yaml` that fit this machine and the minutes.
        output: output folder.
        pairs: file, folder or Hub id of pairs in any form of `read_qa`; or the keys of a recipe's `data`.
        documents: folder or file of documents (`read_folder`), Hub id; or the keys of a recipe's `data`.
        columns: `question`, `answer`, `choices`, `negatives`, `source` -> column of `pairs`.
        as_is: further models that are scored, and not trained.
        method: `llm2comp`, `ese`, `autoregembed`, `lbr`, `epic` or `distillation`, for bare language models; `none`:
            contrast alone.
        teacher: an embedding model whose vectors the method `distillation` learns: a folder or Hub id of a
            Sentence-Transformers model, or a folder that embrew trained.
        minutes: minutes of training, for each trained model; 30 by default.
        quick: run every part in a few minutes, too short to compare methods.
        seed: random seed of the split and of training.
        export: also export the best encoder for Sentence-Transformers.
        overrides: `key.path=value` for the recipes, `adapt.key=value` for the defaults.

    Returns:
        The content of `adapted.json`: scores of each model on dev and test, the best one, and what the data were.

    Raises:
        FileExistsError: `output` holds other files, or a run with other settings; another process works in it.
        FileNotFoundError, ValueError: a model or data that cannot be read or used; anything that `train` raises.
    """
    if pairs is None and documents is None:
        raise ValueError("neither pairs nor documents; give one of them, or both")
    models = [model] if isinstance(model, str | Path) else list(model)
    for first in models[:1]:
        check_one_process("adapt", output, f"{start_name(first)}--{CONTRAST}", {"encoder.model": str(first)})
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
    starts = [find_start(str(one), trains=one not in as_is) for one in (*models, *as_is)]
    _check_starts(starts, settings)
    with claimed_by_first(Path(output), "working in"):
        return _adapt(starts, texts, examples, Path(output), settings)


def _check_starts(starts: Sequence[Start], settings: Settings) -> None:
    """Raise where options are for other starts."""
    if as_is := [start.name for start in starts if start.is_bare and not start.trains]:
        logger.warning("%s: a bare language model as it is means its best untrained pooling", ", ".join(as_is))
    ready = [start.name for start in starts if not start.is_bare]
    if settings.method == "none" or not ready:
        return
    if len(ready) == len(starts):
        raise ValueError(
            f"method={settings.method!r} is for language models that are no embedding models, as {', '.join(ready)} "
            "is; leave --method out, or add such a model"
        )
    logger.info("%s is trained of bare language models, and not of %s", settings.method, ", ".join(ready))


def _check_method(name: str, defaults: Defaults) -> None:
    """Raise if the name of the method, or of a pooling, is unknown."""
    names = ("none", *method_names())
    if name not in names:
        raise ValueError(f"method={name!r}; choose from {', '.join(names)}")
    for pooling in defaults.poolings:
        check_pooling(pooling)


def _adapt(
    given: Sequence[Start], documents: Given | None, pairs: Given | None, folder: Path, settings: Settings
) -> dict[str, Any]:
    recover(folder / "data")  # of a call that was killed in its first seconds
    ours = any((folder / "data" / name).is_file() for name in (formats.ADAPTED.file, NAME))
    if folder.exists() and any(folder.iterdir()) and not ours:
        raise FileExistsError(f"{folder} holds other files; choose another output folder")
    data = prepare(documents, pairs, folder / "data", defaults=settings.defaults, seed=settings.seed)
    _say(data)
    methods = _methods(settings, data)
    _check_overrides(methods, settings)
    check(data.folder)
    if not given and not (folder / STARTS).is_file():
        given = [find_start(model, trains=True) for model in models_that_fit(data, settings.defaults)]
        _check_starts(given, settings)
    starts = with_earlier(folder, given)
    lanes = [Lane(start=start, data=data, folder=folder, settings=settings, methods=methods) for start in starts]
    for lane in lanes:
        lane.kept_plan()  # raises where an earlier start has other settings, before a new one is written down
    write_starts(folder, starts)
    rows = [row for lane in lanes for row in lane.rows()]
    results = folder / RESULTS / BM25
    dev, test = score_bm25(data.dev, "dev", folder / DEV / BM25), score_bm25(data.test, "test", results)
    rows.append(Row(name="BM25", dev=dev, test=test, results=results))
    best = best_of(rows)
    lane = next(lane for lane in lanes if lane.start.name == best.start)
    rows.append(_hybrid(best, lane))
    encoder, exported = _export(best, lane, folder, export=settings.export)
    report = sealed(
        {
            "format": formats.ADAPTED.number,
            "starts": {start.name: public_path(start.model) for start in starts},
            "said": first_lines(rows, best, data, quick=settings.quick),
            "best": best.name,
            "cheapest": cheapest_of(rows, best).name,
            "encoder": None if encoder is None else str(encoder.relative_to(folder)),
            "exported": EXPORT if exported else None,
            "models": [row.summary(folder) for row in rows],
            "data": dict(data.manifest),
            "minutes": settings.defaults.minutes,
            "versions": formats.versions(),
        }
    )
    write_page(folder, rows, best=best, data=data, said=report["said"])
    write_json(folder / ADAPTED, report)
    return report


def _hybrid(best: Row, lane: Lane) -> Row:
    """Return the scores of the best encoder fused with BM25."""
    name = f"{best.results.name}--{BM25}"
    options: Any = {"name": best.results.name, "batch_tokens": lane.settings.defaults.batch_tokens}
    opener = cache(partial(lane.open_row, best))
    dev, test = (
        score_hybrid(opener, folder, split, lane.folder / place / name, **options)
        for folder, split, place in ((lane.data.dev, "dev", DEV), (lane.data.test, "test", RESULTS))
    )
    return Row(
        name=f"{best.name} + BM25",
        dev=dev,
        test=test,
        results=lane.folder / RESULTS / name,
        start=best.start,
        dimensions=best.dimensions,
        parameters=best.parameters,
        milliseconds=best.milliseconds,
    )


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


def _methods(settings: Settings, data: Prepared) -> dict[str, dict[str, ModelDefaults]]:
    """Return what is trained of a bare language model: contrast by the pooling that it starts from, and the method."""
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


def _check_overrides(methods: Mapping[str, Mapping[str, ModelDefaults]], settings: Settings) -> None:
    """Raise if an override is of a stage that no recipe has."""
    chosen = [one.stages for choices in methods.values() for one in choices.values()] + [settings.defaults.ready.stages]
    names = {stage.stage["name"] for stages in chosen for stage in stages}
    for text in settings.overrides:
        key, _ = parse_override(text)
        if key[0] == "stages" and (len(key) < 2 or key[1] not in names):
            raise ValueError(f"override {as_text(text)!r}: the stages are {', '.join(sorted(names))}")


def _export(best: Row, lane: Lane, folder: Path, *, export: bool) -> tuple[Path | None, bool]:
    """Write `encoder/`, the best one, and `export/`; return the first, and whether the second was written.

    A model that embrew reads only as it is stays where it is.
    """
    place = folder / ENCODER
    if best.stage is not None:
        _linked(best.stage, place)
        trusted = Recipe.load(best.stage / "recipe.yaml").encoder.trust_remote_code
        encoder = Encoder.from_pretrained(place, trust_remote_code=trusted)
    else:
        opened = lane.open_as_is() if lane.start.is_bare else lane.open_to_train()
        if opened is None:
            logger.warning("%s is the best as it is, and is not exported: use it where it is", best.name)
            return None, False
        encoder = opened
        kept = place.is_dir() and is_intact(place)
        if not kept or _described(Encoder.from_pretrained(place)) != _described(encoder):
            encoder.save_pretrained(place, overwrite=place.exists())
    if not export:
        return place, False
    said, target = folder / EXPORT / formats.EXPORT.file, folder / EXPORT
    length = encoder.max_seq_length
    written = _described(encoder.with_settings(max_length=length))
    if (
        said.is_file()
        and is_intact(target)
        and read_json(said, keys=("encoder",), repair=REPAIR, kind=formats.EXPORT)["encoder"] == written
    ):
        logger.info("%s  already exported", target)
        return place, True
    try:
        export_encoder(encoder, target, overwrite=target.exists(), max_length=length)
    except ValueError as error:
        logger.warning("%s is the best, and cannot be exported: %s; it is in %s", best.name, error, place)
        return place, False
    return place, True


def _linked(stage: Path, target: Path) -> None:
    """Make the files of a trained encoder those of another folder, too: hard links, where the file system has them."""
    if (target / NAME).is_file() and (target / NAME).read_bytes() == (stage / NAME).read_bytes() and is_intact(target):
        return
    with atomic_folder(target, marker=SETTINGS, overwrite=target.exists()) as new:
        for file in stage.rglob("*"):
            if file.is_file():
                (new / file.relative_to(stage)).parent.mkdir(parents=True, exist_ok=True)
                link_or_copy(file, new / file.relative_to(stage))


def _described(encoder: Encoder) -> Any:
    return json.loads(json.dumps(encoder.describe()))
