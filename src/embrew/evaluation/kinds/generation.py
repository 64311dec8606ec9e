"""Generation: the answers an encoder still generates, compared with held-out ones, and the perplexity of those.

*Learn Before Represent*, Table 2 (BLEU-4, ROUGE-L); perplexities, accuracies and a reconstruction rate are added. The
paper does not name its tokenisation; here it is the default of sacreBLEU and rouge-score.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from embrew.data.beir import RetrievalData, read_beir
from embrew.data.reading import is_beir
from embrew.evaluation.instructed import Instructed, inner
from embrew.evaluation.rows import task_rows
from embrew.evaluation.task import Columns, Evaluate, Evaluated, Task, TaskKind
from embrew.evaluation.told import Told, predicted, told
from embrew.text_encoder.interface import TextEncoder

if TYPE_CHECKING:  # torch and transformers are imported when a model is evaluated: tables need neither
    from embrew.encoder import Encoder
    from embrew.generation import Bos, Source
    from embrew.text.tokens import Row

Answered = tuple[list[str], list[str]]  # questions, and the answer of each


def prepare(
    task: Task,
    *,
    questions: int | None = None,
    max_chars: int | None = None,
    max_new_tokens: int = 128,
    source: Literal["auto", "memory", "text"] = "auto",
    bos: Literal["visible", "strict"] = "visible",
    batch_size: int = 16,
    seed: int = 42,
    columns: Columns = None,
) -> Evaluate:
    """Read questions and held-out answers, to evaluate encoders on them."""
    if is_beir(task.path):
        pairs = held_out(read_beir(task.path, task.split))
    else:
        rows = task_rows(task, GENERATION, columns)
        pairs = list(rows["query"]), list(rows["positive"])
    asked, answers = choose(pairs, max_chars=max_chars, count=questions, seed=seed)

    def evaluate(encoder: TextEncoder, options: Mapping[str, Any]) -> Evaluated:
        if isinstance(encoder, Instructed) and encoder.context is not None:
            raise ValueError(
                f"task {task.name}: generation does not read demonstrations; leave out context={encoder.context!r}"
            )
        scores = evaluate_generation(
            inner(encoder),
            asked,
            answers,
            instruction=encoder.instruction if isinstance(encoder, Instructed) else None,
            source=source,
            bos=bos,
            max_new_tokens=max_new_tokens,
            batch_size=batch_size,
            seed=seed,
            **{key: options[key] for key in ("batch_tokens", "show_progress_bar") if key in options},
        )
        return scores, {"queries": len(asked)}

    return evaluate


def evaluate_generation(
    encoder: Any,
    questions: Sequence[str],
    answers: Sequence[str],
    *,
    instruction: str | None = None,
    source: Literal["auto", "memory", "text"] = "auto",
    bos: Bos = "visible",
    max_new_tokens: int = 128,
    batch_size: int = 16,
    batch_tokens: int = 4096,
    seed: int = 42,
    show_progress_bar: bool = False,
) -> dict[str, Any]:
    """Return scores of what an `Encoder` generates greedily after each question; the main one is ROUGE-L.

    * `rouge_l`: mean F-measure of the longest common subsequence; `bleu_4`: corpus BLEU-4. Both 0 to 1.
    * `perplexity`: of the answers given what `source` says: the memory tokens alone, or the question.
    * `accuracy`: share of the answers' tokens with the highest probability, given the same and the true tokens before.
    * `perplexity_text`: given the question as text; equal to `perplexity` if there is no bottleneck.
    * `reconstruction`: like `accuracy`, given the memory of the answer itself. None if there is no bottleneck.

    `perplexity_other`, `accuracy_other` and `reconstruction_other` are controls: given the memory (or the text) of
    another question, or answer, of the task. None if there is one question only. `perplexity_none`, `accuracy_none`
    and `reconstruction_none`: given BOS only. What the memory tells about an answer is the difference to these.

    Args:
        encoder: a causal LM with causal attention.
        questions: encoded as queries.
        answers: held-out answers; truncated to the encoder's limit for documents, as in training.
        instruction: replaces the encoder's own for queries.
        source: what the answer is generated from: `memory`, `text`, or `auto` (the memory if the encoder has one).
        bos: whether BOS is visible in addition to the memory, as in training.
        max_new_tokens: maximum length of an answer in tokens.
        batch_size: answers generated per batch.
        batch_tokens: padded tokens per batch when answers are scored.
        seed: of the choice of another question for each answer.
        show_progress_bar: show a progress bar.

    Raises:
        ValueError: the model cannot generate: it is not an `Encoder` of a causal LM, or its attention is not causal.
        ImportError: without the extra `generation`.
    """
    from embrew.encoder import Encoder
    from embrew.evaluation.targets import target_rows
    from embrew.generation import can_write

    if type(encoder) is not Encoder:  # no graph of another runtime either
        raise ValueError(
            f"a {type(encoder).__name__} only gives vectors; generation evaluates encoders that embrew has trained, or "
            "a recipe without stages on a causal LM, such as baselines/last-token"
        )
    bleu, rouge = _metrics()
    has_memory = can_write(encoder)
    chosen: Source = ("memory" if has_memory else "text") if source == "auto" else source
    asked = encoder.instruction("query", instruction)
    written = encoder.generate(
        questions,
        source=chosen,
        bos=bos,
        prompt=asked,
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
        show_progress_bar=show_progress_bar,
    )
    assert isinstance(written, list)
    common = {"max_tokens": encoder.max_length["query"], "limit": encoder.max_length["document"]}
    rows = target_rows(encoder, questions, answers, instruction=asked, **common)

    tell = partial(told, encoder, bos=bos, seed=seed, batch_tokens=batch_tokens)
    answered = tell(rows, source=chosen)
    again = tell(_answers_twice(encoder, answers), source="memory") if has_memory else {}
    text = answered["own"] if chosen == "text" else predicted(encoder, rows, "text", bos, batch_tokens)
    found = rouge(written, answers)
    scores: dict[str, Any] = {
        "source": chosen,
        "rouge_l": math.fsum(found) / len(found),
        "bleu_4": bleu(written, answers),
        **_named("perplexity", answered, "perplexity"),
        "perplexity_text": None if text is None else text.perplexity,
        **_named("accuracy", answered, "accuracy"),
        **_named("reconstruction", again, "accuracy"),
    }
    examples = {"score": found, "question": list(questions), "answer": written}
    return {"main_score": scores["rouge_l"], **scores, "examples": examples}


def held_out(data: RetrievalData) -> Answered:
    """Return a split's questions, each with the text of its document of the highest grade; the first of several."""
    texts = {document.id: document.text for document in data.corpus}
    questions, answers = [], []
    for query, question in data.queries.items():
        there = {document: grade for document, grade in data.qrels[query].items() if document in texts and grade > 0}
        if there:
            questions.append(question)
            answers.append(texts[max(there, key=lambda document: there[document])])
    return questions, answers


def choose(pairs: Answered, *, max_chars: int | None, count: int | None, seed: int) -> Answered:
    """Return pairs whose answer has up to `max_chars` characters; of these a seeded sample of `count`, in order.

    Raises:
        ValueError: there are fewer than `count`.
    """
    kept = [
        i for i, answer in enumerate(pairs[1]) if answer.strip() and (max_chars is None or len(answer) <= max_chars)
    ]
    if not kept or (count is not None and not 1 <= count <= len(kept)):
        raise ValueError(
            f"questions={count}, max_chars={max_chars}: {len(kept)} of {len(pairs[1])} questions have such an answer; "
            "ask for fewer, or raise max_chars"
        )
    if count is not None:
        kept = sorted(random.Random(seed).sample(kept, count))
    return [pairs[0][i] for i in kept], [pairs[1][i] for i in kept]


def _named(name: str, conditions: Mapping[str, Told | None], score: str) -> dict[str, float | None]:
    """Return one score in each condition: `NAME`, `NAME_other`, `NAME_none`."""
    keys = {"own": name, "other": f"{name}_other", "none": f"{name}_none"}
    return {key: getattr(conditions.get(condition), score, None) for condition, key in keys.items()}


def _answers_twice(encoder: Encoder, texts: Sequence[str]) -> list[Row]:
    """Return rows of texts as documents, each followed by its own tokens, without EOS, as the target."""
    from embrew.text.tokens import Row, Segment

    limit, asked = encoder.max_length["document"], encoder.prompts["document"]
    rows = []
    for row in encoder.template.rows(texts, instruction=asked, max_length=limit):
        own = [i for i, segment in zip(row.ids, row.segments, strict=True) if segment == Segment.TEXT]
        rows.append(row + Row.labelled(own, Segment.TARGET))
    return rows


def _metrics() -> tuple[Any, Any]:
    """Return functions for corpus BLEU-4 and the ROUGE-L of each pair, both 0 to 1."""
    try:
        import sacrebleu
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise ImportError(
            f'{error.name} is not installed; run pip install "embrew[generation]"', name=error.name
        ) from None
    scorer = RougeScorer(["rougeL"])

    def bleu(written: Sequence[str], wanted: Sequence[str]) -> float:
        return float(sacrebleu.corpus_bleu(list(written), [list(wanted)]).score) / 100

    def rouge(written: Sequence[str], wanted: Sequence[str]) -> list[float]:
        return [
            float(scorer.score(reference, text)["rougeL"].fmeasure)
            for reference, text in zip(wanted, written, strict=True)
        ]

    return bleu, rouge


GENERATION = TaskKind(
    name="generation",
    metric="ROUGE-L",
    prepare=prepare,
    rows="pairs",
    about=("query",),
    other=("positive",),
    corpus=True,
)
