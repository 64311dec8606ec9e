"""A student that encodes queries in the space of another model's vectors, so that an index stays as it is."""

from __future__ import annotations

import logging
import math
import random
import timeit
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, cast

import numpy as np

from embrew.adapting.defaults import Keys, shipped
from embrew.adapting.preparation.prepare import check_same_settings
from embrew.adapting.preparation.sources import data_source
from embrew.adapting.recipes import (
    LEAST_LENGTH,
    SHARE,
    check_one_process,
    recipe_with,
    seconds_per_step,
    with_limits,
    write_recipe,
)
from embrew.adapting.starts import SizedEncoder
from embrew.corpus.vectors import open_index
from embrew.data.beir import RetrievalData, read_beir
from embrew.data.reading import expand
from embrew.distributed import locked_by_main_process
from embrew.encoder import Encoder
from embrew.evaluation.kinds.retrieval import CHUNK, SEARCH_DEPTH, scores_of_ranking, without_self_matches
from embrew.evaluation.processes import CorpusChunks
from embrew.files import formats
from embrew.files.checksums import digest_of, sealed
from embrew.files.names import public_path
from embrew.files.reading import read_json
from embrew.files.writing import write_json, write_jsonl
from embrew.opening import open_model
from embrew.ranking import top
from embrew.recipe import Recipe, build
from embrew.recipe.overrides import Override, as_text, parse_override
from embrew.search import SearchIndex
from embrew.storage.base_model import is_encoder, open_config
from embrew.text.texts import SIDES
from embrew.text_encoder import EncodeOptions, TextEncoder, encode_options, fixed, model_hash, unit_vectors
from embrew.training.stages import train

logger = logging.getLogger(__name__)
SPACE, PLAN, QUERIES, RECIPES, RUN, TEACHER = (
    "space.json", "plan.json", "queries.jsonl", "recipes", "model", "teacher",
)  # fmt: skip
STAGE = "distill"
TEST_SHARE, MOST_TEST, TIMED = 0.2, 500, 30


class SpaceRow(TypedDict, total=False):
    """Scores of the teacher, or of the student with a number of layers and of dimensions; None: all layers."""

    model: str
    layers: int | None
    dimensions: int
    recall_of_teacher_at_10: float
    ndcg_at_10: float
    seconds_per_query: float


class SpaceReport(TypedDict):
    """The content of `space.json`."""

    format: int
    model: str
    teacher: dict[str, str]
    index: dict[str, str | int]
    encoder: str
    queries: dict[str, int]
    rows: list[SpaceRow]
    seconds: dict[str, float]
    versions: dict[str, str | None]
    sha256: str


def train_into_space(
    model: str | Path,
    *,
    teacher: str | Path,
    queries: str | Path | Mapping[str, Any],
    index: str | Path,
    output: str | Path,
    judged: str | Path | None = None,
    layers: Sequence[int] | None = None,
    minutes: float = 30.0,
    seed: int = 42,
    overrides: Sequence[Override] = (),
) -> SpaceReport:
    """Train a model to encode queries as a teacher does, for an index of the teacher's vectors.

    The teacher's vectors of the queries are the target (`embedding_distillation` with `side: query`); a linear layer to
    the index's dimensions is part of the encoder. Some queries are held out: with them, the share of the teacher's own
    ten best documents that the student finds, nDCG@10 where there are judgements, and the time of a query, by number of
    layers and of dimensions. Writes `queries.jsonl`, `recipes/`, `teacher/` (its vectors), `model/` (a run) and
    `space.json`. The same call resumes an interrupted one.

    Args:
        model: a causal language model, which learns a LoRA; or a BERT-type encoder, of which every weight is trained.
        teacher: the model that made the index: a Sentence-Transformers model, or an encoder of embrew.
        queries: texts: file, folder or Hub id, or the keys of a recipe's `data`; no labels are needed.
        index: an index of `embrew search --build`, or a folder of `embrew encode`.
        output: output folder.
        judged: BEIR folder whose test (else dev) queries are held out, with judgements of the index's documents; None:
            a fifth of `queries` is held out.
        layers: numbers of layers at which the student is trained; None: all layers.
        minutes: minutes of training.
        seed: random seed of the split and of training.
        overrides: of the recipe (`space.yaml`), each `key.path=value`, or a key path and a value.

    Returns:
        The content of `space.json`.

    Raises:
        ValueError: several processes; `model` is an encoder of embrew; the teacher did not make the index, or has
            another number of dimensions than the index; `judged` is of other documents; too few queries; anything that
            `train` raises.
        FileExistsError: `output` holds a run with other queries or settings.
    """
    settings = {"encoder.model": str(model), f"stages.{STAGE}.objective.teacher": str(teacher)}
    check_one_process("into-space", output, STAGE, settings)
    source, folder = data_source(queries, "queries"), Path(output)
    if any((Path(model) / name).is_file() for name in ("embrew.json", "run.json")):
        raise ValueError(f"{model} is an encoder already; give the model that it was trained from")
    data = None if judged is None else read_judged(Path(expand(judged)))
    with locked_by_main_process(folder, "working in"):
        opened = cast("SizedEncoder", open_model(str(teacher)))
        width = _index_width(index, opened, judged, data)
        kind = build.objective({"type": "embedding_distillation", "teacher": str(teacher)})
        texts = list(build.rows(source.config, kind, max_rows=source.config.max_rows)["text"])
        train_texts, test = split_queries(texts, data, seed=seed)
        logger.info("to train on: %d queries; held out: %d", len(train_texts), len(test))
        recipe = _recipe(
            str(model),
            str(teacher),
            opened,
            width,
            folder,
            train_texts,
            layers=layers,
            minutes=minutes,
            seed=seed,
            overrides=overrides,
        )
        run = folder / RUN
        train(recipe, run, resume=run.exists())
        student = Encoder.from_pretrained(
            run / STAGE, dtype="as_trained", trust_remote_code=recipe.encoder.trust_remote_code
        )
        documents = open_index(str(index), student)  # by the hash of its teacher
        values = {
            "format": formats.ADAPTED.number,
            "model": public_path(str(model)),
            "teacher": {"name": public_path(str(teacher)), "hash": model_hash(opened)},
            "index": {"documents": len(documents.documents), "dimensions": width, "metric": "cosine"},
            "encoder": f"{RUN}/{STAGE}",
            "queries": {"train": len(train_texts), "test": len(test), "judged": data is not None},
            "rows": measure_student(student, opened, documents, test, data, layers),
            "seconds": read_json(run / "run.json", keys=("seconds",), kind=formats.RUN)["seconds"],
            "versions": formats.versions(),
        }
        report = cast("SpaceReport", sealed(values))
        write_json(folder / SPACE, report)
        return report


def _index_width(
    index: str | Path, teacher: SizedEncoder, judged: str | Path | None, data: RetrievalData | None
) -> int:
    """Return the number of dimensions of an index of the teacher's vectors; it is closed, since training needs memory.

    Raises:
        ValueError: as `train_into_space`.
    """
    documents = open_index(str(index), teacher)
    width = documents.dimensions
    if width != teacher.get_embedding_dimension():
        raise ValueError(
            f"{index} holds {width} of the teacher's {teacher.get_embedding_dimension()} dimensions; "
            "give an index of all of them"
        )
    ids = {document.id for document in documents.documents}
    if data is not None and not ids & set().union(*data.qrels.values()):
        raise ValueError(f"{judged} judges no document of {index}: ids differ; give the data it was built from")
    return width


def read_judged(folder: Path) -> RetrievalData:
    """Return the test queries of a BEIR folder with their judgements; those of `dev` where there is no `test`."""
    try:
        return read_beir(folder, "test")
    except FileNotFoundError:
        return read_beir(folder, "dev")


def split_queries(texts: Sequence[str], data: RetrievalData | None, *, seed: int) -> tuple[list[str], dict[str, str]]:
    """Return queries to train on, and those that are held out, by id; equal texts are on one side only.

    Raises:
        ValueError: fewer than 20 are left to train on.
    """
    unique = list({" ".join(text.split()).lower(): text for text in texts}.values())
    random.Random(seed).shuffle(unique)
    if data is not None:
        test = data.queries
    else:
        count = min(int(TEST_SHARE * len(unique)), MOST_TEST)
        test = {str(number): text for number, text in enumerate(unique[:count])}
    held = {" ".join(text.split()).lower() for text in test.values()}
    train = [text for text in unique if " ".join(text.split()).lower() not in held]
    if len(train) < 20:
        raise ValueError(f"{len(train)} different queries to train on; give 20 or more, of the kind that users ask")
    return train, test


def measure_student(
    student: Encoder,
    teacher: TextEncoder,
    index: SearchIndex,
    queries: Mapping[str, str],
    data: RetrievalData | None,
    layers: Sequence[int] | None,
) -> list[SpaceRow]:
    """Return a row for the teacher, and for the student at each number of layers and of dimensions."""
    texts = list(queries.values())
    ids = np.array([document.id for document in index.documents], dtype=object)
    here = RetrievalData(index.documents, dict(queries), {} if data is None else data.qrels)
    of_teacher: list[list[str]] | None = None
    rows = []
    depth, width = student.backbone.num_layers, student.pooled_dimensions
    cells: list[tuple[TextEncoder, int | None, int]] = [(teacher, None, width)]
    cells += [(student, count, dims) for count in sorted(layers or [depth]) for dims in (width // 4, width // 2, width)]
    for encoder, count, dims in cells:
        options = encode_options(encoder)
        if count is not None:
            options["num_layers"] = count
        vectors = np.asarray(encoder.encode_query(texts, **options))
        ranked = _ranked(unit_vectors(vectors[:, :dims], what="queries", texts=texts), index)
        ranking = {name: ids[positions].tolist() for name, positions in zip(queries, ranked, strict=True)}
        tops = [of_query[:10] for of_query in without_self_matches(ranking, here).values()]
        of_teacher = tops if of_teacher is None else of_teacher
        shares = [len({*top} & {*best}) / max(len(best), 1) for top, best in zip(tops, of_teacher, strict=True)]
        row: SpaceRow = {"model": "teacher" if count is None else "student", "layers": count, "dimensions": dims}
        row["recall_of_teacher_at_10"] = float(np.mean(shares))
        if data is not None:
            row["ndcg_at_10"] = scores_of_ranking(ranking, here)["main_score"]
        row["seconds_per_query"] = _seconds(encoder, texts[:TIMED], options)
        rows.append(row)
    return rows


def _ranked(queries: np.ndarray, index: SearchIndex) -> np.ndarray:
    """Return rows of the documents with the highest cosines, best first, `(queries, at most RANKED)`.

    Args:
        queries: unit vectors; their number of dimensions is that of the documents' leading ones that are compared.
        index: of the documents.
    """
    chunks, total = CorpusChunks(), -(-len(index.documents) // CHUNK)
    for number in chunks.remaining(total):
        first = number * CHUNK
        texts = [document.content for document in index.documents[first : first + CHUNK]]
        vectors = index.vectors(first, first + len(texts))[:, : queries.shape[1]]
        scores, columns = top(queries @ unit_vectors(vectors, what="documents", texts=texts).T, SEARCH_DEPTH)
        chunks.add(number, scores, first + columns, SEARCH_DEPTH)
    return chunks.best(total, SEARCH_DEPTH)


def _seconds(encoder: TextEncoder, texts: Sequence[str], options: EncodeOptions) -> float:
    """Return the median time of one query."""
    with fixed(encoder):
        seconds = [timeit.timeit(partial(encoder.encode_query, [text], **options), number=1) for text in texts]
    return float(np.median(seconds))


def _recipe(
    model: str,
    teacher: str,
    opened: TextEncoder,
    width: int,
    folder: Path,
    texts: Sequence[str],
    *,
    layers: Sequence[int] | None,
    minutes: float,
    seed: int,
    overrides: Sequence[Override],
) -> Recipe:
    """Return the recipe, with the steps that the minutes allow; those of an earlier call are kept. Writes the queries.

    Raises:
        FileExistsError: an earlier call had other queries or settings.
    """
    inputs = {
        "model": public_path(model),
        "teacher": public_path(teacher),
        "layers": list(layers or []),
        "minutes": minutes,
        "seed": seed,
        "overrides": list(map(as_text, overrides)),
        "queries": digest_of(list(texts)),
    }
    steps = _planned_steps(folder, inputs)
    write_jsonl(folder / QUERIES, ({"text": text} for text in texts))
    (folder / TEACHER).mkdir(exist_ok=True)  # `$NAME` in the name of an existing folder is not replaced
    trusted = (["encoder", "trust_remote_code"], True) in map(parse_override, overrides)
    kind = "bert_type" if is_encoder(open_config(model, trust_remote_code=trusted)) else "causal"
    defaults = shipped("space.yaml")
    values: Keys = {**defaults[kind], "seed": seed}
    (stage,) = values["stages"]
    stage["objective"] |= {"teacher": teacher, "vectors": str((folder / TEACHER).resolve())}
    stage["objective"] |= {"layers": list(layers)} if layers else {}
    stage["data"] = {"path": str((folder / QUERIES).resolve())}
    stage["batch"]["size"] = min(stage["batch"]["size"], len(texts))
    stage["training"]["max_steps"] = 1
    pooling = {**values["encoder"]["pooling"], "projection": width}
    values["encoder"] |= {"model": model, "space": model_hash(opened), "pooling": pooling}
    recipe = recipe_with(values, overrides)
    build.check_recipe(recipe)  # before a plan is kept, which the next call would have to agree with
    encoder = build.encoder(recipe)
    counts = sorted(len(ids) for ids in encoder.tokenizer(list(texts), add_special_tokens=False)["input_ids"])
    longest = max(LEAST_LENGTH, counts[int(SHARE * (len(counts) - 1))])
    values["encoder"] = with_limits(values["encoder"], dict.fromkeys(SIDES, longest), encoder)
    if steps is None:
        (seconds,) = seconds_per_step(recipe_with(values, overrides))
        limit = math.ceil(defaults["epochs"] * len(texts) / stage["batch"]["size"])
        steps = max(1, min(int(60 * minutes / seconds), limit))
        logger.info("%d steps of %.2g s", steps, seconds)
        write_json(folder / PLAN, sealed({"inputs": inputs, "steps": steps}))
    stage["training"]["max_steps"] = steps
    recipe = recipe_with(values, overrides)
    written = recipe.model_copy(deep=True)
    written.stages[0].objective.pop("vectors", None)  # kept for this call, and for no other run of the recipe
    file = folder / RECIPES / f"{STAGE}.yaml"
    write_recipe(file, written, f"A student of {Path(teacher).name} for queries.", command="into-space")
    return recipe


def _planned_steps(folder: Path, inputs: Mapping[str, Any]) -> int | None:
    """Return the steps of an earlier call with the same queries and settings; None: there is none.

    Raises:
        FileExistsError: it has others.
    """
    if not (folder / PLAN).is_file():
        return None
    plan = read_json(folder / PLAN, keys=("inputs", "steps"), sealed=True)
    check_same_settings(inputs, plan["inputs"], folder)
    return int(plan["steps"])
