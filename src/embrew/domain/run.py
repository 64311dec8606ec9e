"""A domain run: prepare, diagnose, train, evaluate, export, report. Finished parts are not repeated."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from embrew import assembly
from embrew.analysis.dev_uniformity import evaluation_of
from embrew.analysis.domain_knowledge import THRESHOLDS, Sample, diagnose, measure
from embrew.analysis.qa import QA
from embrew.analysis.separation import Separation, separation_of
from embrew.data.formats import read_file
from embrew.data.reading import expand, public_name
from embrew.distributed import claimed_by_first
from embrew.domain.plan import MIN_PAIRS, Learn, Plan, plan, untrained
from embrew.domain.prepare import MANIFEST, Prepared, prepare
from embrew.domain.report import Step, write_report
from embrew.domain.scan import check
from embrew.encoder import Encoder
from embrew.evaluation import Result, evaluate
from embrew.export.exporting import export_encoder
from embrew.files import formats
from embrew.files.formats import versions
from embrew.files.names import public_path
from embrew.files.reading import content_of, read_json
from embrew.files.writing import atomic_path, recover, write_json
from embrew.progress import is_chosen, within
from embrew.recipe import Recipe
from embrew.text_encoder.hashes import vectors_hash
from embrew.training.stages import train

logger = logging.getLogger(__name__)
MOST_PAIRS, MOST_TEXTS = 500, 200  # of the diagnosis
READINGS: dict[Literal["memory", "last", "mean"], str] = {"memory": "memory", "last": "last token", "mean": "mean"}
DIAGNOSIS = "diagnosis.json"
REMOVE = "remove the file; the same command computes it again"
EXPORT = "remove the folder export; the same command exports again"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a domain run.

    Attributes:
        model: `nano`, a folder or Hub id of a causal LM.
        columns: column names of the pairs, see `read_qa`.
        general: general text, to compare the domain with.
        learn: what the first stage learns from: `pairs`, `text`, `rest`, or `auto`.
        min_pairs: number of training pairs from which `auto` is `pairs`.
        steps: steps of the first stage.
        max_chars: maximum characters of a passage.
        max_documents: maximum number of texts in the test corpus.
        seed: random seed of the split and of training.
        overrides: `key.path=value` for the recipe.
        batch_tokens: padded tokens per batch, outside training.
        verify: how saved stages are verified.
        export: whether a stock Sentence-Transformers folder is written.
    """

    model: str = "nano"
    columns: Mapping[str, str] = field(default_factory=dict)
    general: Sample | None = None
    learn: Learn = "auto"
    min_pairs: int = MIN_PAIRS
    steps: int | None = None
    max_chars: int = 600
    max_documents: int = 2000
    seed: int = 42
    overrides: Sequence[str] = ()
    batch_tokens: int = 4096
    verify: str = "fast"
    export: bool = True


def run(
    documents: str | Path, pairs: str | Path | None, output: str | Path, settings: Settings = Settings()
) -> dict[str, Any]:
    """Train an encoder of a domain in `output`, and report its scores.

    Writes `data/` (passages, pairs, held-out questions), `recipe.yaml`, `diagnosis.json`, `model/` (the stages),
    `results/`, `export/` (Sentence-Transformers), and `report.md`, `report.json` and `report.png`.

    Args:
        documents: a folder of text, Markdown, JSON Lines or PDF files.
        pairs: questions and answers (see `read_qa`), or None.
        output: output folder; an interrupted run resumes.
        settings: all other settings.

    Returns:
        The content of `report.json`.

    Raises:
        FileExistsError: `output` holds a run with other files or settings; another process works in it.
        FileNotFoundError, ValueError: data that cannot be read or used; training files that hold a held-out question or
            answer; anything that `train` raises.
    """
    with claimed_by_first(Path(output), "working in"):
        return _run(documents, pairs, Path(output), settings)


def _run(documents: str | Path, pairs: str | Path | None, folder: Path, settings: Settings) -> dict[str, Any]:
    recover(folder / "data")  # of a run that was killed in its first seconds
    if folder.exists() and any(folder.iterdir()) and not (folder / "data" / MANIFEST).is_file():
        raise FileExistsError(f"{folder} holds other files; choose another output folder")
    data = prepare(
        documents,
        pairs,
        folder / "data",
        columns=settings.columns,
        max_chars=settings.max_chars,
        max_documents=settings.max_documents,
        seed=settings.seed,
    )
    made = plan(
        data,
        model=settings.model,
        learn=settings.learn,
        min_pairs=settings.min_pairs,
        steps=settings.steps,
        overrides=[f"seed={settings.seed}", *settings.overrides],
    )
    recipe = made.recipe
    check(data.folder, _other_rows(recipe, data))
    _write_recipe(folder / "recipe.yaml", made)
    sample = _sample(data, public_name(documents)[0])
    steps: list[Step] = []
    for how, said in READINGS.items():
        encoder = assembly.encoder(untrained(recipe, how))
        with within(f"untrained, {said}"):
            result = _evaluate(encoder, data, folder / "results" / f"untrained-{how}", settings)
        steps.append(Step(f"untrained, {said}", result, None, None))
    diagnosis, before = _diagnose(encoder, sample, settings, folder / DIAGNOSIS)
    steps[-1] = Step(steps[-1].name, result, before, None)
    for line in diagnosis["words"]:
        logger.info("diagnosis: %s", line)
    model = folder / "model"
    train(recipe, model, resume=model.exists(), evaluate=evaluation_of(recipe), verify=settings.verify)
    seconds = read_json(model / "run.json", keys=("seconds",))["seconds"]
    for stage in recipe.stages:
        encoder = Encoder.from_pretrained(model / stage.name, dtype="as_trained")
        with within(stage.name):
            result = _evaluate(encoder, data, folder / "results" / stage.name, settings)
        apart = _separate(encoder, sample, settings, folder / "separations" / f"{stage.name}.json")
        steps.append(Step(stage.name, result, apart, seconds.get(stage.name)))
    if settings.export:
        _export(Encoder.from_pretrained(model), folder / "export")
    report = {
        "documents": public_name(documents)[0],
        "pairs": None if pairs is None else public_name(pairs)[0],
        "model": public_path(settings.model),
        "data": dict(data.manifest),
        "plan": list(made.reasons),
        "recipe": recipe.public().resolved(),
        "diagnosis": {key: value for key, value in diagnosis.items() if key != "separation"},
        "steps": [step.summary() for step in steps],
        "versions": versions(),
    }
    write_report(folder, report, steps)
    return report


def _other_rows(recipe: Recipe, data: Prepared) -> Iterator[Mapping[str, Any]]:
    """Yield the training rows of the recipe's stages that are not from the prepared folder (by overrides)."""
    for stage in recipe.stages:
        for config in stage.datasets:
            paths = config.paths
            if any(Path(expand(path)).resolve().parent != data.folder.resolve() for path in paths):
                yield from assembly.rows(config, assembly.objective(stage.objective), max_rows=config.max_rows)


def _write_recipe(path: Path, made: Plan) -> None:
    """Write the recipe for later training.

    Raises:
        FileExistsError: the file holds another recipe.
    """
    if path.is_file():
        there = Recipe.load(path)
        keys = made.recipe.differing_keys(there.resolved())
        if keys:
            raise FileExistsError(
                f"{path} has other settings ({', '.join(keys)}); choose another output folder, give the same "
                f"settings, or train it unchanged: embrew train {path} --output DIR"
            )
        return
    with atomic_path(path) as temporary:
        temporary.write_text(made.to_yaml(path.parent), encoding="utf-8")


def _sample(data: Prepared, name: str) -> Sample:
    """Return the sample of the diagnosis: held-out pairs, their answers, and passages; no choice depends on it."""
    from embrew.data.beir import read_beir

    test = read_beir(data.test, "test")
    texts = {document.id: document.content for document in test.corpus}
    pairs = [QA(test.queries[q], texts[d]) for q, grades in test.qrels.items() for d in grades]
    found = Sample.of_pairs(name, pairs, most=MOST_PAIRS)
    read = [record.values["text"] for record in read_file(data.passages)] if data.count("train_passages") else []
    return Sample(name, found.questions, found.answers, tuple(dict.fromkeys([*found.texts, *read]))[:MOST_TEXTS])


def _diagnose(encoder: Encoder, sample: Sample, settings: Settings, path: Path) -> tuple[dict[str, Any], Separation]:
    """Measure the untrained model on the domain and on general text; results are cached by model and samples."""
    other = settings.general
    samples = [one.sha256 for one in (sample, other) if one is not None]
    of = {"model_hash": vectors_hash(encoder), "samples": samples, "thresholds": THRESHOLDS}
    if path.is_file():
        kept = read_json(path, keys=("of",), repair=REMOVE)
        if kept["of"] == of:
            with content_of(path, repair=REMOVE):
                return kept, Separation.from_json(kept["separation"])
    found = measure(encoder, sample, batch_tokens=settings.batch_tokens)
    general = None if other is None else measure(encoder, other, batch_tokens=settings.batch_tokens)
    assert found.separation is not None, "a sample of held-out pairs"
    values = {
        "of": of,
        "read_by": "mean",
        "data": [each.summary() for each in (found, general) if each is not None],
        **diagnose(found, general),
        "thresholds": THRESHOLDS,
        "separation": found.separation.to_json(),
    }
    write_json(path, values)
    return values, found.separation


def _separate(encoder: Encoder, sample: Sample, settings: Settings, path: Path) -> Separation:
    """Return the separation of a trained encoder; results are cached likewise."""
    of = {"model_hash": vectors_hash(encoder), "samples": [sample.sha256]}
    if path.is_file():
        kept = read_json(path, keys=("of",), repair=REMOVE)
        if kept["of"] == of:
            with content_of(path, repair=REMOVE):
                return Separation.from_json(kept["separation"])
    found = separation_of(encoder, sample.questions, sample.answers, batch_tokens=settings.batch_tokens)
    write_json(path, {"of": of, "separation": found.to_json()})
    return found


def _evaluate(encoder: Any, data: Prepared, folder: Path, settings: Settings) -> Result:
    options: Any = {"batch_tokens": settings.batch_tokens, "show_progress_bar": is_chosen()}
    (result,) = evaluate(encoder, [data.test], output_dir=folder, split="test", **options)
    return result


def _export(encoder: Encoder, folder: Path) -> None:
    """Export the encoder as a stock folder, unless that folder exists."""
    said, length = folder / formats.EXPORT.file, encoder.max_seq_length
    written = json.loads(json.dumps(encoder.with_settings(max_length=length).describe()))
    if said.is_file() and read_json(said, keys=("encoder",), repair=EXPORT, kind=formats.EXPORT)["encoder"] == written:
        logger.info("%s  already exported", folder)
        return
    export_encoder(encoder, folder, overwrite=folder.exists(), max_length=length)
