"""Write and check questions of documents: in blocks that are kept, so that a stopped job resumes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, TypedDict, cast

from embrew.adapting.preparation.prepare import MAX_MADE_QUESTIONS
from embrew.adapting.preparation.sources import check_apart, data_source, documents_of_source, split_into_passages
from embrew.adapting.questions.rules import Question, Searcher, VectorSearch, check_questions, rejections
from embrew.adapting.questions.teacher import check_teacher, with_margins
from embrew.adapting.questions.writers import (
    MAX_NEW_TOKENS,
    SAMPLING,
    Writer,
    Written,
    open_writer,
    public_writer,
    writer_fingerprint,
)
from embrew.analysis.qa import QA
from embrew.data.beir import Document
from embrew.files.checksums import digest_of, sealed
from embrew.files.reading import BrokenFile, content_of, read_json
from embrew.files.writing import check_absent, claimed, write_json, write_jsonl
from embrew.opening import is_bare, open_model
from embrew.progress import progress
from embrew.ranking import BM25, sample_in_order
from embrew.text_encoder import TextEncoder

logger = logging.getLogger(__name__)
BLOCK = 16  # passages that are written at once; a killed job loses at most these
LEAST_CHARACTERS = 40  # of a passage that questions are written for
SHOWN = 20  # questions of each kind in a report
BM25_CHECK = "bm25"
SETTINGS, REPAIR = "settings.json", "remove the file; the same command writes it again"


class QuestionsReport(TypedDict):
    """What was written: numbers of passages, of their tokens, of questions; examples; names of files."""

    passages: int
    tokens: int
    questions: int
    kept: int
    rejected: dict[str, int]
    minutes: float | None
    output: str | None
    checked: str | None
    examples: dict[str, list[dict[str, Any]]]


def write_questions(
    documents: str | Path | Mapping[str, Any],
    output: str | Path,
    *,
    writer: str,
    per_passage: int = 2,
    check: str = "bm25",
    teacher: str | None = None,
    max_passages: int | None = None,
    max_chars: int = 600,
    seed: int = 42,
    dry_run: bool = False,
    overwrite: bool = False,
) -> QuestionsReport:
    """Write questions for the passages of documents, check them by a round trip through a search, and keep the good.

    Questions as training data are from *Document Expansion by Query Prediction* (arXiv 1904.08375); a question is kept
    if a search finds its passage with it, as in *Promptagator* (arXiv 2209.11755); the other rules are in
    `adapting.questions.rules`. With a teacher, pairs get mined negatives and its scores: *GPL: Generative Pseudo
    Labeling for Unsupervised Domain Adaptation of Dense Retrieval* (arXiv 2112.07577), with the loss
    `distillation_weight` of `contrastive`, which sees only the margins between a query's scores.

    Beside `output` are `NAME.checked.jsonl`, with every question, its rank, score and reason of rejection, and
    `NAME.written/`, what the writer wrote. The same call resumes a stopped one; with another `check` or `teacher`,
    nothing is written again.

    Args:
        documents: folder or file of documents (`read_document_folder`), Hub id; or the keys of a recipe's `data`.
        output: JSON Lines file of the kept questions as pairs: `query`, `positive`, `source`; with a teacher also
            `negatives`, `scores`.
        writer: as of `open_writer`.
        per_passage: number of questions per passage.
        check: `bm25`, or an embedding model, which searches with vectors.
        teacher: cross-encoder or embedding model.
        max_passages: number of passages, drawn with the seed; None: all.
        max_chars: maximum number of characters of a passage.
        seed: random seed of the draw and of sampling.
        dry_run: write one block, log how long all of them take, and stop.
        overwrite: replace `output`.

    Raises:
        FileExistsError: `output` exists; or questions were written of other documents, by another writer or with other
            settings.
        FileNotFoundError, ValueError: no such documents or model; a model that cannot write or search; an output
            within the documents.
    """
    if per_passage < 1:
        raise ValueError(f"per_passage={per_passage}; give 1 or more")
    target = Path(output)
    if target.is_dir():
        raise FileExistsError(f"{target} is a folder; give a file, such as {target / 'questions.jsonl'}")
    if not (overwrite or dry_run):
        check_absent(target)
    check_apart(documents, target)
    miner = None if check.lower() == BM25_CHECK else check
    if miner is not None and is_bare(miner):
        raise ValueError(f"check={check!r} is a language model without embedding settings; give an embedding model")
    if teacher is not None:
        check_teacher(teacher, miner=miner)
    passages = passages_of(documents, max_chars=max_chars)
    for_questions = sample_in_order([p for p in passages if can_have_questions(p)], max_passages, seed=seed)
    if not for_questions:
        raise ValueError(f"none of {len(passages)} passages has {LEAST_CHARACTERS} characters; give longer documents")
    # those with questions first, so that a question's passage has its number
    chosen = {passage.id for passage in for_questions}
    searched = [*for_questions, *(passage for passage in passages if passage.id not in chosen)]
    job = Job(base=_without_suffix(target), writer=writer, per_passage=per_passage, seed=seed)
    written, minutes = job.write(for_questions, only_first=dry_run)
    texts = [passage.content for passage in searched]
    questions = check_questions(texts, written, search_by(check, texts))
    accepted = [question for question in questions if question.reason is None]
    rows = [_pair(question, searched[question.passage]) for question in accepted]
    if not accepted:
        reasons = ", ".join(f"{count} {reason}" for reason, count in rejections(questions).items())
        logger.warning("no question is kept (%s); give a larger writer", reasons or "none was written")
    if not dry_run:
        job.write_checked(questions, searched)
        if teacher is not None:
            rows = with_margins(rows, texts, teacher, miner=miner)
        write_jsonl(target, rows, overwrite=overwrite)
    checked_rows = [_checked_row(question, searched[question.passage]) for question in questions]
    examples = {
        kind: [row for row in checked_rows if row["kept"] is keeps]
        for kind, keeps in (("kept", True), ("rejected", False))
    }
    return {
        "passages": len(for_questions),
        "tokens": job.tokens,
        "questions": len(questions),
        "kept": len(accepted),
        "rejected": rejections(questions),
        "minutes": minutes,
        "output": None if dry_run else str(target),
        "checked": None if dry_run else str(job.checked_file),
        "examples": {kind: sample_in_order(rows, SHOWN, seed=seed) for kind, rows in examples.items()},
    }


def passages_of(documents: str | Path | Mapping[str, Any], *, max_chars: int) -> list[Document]:
    """Return the passages of documents, in order."""
    read = documents_of_source(data_source(documents, "documents"))
    return [passage for document in read for passage in split_into_passages(document, max_chars=max_chars)]


def can_have_questions(passage: Document) -> bool:
    """Return whether a passage is long enough to be asked about."""
    return len(passage.text.strip()) >= LEAST_CHARACTERS


def search_by(check: str, passages: Sequence[str]) -> Callable[[], Searcher]:
    """Return what opens the search over passages: `bm25`, or by the vectors of a model."""
    if check.lower() == BM25_CHECK:
        return lambda: BM25(passages)
    return lambda: VectorSearch(cast("TextEncoder", open_model(check)), passages)


@dataclass
class Job:
    """Questions that a writer writes, in a folder of blocks.

    Attributes:
        base: path of the files without their suffixes.
        writer: name of the writer.
        per_passage: number of questions per passage.
        seed: random seed of sampling.
        tokens: number of tokens of the passages, once they are counted.
    """

    base: Path
    writer: str
    per_passage: int
    seed: int
    tokens: int = 0

    @property
    def folder(self) -> Path:
        """Folder of what was written, a file per block."""
        return self.base.with_name(f"{self.base.name}.written")

    @property
    def checked_file(self) -> Path:
        """File of all questions with ranks, scores and reasons."""
        return self.base.with_name(f"{self.base.name}.checked.jsonl")

    def write(
        self, passages: Sequence[Document], *, only_first: bool = False
    ) -> tuple[list[list[Written]], float | None]:
        """Return the questions of each passage, and the minutes that all of them are estimated to take.

        Blocks of an earlier call are read; one block alone, as of a dry run, is replaced if its settings were others.
        Without anything to write, the writer is not opened, and no time is known.

        Args:
            passages: the passages.
            only_first: stop after the first block.

        Raises:
            FileExistsError: the folder holds questions of other passages, settings or weights; another process writes.
            BrokenFile: a block cannot be read.
        """
        texts = [passage.content for passage in passages]
        settings = {
            "writer": writer_fingerprint(self.writer), "per_passage": self.per_passage, "seed": self.seed,
            "passages": digest_of(texts), "sampling": {**SAMPLING, "max_new_tokens": MAX_NEW_TOKENS}, "block": BLOCK,
        }  # fmt: skip
        blocks = {self.folder / f"{i // BLOCK:06d}.json": texts[i : i + BLOCK] for i in range(0, len(texts), BLOCK)}
        with claimed(self.folder, "writing questions into"):
            earlier = self._earlier(settings)
            to_write = [file for file in list(blocks)[: 1 if only_first else None] if not file.is_file()]
            minutes = None
            if to_write:
                opened = open_writer(self.writer)
                if earlier is None:
                    self.tokens = sum(map(opened.tokens, texts))
                    values = {**settings, "name": public_writer(self.writer), "tokens": self.tokens}
                    write_json(self.folder / SETTINGS, sealed(values))
                minutes = self._write_blocks(opened, blocks, to_write, total=len(texts))
            read = takewhile(Path.is_file, blocks)
            return [questions for file in read for questions in _read_block(file, blocks[file])], minutes

    def _earlier(self, settings: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the settings of an earlier call; None: it wrote nothing.

        One block that was written with other settings is removed.

        Raises:
            BrokenFile: blocks without settings.
            FileExistsError: several blocks with other settings.
        """
        written = sorted(self.folder.glob("[0-9]*.json"))
        file = self.folder / SETTINGS
        if not file.is_file():
            if written:
                raise BrokenFile(f"{self.folder} has questions and no {SETTINGS}; remove the folder")
            return None
        earlier = read_json(file, keys=(*settings, "tokens"), repair=f"remove {self.folder}", sealed=True)
        differing = [key for key in settings if earlier[key] != settings[key]]
        if len(written) > 1 and differing:
            raise FileExistsError(
                f"{self.folder} holds questions that were written with other settings ({', '.join(differing)}); choose "
                "another output, remove that folder, or give the same command"
            )
        if differing:
            for old in (*written, file):
                old.unlink()
            return None
        self.tokens = earlier["tokens"]
        return earlier

    def _write_blocks(
        self, writer: Writer, blocks: Mapping[Path, Sequence[str]], missing: Sequence[Path], *, total: int
    ) -> float | None:
        """Write blocks, and log what they cost before the first, and for how long after it."""
        logger.info(
            "%s  writes %d questions for each of %d passages, about %d tokens",
            writer.name, self.per_passage, total, self.tokens,
        )  # fmt: skip
        done = sum(len(passages) for file, passages in blocks.items() if file.is_file())
        if done:
            logger.info("%d passages are written already", done)
        long = 0 if writer.limit is None else sum(writer.tokens(p) > writer.limit for ps in blocks.values() for p in ps)
        if long:
            logger.warning("%d passages are truncated: %s reads %d tokens of each", long, writer.name, writer.limit)
        minutes = None
        with progress(total, "write questions", "passage", initial=done) as bar:
            for file in missing:
                began = time.perf_counter()
                written = writer.write(blocks[file], self.per_passage, seed=self.seed)
                values = [[question._asdict() for question in of_passage] for of_passage in written]
                write_json(file, sealed({"passages": digest_of(blocks[file]), "questions": values}))
                bar.update(len(written))
                if minutes is None:
                    size = sum(map(writer.tokens, blocks[file])) + len(written) * self.per_passage * MAX_NEW_TOKENS / 2
                    everything = self.tokens + total * self.per_passage * MAX_NEW_TOKENS / 2
                    minutes = (time.perf_counter() - began) / 60 * everything / size
                    logger.info("all passages take about %.1f min, by the first %d", minutes, len(written))
        return minutes

    def write_checked(self, questions: Sequence[Question], passages: Sequence[Document]) -> None:
        """Write all questions with ranks, scores and reasons, and log how many are kept."""
        write_jsonl(self.checked_file, (_checked_row(question, passages[question.passage]) for question in questions))
        rejected = ", ".join(f"{count} {reason}" for reason, count in rejections(questions).items())
        accepted = sum(question.reason is None for question in questions)
        logger.info("%d of %d questions are kept; rejected: %s", accepted, len(questions), rejected or "none")


@dataclass(frozen=True, kw_only=True)
class QuestionMaker:
    """What writes the questions of `adapt`.

    Attributes:
        writer: name of the writer.
        folder: folder for questions.
        per_passage: number of questions per training passage; held-out passages get one.
        most: maximum number of passages, of training and of held-out ones each.
        seed: random seed.
    """

    writer: str
    folder: Path
    per_passage: int
    most: int
    seed: int

    @property
    def public(self) -> dict[str, Any]:
        """What a manifest holds of it."""
        return {"writer": public_writer(self.writer), "per_passage": self.per_passage, "most": self.most}

    @staticmethod
    def can_ask(passage: Document) -> bool:
        """Return whether a passage is long enough."""
        return can_have_questions(passage)

    def __call__(self, passages: Sequence[Document], *, held_out: bool) -> list[QA]:
        """Return kept questions with their passages as answers.

        Training questions have to find their passage by BM25. Held-out ones do not: they would be such that BM25, which
        is scored on them, finds.
        """
        able = [passage for passage in passages if can_have_questions(passage)]
        max_passages = min(self.most, 2 * MAX_MADE_QUESTIONS) if held_out else self.most
        chosen = sample_in_order(able, max_passages, seed=self.seed)
        name, per_passage = ("held-out", 1) if held_out else ("train", self.per_passage)
        job = Job(base=self.folder / name, writer=self.writer, per_passage=per_passage, seed=self.seed)
        written, _ = job.write(chosen)
        ids = {passage.id for passage in chosen}
        searched = [*chosen, *(passage for passage in passages if passage.id not in ids)]
        texts = [passage.content for passage in searched]
        questions = check_questions(texts, written, None if held_out else search_by(BM25_CHECK, texts))
        job.write_checked(questions, searched)
        accepted = [question for question in questions if question.reason is None]
        return [QA(q.text, texts[q.passage], source=searched[q.passage].id) for q in accepted]


def _read_block(file: Path, passages: Sequence[str]) -> list[list[Written]]:
    """Return the questions of a block's passages."""
    values = read_json(file, keys=("passages", "questions"), repair=REPAIR, sealed=True)
    if values["passages"] != digest_of(passages):
        raise BrokenFile(f"{file} holds questions of other passages; {REPAIR}")
    with content_of(file, repair=REPAIR):
        return [[Written(**question) for question in of_passage] for of_passage in values["questions"]]


def _without_suffix(file: Path) -> Path:
    """Return the path that names of other files begin with: without `.jsonl`, or `.jsonl.gz`."""
    return file.with_name(file.name.removesuffix(".gz").removesuffix(".jsonl"))


def _pair(question: Question, passage: Document) -> dict[str, Any]:
    document = passage.id.rpartition("/")[0]
    return {"query": question.text, "positive": passage.content, "source": document}


def _checked_row(question: Question, passage: Document) -> dict[str, Any]:
    about = {"query": question.text, "passage": passage.id, "kept": question.reason is None, "reason": question.reason}
    return {**about, "rank": question.rank, "score": question.score}
