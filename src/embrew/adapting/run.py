"""`adapt`: compare models on a user's texts, each untrained and trained (a "race"), and export the best one."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from embrew.adapting.baselines import score_bm25
from embrew.adapting.candidate import BM25, CONTRAST, DEV, RESULTS, Candidate, open_stage
from embrew.adapting.defaults import (
    DISTILLATION,
    PREFIX,
    Defaults,
    ModelDefaults,
    RaceOptions,
    method_names,
    read_defaults,
)
from embrew.adapting.outcome import (
    ADAPTED,
    AdaptReport,
    RaceRow,
    Scores,
    advice_lines,
    best_of,
    cheapest_of,
    write_page,
)
from embrew.adapting.plan_training import earlier_plan, plan_training
from embrew.adapting.preparation.leaks import check_leaks
from embrew.adapting.preparation.prepare import Prepared, prepare_data
from embrew.adapting.preparation.sources import DataSource, check_apart, data_source
from embrew.adapting.questions.job import SETTINGS as JOB_SETTINGS
from embrew.adapting.questions.job import QuestionMaker
from embrew.adapting.recipes import check_one_process
from embrew.adapting.starts import STARTS, Start, find_start, models_that_fit, start_name, with_earlier, write_starts
from embrew.distributed import locked_by_main_process
from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from embrew.files import formats
from embrew.files.checksums import NAME, is_intact, sealed
from embrew.files.names import public_path
from embrew.files.reading import read_json
from embrew.files.writing import atomic_folder, link_or_copy, recover, write_json
from embrew.methods import OBJECTIVES, Objective
from embrew.opening import check_pooling
from embrew.progress import within
from embrew.recipe.overrides import Override, as_text, parse_override
from embrew.storage.loading import SETTINGS
from embrew.text_encoder import vectors_hash

logger = logging.getLogger(__name__)
EXPORT, ENCODER = "export", "encoder"
DATA, QUESTIONS = "data", "questions"


def export_best(best: RaceRow, candidate: Candidate, *, export: bool) -> tuple[str | None, bool]:
    """Write `encoder/`, the best one, and `export/`; return the hash of its vectors, and whether it is exported.

    A model that embrew reads only as it is stays where it is; its hash is None. Folders of an earlier best one are
    removed.

    Args:
        best: the best encoder.
        candidate: its model.
        export: whether `export/` is wanted.
    """
    folder, target = candidate.folder / ENCODER, candidate.folder / EXPORT
    encoder = _write_encoder(best, candidate, folder)
    made_of = None if encoder is None else vectors_hash(encoder)
    is_exported = made_of is not None and _exported(candidate.folder) == made_of
    if not is_exported:
        _remove(target, formats.EXPORT.file)
    if encoder is None:
        logger.warning("%s is the best without training; nothing is exported, use the original model", best.name)
        _remove(folder, SETTINGS)
    elif export and is_exported:
        logger.info("%s  already exported", target)
    elif export:
        try:
            export_encoder(encoder, target, max_length=encoder.max_seq_length)
        except ValueError as error:
            logger.warning("%s is the best, and cannot be exported: %s; it is in %s", best.name, error, folder)
            return made_of, False
    return made_of, export and encoder is not None


def _write_encoder(best: RaceRow, candidate: Candidate, folder: Path) -> Encoder | None:
    """Write the best encoder into a folder, and return it; None: it can only be read as it is."""
    if best.stage is not None:
        _link_files(best.stage, folder)
        return open_stage(folder)
    opened = candidate.open_as_is() if candidate.start.is_bare else candidate.open_to_train()
    encoder = cast(Encoder | None, opened)  # of a bare language model, an encoder with its best untrained pooling
    if encoder is None:
        return None
    intact = folder.is_dir() and is_intact(folder)
    if not intact or vectors_hash(Encoder.from_pretrained(folder)) != vectors_hash(encoder):
        encoder.save_pretrained(folder, overwrite=folder.exists())
    return encoder


def _exported(folder: Path) -> str | None:
    """Return the hash of the vectors of an intact export, as the report of the last call says; None: there is none."""
    if not (folder / EXPORT).is_dir() or not is_intact(folder / EXPORT) or not (folder / ADAPTED).is_file():
        return None
    repair = f"remove {folder / ADAPTED}; the same command writes it again"
    return cast("str | None", read_json(folder / ADAPTED, repair=repair).get("vectors"))


def _remove(folder: Path, marker: str) -> None:
    """Remove a folder that holds an earlier best encoder."""
    if (folder / marker).is_file():
        shutil.rmtree(folder)


def _link_files(stage: Path, target: Path) -> None:
    """Make the files of a trained encoder those of another folder, too: hard links, where the file system has them."""
    if (target / NAME).is_file() and (target / NAME).read_bytes() == (stage / NAME).read_bytes() and is_intact(target):
        return
    with atomic_folder(target, marker=SETTINGS, overwrite=target.exists()) as new:
        for file in stage.rglob("*"):
            if file.is_file():
                (new / file.relative_to(stage)).parent.mkdir(parents=True, exist_ok=True)
                link_or_copy(file, new / file.relative_to(stage))


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
    writer: str | None = None,
    minutes: float | None = None,
    quick: bool = False,
    seed: int = 42,
    export: bool = True,
    overrides: Sequence[str] = (),
    on_scores: Callable[[Scores], None] | None = None,
) -> AdaptReport:
    """Compare models on a user's texts, each as it is and trained, and export the best one.

    A dev set and a test set are held out. An embedding model, such as a Sentence-Transformers one, is scored as it is,
    then fine-tuned; a bare language model is scored with its best untrained pooling, then trained contrastively with
    the better of mean and PromptEOL pooling, and also with `method`. The dev set selects checkpoints and the best
    model; every model is scored on the test set once.

    Writes `data/`, `recipes/`, `model/` (runs), `dev/` and `results/` (scores), `encoder/` (the best one), `export/`
    (the same for Sentence-Transformers, verified), `report.html` and `adapted.json`. The same call resumes an
    interrupted one; a call with further models does not repeat what is finished of the others.

    Args:
        model: one model or several: causal language models (folders, GGUF files, LoRA adapters, Hub ids,
            `smollm2-135m`, `nano`), Sentence-Transformers models, encoders and exports of embrew, output folders of
            `adapt` (their best model), BERT-type encoders. Empty: those of earlier calls in `output`, or those of
            `models.yaml` that this machine can train in the minutes.
        output: output folder.
        pairs: file, folder or Hub id of pairs in any form of `read_qa`; or the keys of a recipe's `data`.
        documents: folder or file of documents (`read_document_folder`), Hub id; or the keys of a recipe's `data`.
        columns: `question`, `answer`, `choices`, `negatives`, `source` -> column of `pairs`.
        as_is: further models, which are only scored.
        method: `llm2comp`, `ese`, `autoregembed`, `lbr`, `epic` or `distillation`, for bare language models; `none`:
            contrastive training alone.
        teacher: an embedding model whose vectors the method `distillation` learns: a folder or Hub id of a
            Sentence-Transformers model, or a folder that embrew trained.
        writer: what writes questions of the documents where there are no pairs, or fewer than 64 to train on: a causal
            language model, an encoder trained by the recipe `questions/smollm2`, or the address of a server with
            OpenAI's API (`http://HOST/v1#MODEL`); without it, first sentences of passages replace questions.
        minutes: minutes of training, for each trained model; 30 by default.
        quick: run every part in a few minutes, too short to compare methods.
        seed: random seed of the split and of training.
        export: also export the best encoder for Sentence-Transformers.
        overrides: `key.path=value` for the recipes, `adapt.key=value` for the defaults.
        on_scores: called once all models are scored, before the best one is exported and the page is written.

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
    default_overrides: list[Override] = [(f"{PREFIX}minutes", minutes)] if minutes is not None else []
    default_overrides += [text for text in overrides if text.startswith(PREFIX)]
    defaults = read_defaults(default_overrides, quick=quick)
    recipe_overrides: tuple[Override, ...] = tuple(text for text in overrides if not text.startswith(PREFIX))
    if teacher is not None:
        recipe_overrides = (("stages.distill.objective.teacher", teacher), *recipe_overrides)
        method = DISTILLATION if method == "none" else method
    if (teacher is None) == (method == DISTILLATION):
        raise ValueError(f"method={method!r} and teacher={teacher!r}: {DISTILLATION} needs a teacher, no other has one")
    _check_method(method, defaults)
    options = RaceOptions(
        method=method,
        defaults=defaults,
        overrides=recipe_overrides,
        seed=seed,
        export=export,
        quick=quick,
        writer=writer,
    )
    document_source = None if documents is None else data_source(documents, "documents")
    if documents is not None:
        check_apart(documents, output)
    pair_source = None if pairs is None else data_source(pairs, "pairs", columns=columns)
    if writer is not None and documents is None:
        raise ValueError(f"writer={writer!r} without documents; give the documents that it writes questions of")
    only_scored = [str(name) for name in ([as_is] if isinstance(as_is, str | Path) else as_is)]
    starts = [find_start(name, trains=name not in only_scored) for name in (*map(str, models), *only_scored)]
    _check_starts(starts, options)
    with locked_by_main_process(Path(output), "working in"):
        return race(starts, document_source, pair_source, Path(output), options, on_scores=on_scores)


def race(
    starts: Sequence[Start],
    documents: DataSource | None,
    pairs: DataSource | None,
    folder: Path,
    options: RaceOptions,
    *,
    on_scores: Callable[[Scores], None] | None = None,
) -> AdaptReport:
    """Race models in an output folder; return the content of `adapted.json`.

    The best model is selected on dev alone. Models are scored on the test set while they are in memory, once; no choice
    depends on these scores.
    """
    _check_output(folder)
    # read pairs and documents, hold out dev and test, write questions
    data = prepare_data(
        documents,
        pairs,
        folder / DATA,
        defaults=options.defaults,
        seed=options.seed,
        questions=_question_maker(folder, options),
    )
    _log_counts(data)
    candidates = _candidates(starts, data, folder, options)
    # score each model as it is, train it, and score it again
    rows: list[RaceRow] = []  # of the table of results
    for candidate in candidates:
        with within(candidate.start.name):
            plan = plan_training(candidate)
            as_is = candidate.score_as_is(plan)
            rows += [as_is, *(candidate.train(name, as_is) for name in plan.trained)]
    rows.append(_score_bm25(data, folder))
    # select the best on dev, and score its fusion with BM25
    best = best_of(rows)
    winner = next(candidate for candidate in candidates if candidate.start.name == best.start)
    rows.append(winner.score_fused(best))
    scores: Scores = {
        "advice": advice_lines(rows, best, data, quick=options.quick),
        "best": best.name,
        "cheapest": cheapest_of(rows, best).name,
        "models": [row.summary(folder) for row in rows],
    }
    if on_scores is not None:
        on_scores(scores)
    # write the encoder, its export, adapted.json and report.html
    made_of, exported = export_best(best, winner, export=options.export)
    values = {
        "format": formats.ADAPTED.number,
        "starts": {candidate.start.name: public_path(candidate.start.model) for candidate in candidates},
        **scores,
        "data": data.manifest,
        "versions": formats.versions(),
        "encoder": None if made_of is None else ENCODER,
        "vectors": made_of,
        "exported": EXPORT if exported else None,
        "minutes": options.defaults.minutes,
    }
    report = cast("AdaptReport", sealed(values))
    write_page(folder, rows, best=best, data=data, advice=report["advice"])
    write_json(folder / ADAPTED, report)
    return report


def _question_maker(folder: Path, options: RaceOptions) -> QuestionMaker | None:
    """Return what writes questions; None: no writer was given."""
    if options.writer is None:
        return None
    numbers = options.defaults.questions.model_dump()
    return QuestionMaker(writer=options.writer, folder=folder / QUESTIONS, seed=options.seed, **numbers)


def _check_starts(starts: Sequence[Start], options: RaceOptions) -> None:
    """Raise if the method is for bare language models, and there are none."""
    if as_is := [start.name for start in starts if start.is_bare and not start.trains]:
        logger.warning("%s: a bare language model as it is means its best untrained pooling", ", ".join(as_is))
    embedding_models = [start.name for start in starts if not start.is_bare]
    if options.method == "none" or not embedding_models:
        return
    if len(embedding_models) == len(starts):
        raise ValueError(
            f"method={options.method!r} is for plain language models; {', '.join(embedding_models)} is an embedding "
            "model already; leave --method out, or add a language model"
        )
    logger.info("%s is for plain language models; skipped for %s", options.method, ", ".join(embedding_models))


def _check_method(name: str, defaults: Defaults) -> None:
    """Raise if the name of the method, or of a pooling, is unknown."""
    names = ("none", *method_names())
    if name not in names:
        raise ValueError(f"method={name!r}; choose from {', '.join(names)}")
    for pooling in defaults.poolings:
        check_pooling(pooling)


def _check_output(folder: Path) -> None:
    """Raise if an output folder holds other files than those of a race."""
    recover(folder / DATA)  # if an earlier call was killed while it wrote the folder
    is_ours = any((folder / DATA / name).is_file() for name in (formats.ADAPTED.file, NAME))
    is_ours = is_ours or any((folder / QUESTIONS).glob(f"*/{JOB_SETTINGS}"))  # stopped while it wrote questions
    if not is_ours and any(not path.is_dir() for path in folder.rglob("*")):
        raise FileExistsError(f"{folder} holds other files; choose another output folder")


def _candidates(starts: Sequence[Start], data: Prepared, folder: Path, options: RaceOptions) -> list[Candidate]:
    """Return the models of a race: those of earlier calls and new ones, or those that fit this machine.

    Raises:
        FileExistsError: a model of an earlier call was planned with other settings.
        ValueError: an override or a method that fits none of the recipes; training data that hold held-out texts.
    """
    methods = _methods_to_train(options, data)
    _check_overrides(methods, options)
    check_leaks(data.folder)
    if not starts and not (folder / STARTS).is_file():
        starts = [find_start(model, trains=True) for model in models_that_fit(data, options.defaults)]
        _check_starts(starts, options)
    candidates = [
        Candidate(start=start, data=data, folder=folder, options=options, methods=methods)
        for start in with_earlier(folder, starts)
    ]
    for candidate in candidates:
        earlier_plan(candidate)  # raises before a new start is written down
    write_starts(folder, [candidate.start for candidate in candidates])
    return candidates


def _score_bm25(data: Prepared, folder: Path) -> RaceRow:
    """Return the scores of BM25."""
    results = folder / RESULTS / BM25
    dev, test = score_bm25(data.dev, "dev", folder / DEV / BM25), score_bm25(data.test, "test", results)
    return RaceRow(name="BM25", dev=dev, test=test, results=results)


def _log_counts(data: Prepared) -> None:
    """Log what is trained on and what is held out."""
    count = data.count
    from_passages = f" and {count('made_pairs')} made of passages" if count("made_pairs") else ""
    logger.info(
        "to train on: %d pairs%s (%d with negatives), %d passages; held out: %d questions for dev, %d for the test",
        *(count("train_pairs"), from_passages, count("with_negatives"), count("train_passages")),
        *(count("dev_queries"), count("test_queries")),
    )
    removed = {
        "passages": count("passages_with_question") + count("passages_with_answer"),
        "pairs": count("pairs_dropped"),
        "negatives": count("negatives_dropped"),
        "duplicate pairs": count("duplicate_pairs"),
    }
    if any(removed.values()):
        counts = ", ".join(f"{number} {name}" for name, number in removed.items() if number)
        logger.info("left out of training, since they repeat others or hold held-out texts: %s", counts)
    if data.manifest["questions_made"]:
        written = data.manifest["made_of"].get("questions")
        by = "first sentences of passages replace questions"
        advice = "; for passages of one sentence, or with a large language model, let it write some (--writer)"
        logger.warning(
            "no pairs were given: %s; they compare models, but users ask other questions%s",
            f"the questions, also those of the test, are written by {written['writer']}" if written else by,
            "" if written else advice,
        )


def _methods_to_train(options: RaceOptions, data: Prepared) -> dict[str, dict[str, ModelDefaults]]:
    """Return the defaults for training a bare language model, by method and by the pooling that it starts with.

    The methods are contrastive training, for each pooling, and the method of the options, which has its own pooling.
    """
    defaults_by_method = {CONTRAST: options.defaults.contrast}
    if options.method == "none":
        return defaults_by_method
    method = options.defaults.methods[options.method]
    objectives = [OBJECTIVES.get(stage.stage["objective"]["type"], Objective) for stage in method.stages]
    needs_negatives = any(objective.needs_negatives for objective in objectives)
    if needs_negatives and not data.count("with_negatives"):
        raise ValueError(
            f"--method {options.method} contrasts with negatives, and no pair to train on has some; add them (embrew "
            "data mine finds hard ones), or choose another method"
        )
    return {**defaults_by_method, options.method: {"": method}}


def _check_overrides(methods: Mapping[str, Mapping[str, ModelDefaults]], options: RaceOptions) -> None:
    """Raise if an override names a stage that no recipe has."""
    stages_of_methods = [model.stages for by_pooling in methods.values() for model in by_pooling.values()]
    names = {stage.stage["name"] for stages in (*stages_of_methods, options.defaults.ready.stages) for stage in stages}
    for text in options.overrides:
        key, _ = parse_override(text)
        if key[0] == "stages" and (len(key) < 2 or key[1] not in names):
            raise ValueError(f"override {as_text(text)!r}: the stages are {', '.join(sorted(names))}")
