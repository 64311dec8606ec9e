"""Claimed scores: whether an evaluation gives them, and which other way of reading the model does.

A claim holds where the 95 % interval of the score contains it. Where it does not, the model is read in other ways, one
at a time: with other prompts, another dtype, another length limit, with vectors of other lengths.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from embrew.encoder import Encoder
from embrew.evaluation import evaluate
from embrew.evaluation.find import cells
from embrew.evaluation.kinds import KINDS
from embrew.evaluation.kinds.classification import CLASSIFICATION, CLUSTERING
from embrew.evaluation.results import Result
from embrew.evaluation.task import MtebTask, Task
from embrew.evaluation.uncertainty import interval
from embrew.text_encoder import TextEncoder, resolved_prompts

logger = logging.getLogger(__name__)
LIMITS = (128, 256, 512)
DTYPES = ("float32", "bfloat16")
ROUNDING = 0.0005  # claims have one decimal: 82.0
READ_LENGTHS = (CLASSIFICATION.name, CLUSTERING.name)  # the other kinds compare by cosine
Reopen = Callable[[str], Any]
Variants = dict[str, Callable[[], AbstractContextManager[Any]]]


@dataclass(frozen=True)
class Trial:
    """The score (0 to 1) of a model that is read in one way, with the bounds of its 95 % interval.

    Attributes:
        variant: what differs from the model as it is; empty: nothing.
    """

    variant: str
    score: float
    low: float
    high: float

    @classmethod
    def of(cls, variant: str, result: Result) -> Trial:
        """Return the trial of a result; bounds are at least half a unit of a score's first decimal away."""
        score = result.main_score
        low, high = interval(result) or (score, score)
        return cls(variant, score, min(low, score - ROUNDING), max(high, score + ROUNDING))


@dataclass(frozen=True)
class Claim:
    """A claimed score (0 to 1) and what was measured: the model as it is, then variants if that one differs."""

    task: str
    score: float
    trials: tuple[Trial, ...]

    @property
    def holds(self) -> bool:
        """Whether the model as it is has this score."""
        return self.trials[0].low <= self.score <= self.trials[0].high

    @property
    def explanations(self) -> list[str]:
        """Variants whose interval contains the claim, the nearest score first."""
        trials = [trial for trial in self.trials[1:] if trial.low <= self.score <= trial.high]
        return [trial.variant for trial in sorted(trials, key=lambda trial: abs(trial.score - self.score))]

    @property
    def verdict(self) -> str:
        """What was found, in one line."""
        first = self.trials[0]
        start = f"{self.task}: {100 * self.score:.2f} is claimed, {100 * first.score:.2f} measured"
        if self.holds:
            return f"{start}; the claim holds"
        nearest, *others = self.explanations or ["no variant"]
        return f"{start}; {nearest} explains it" + (f" (so would {', '.join(others)})" if others else "")


def read_claims(claims: Sequence[str], tasks: Sequence[Task | MtebTask]) -> dict[str, float]:
    """Return claimed scores (0 to 1) by task, from `TASK=SCORE` with scores times 100.

    Raises:
        ValueError: a claim of another form, of an unknown task, or twice of one.
    """
    names = [cell.name for task in tasks if isinstance(task, Task) for cell in cells(task)]
    scores: dict[str, float] = {}
    for claim in claims:
        name, _, text = claim.rpartition("=")
        try:
            score = float(text)
        except ValueError:
            score = math.nan
        if not name or name in scores or not 1 < abs(score) <= 100:
            raise ValueError(f"claim {claim!r}; give TASK=SCORE, once per task, with the score times 100: STSB=82.0")
        if name not in names:
            raise ValueError(
                f"claim {claim!r} is of no task of this evaluation; choose from {', '.join(names) or 'none'} (tasks of "
                "MTEB: give their data as a folder)"
            )
        scores[name] = score / 100
    return scores


def check_claims(
    encoder: TextEncoder,
    tasks: Sequence[Task | MtebTask],
    results: Sequence[Result],
    claims: Mapping[str, float],
    *,
    reopen: Reopen | None = None,
    limits: Sequence[int] = LIMITS,
    **options: Any,
) -> list[Claim]:
    """Compare claims with the results of an evaluation, and evaluate variants where they differ.

    Args:
        encoder: the model that was evaluated.
        tasks: tasks of the evaluation.
        results: results of the model as it is.
        claims: claimed scores (0 to 1) by task.
        reopen: opens the model in another dtype; None: dtypes are not tried.
        limits: length limits to try, up to the model's positions.
        options: those of `evaluate`, without an output folder.
    """
    by_name = {cell.name: cell for task in tasks if isinstance(task, Task) for cell in cells(task)}
    checked = []
    for result in (result for result in results if result.task in claims):
        claim = Claim(result.task, claims[result.task], (Trial.of("", result),))
        if not claim.holds:
            task = by_name[claim.task]
            trials = _try(_variants(encoder, task, reopen, limits), task, options)
            claim = replace(claim, trials=(*claim.trials, *trials))
        checked.append(claim)
    return checked


def _try(variants: Variants, task: Task, options: Mapping[str, Any]) -> Iterator[Trial]:
    for name, opened in variants.items():
        try:
            with opened() as encoder:
                (result,) = evaluate(encoder, [task], **options)
        except ValueError as error:
            logger.warning("%s with %s is left out: %s", task.name, name, error)
            continue
        yield Trial.of(name, result)


def _variants(encoder: Any, task: Task, reopen: Reopen | None, limits: Sequence[int]) -> Variants:
    """Return ways to read a model, each of which changes one thing, by their names."""
    variants: Variants = {}
    tried: set[tuple[str, str]] = set()
    for name, words in _prompts(encoder, task).items():
        if words not in tried and name:
            variants[name] = partial(nullcontext, _Prompted(encoder, *words))
        tried.add(words)
    dtype = str(next(encoder.parameters()).dtype) if hasattr(encoder, "parameters") else ""
    for other in DTYPES:
        if reopen is not None and dtype != f"torch.{other}":
            variants[f"dtype {other}"] = partial(_reopened, reopen, other)
    for limit in limits:
        if limit <= _positions(encoder) and limit != encoder.max_seq_length:
            variants[f"at most {limit} tokens"] = partial(_limited, encoder, limit)
    if task.kind in READ_LENGTHS and isinstance(encoder, Encoder):
        variants["other normalisation"] = partial(nullcontext, encoder.with_settings(normalize=not encoder.normalize))
    return variants


def _prompts(encoder: TextEncoder, task: Task) -> dict[str, tuple[str, str]]:
    """Return prompts of texts or queries, and of documents, by variant; the task's own come first, without a name."""
    resolved, instruction = resolved_prompts(encoder), task.settings.get("instruction")
    query, document, text = (resolved[side] for side in ("query", "document", "text"))
    prompts = {"no prompt": ("", ""), **{f"prompt {name}": (words, words) for name, words in encoder.prompts.items()}}
    if not (KINDS[task.kind].documents or KINDS[task.kind].corpus):
        return {"": (text, text) if instruction is None else (instruction, instruction), **prompts}
    own = {"": (query if instruction is None else instruction, document)}
    return {**own, **prompts, "prompts of both sides": (query, document), "prompts swapped": (document, query)}


class _Prompted:
    """An encoder with other prompts of texts and queries, and of documents."""

    def __init__(self, encoder: TextEncoder, query: str, document: str) -> None:
        self.encoder, self._query, self._document = encoder, query, document

    def __getattr__(self, name: str) -> Any:
        return getattr(self.encoder, name)

    def encode(self, inputs: Sequence[str], *args: Any, **options: Any) -> Any:
        return self.encoder.encode(inputs, *args, **{**options, "prompt_name": None, "prompt": self._query})

    def encode_query(self, inputs: Sequence[str], *args: Any, **options: Any) -> Any:
        return self.encoder.encode_query(inputs, *args, **{**options, "prompt_name": None, "prompt": self._query})

    def encode_document(self, inputs: Sequence[str], *args: Any, **options: Any) -> Any:
        return self.encoder.encode_document(inputs, *args, **{**options, "prompt_name": None, "prompt": self._document})


def _positions(encoder: Any) -> float:
    """Return the largest length limit of a model; 0 where its limit cannot be set."""
    if isinstance(encoder, Encoder):
        return encoder.backbone.max_positions
    own = getattr(encoder, "max_seq_length", None) or 0
    config = getattr(encoder[0].auto_model, "config", None) if own and hasattr(encoder[0], "auto_model") else None
    return float(getattr(config, "max_position_embeddings", own))


@contextmanager
def _limited(encoder: Any, limit: int) -> Iterator[TextEncoder]:
    """Within this context, an encoder has another length limit."""
    name = "max_length" if isinstance(encoder, Encoder) else "max_seq_length"
    before = getattr(encoder, name)
    setattr(encoder, name, limit)
    try:
        yield encoder
    finally:
        setattr(encoder, name, before)


@contextmanager
def _reopened(reopen: Reopen, dtype: str) -> Iterator[TextEncoder]:
    yield reopen(dtype)
