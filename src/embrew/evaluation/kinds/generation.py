"""What an encoder can still write: its answers beside held-out ones, and how likely it finds those.

*Learn Before Represent*, Table 2 (BLEU-4, ROUGE-L), with perplexities and a reconstruction rate beside them. The paper
does not say how it tokenises; here sacreBLEU's and rouge-score's own defaults count.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from embrew.data.beir import RetrievalData, is_beir, read_beir
from embrew.evaluation.instructed import Instructed, inner
from embrew.evaluation.rows import task_rows
from embrew.evaluation.task import Columns, Evaluate, Evaluated, Task, TaskKind
from embrew.text_encoder.interface import TextEncoder

if TYPE_CHECKING:  # torch and transformers are imported where a model is judged: tables need neither
    from embrew.modeling.encoder import Encoder
    from embrew.modeling.generation import Bos, Source

Answered = tuple[list[str], list[str]]  # questions, and for each its answer


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
                f"task {task.name}: generation reads no demonstrations; leave out context={encoder.context!r}"
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
    show_progress_bar: bool = False,
) -> dict[str, Any]:
    """Scores of what an `Encoder` writes greedily after each question; the main one is ROUGE-L.

    * `rouge_l`: mean F-measure of the longest common subsequence; `bleu_4`: of the corpus. Both 0 to 1.
    * `perplexity`: of the answers, as they are written: through the memory alone, or from the visible question.
    * `perplexity_text`: of the answers with the question in sight; the same where there is no bottleneck.
    * `reconstruction`: share of the answers' tokens that are the likeliest ones, given the memory of the answer itself
      and its true beginning. None where there is no bottleneck.

    Args:
        encoder: a causal LM under causal attention.
        questions: read as queries.
        answers: held-out ones; cut at the encoder's length limit for documents, as in training.
        instruction: in place of the encoder's own for queries.
        source: what is written from: `memory`, `text`, or `auto`, the memory where the encoder has one.
        bos: whether BOS may be read beside the memory, as in training.
        max_new_tokens: written at most.
        batch_size: answers written at a time.
        batch_tokens: padded tokens scored at a time.
        show_progress_bar: show one.

    Raises:
        ValueError: the model cannot write: no causal LM of embrew's, or attention that is not causal.
        ImportError: without the extra `generation`.
    """
    from embrew.modeling.encoder import Encoder
    from embrew.modeling.generation import can_write, target_rows

    if not isinstance(encoder, Encoder):
        raise ValueError(
            f"a {type(encoder).__name__} only gives vectors; generation judges encoders that embrew has trained, or a "
            "recipe without stages on a causal LM, such as baselines/last-token"
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

    def perplexity(read: Source) -> float:
        return _perplexity(encoder, rows, read, bos, batch_tokens)

    found = rouge(written, answers)
    scores: dict[str, Any] = {
        "source": chosen,
        "rouge_l": math.fsum(found) / len(found),
        "bleu_4": bleu(written, answers),
        "perplexity": perplexity(chosen),
        "perplexity_text": perplexity("text"),
        "reconstruction": _reconstruction(encoder, answers, bos, batch_tokens) if has_memory else None,
    }
    examples = {"score": found, "question": list(questions), "answer": written}
    return {"main_score": scores["rouge_l"], **scores, "examples": examples}


def held_out(data: RetrievalData) -> Answered:
    """Questions of a split and the text of the document that is judged best for each; the first of equal ones."""
    texts = {document.id: document.text for document in data.corpus}
    questions, answers = [], []
    for query, question in data.queries.items():
        there = {document: grade for document, grade in data.qrels[query].items() if document in texts and grade > 0}
        if there:
            questions.append(question)
            answers.append(texts[max(there, key=lambda document: there[document])])
    return questions, answers


def choose(pairs: Answered, *, max_chars: int | None, count: int | None, seed: int) -> Answered:
    """Those whose answer has at most `max_chars` characters; of these a seeded sample of `count`, in their order.

    Raises:
        ValueError: there are not so many.
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


def _perplexity(encoder: Encoder, rows: Sequence[Any], source: Source, bos: Bos, batch_tokens: int) -> float:
    """E to the mean over all tokens of all answers."""
    from embrew.modeling.generation import target_scores

    total, tokens = 0.0, 0
    for losses, _ in target_scores(encoder, rows, source=source, bos=bos, batch_tokens=batch_tokens):
        total += float(losses.double().sum())
        tokens += len(losses)
    return math.exp(total / tokens)


def _reconstruction(encoder: Encoder, texts: Sequence[str], bos: Bos, batch_tokens: int) -> float:
    """Share of the tokens read of each text that are the likeliest after its memory and their true beginning."""
    from embrew.modeling.generation import target_scores
    from embrew.modeling.text.tokens import Row, Segment

    limit, asked = encoder.max_length["document"], encoder.prompts["document"]
    rows = []
    for row in encoder.template.rows(texts, instruction=asked, max_length=limit):
        own = [i for i, segment in zip(row.ids, row.segments, strict=True) if segment == Segment.TEXT]
        rows.append(row + Row.of(own, Segment.TARGET))
    right = tokens = 0
    for _, found in target_scores(encoder, rows, source="memory", bos=bos, batch_tokens=batch_tokens):
        right += int(found.sum())
        tokens += len(found)
    return right / max(tokens, 1)


def _metrics() -> tuple[Any, Any]:
    """Corpus BLEU-4 and the ROUGE-L of each pair, both 0 to 1."""
    try:
        import sacrebleu
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise ImportError(f'{error.name} is missing; pip install "embrew[generation]"', name=error.name) from None
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
