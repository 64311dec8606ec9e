"""Generation: the answers an encoder still generates, compared with held-out ones, and the perplexity of those.

*Learn Before Represent*, Table 2 (BLEU-4, ROUGE-L); perplexities, accuracies and a reconstruction rate are added. The
paper does not name its tokenisation; here it is the default of sacreBLEU and rouge-score.

* `rouge_l`: mean F-measure of the longest common subsequence; `bleu_4`: corpus BLEU-4. Both 0 to 1.
* `perplexity`: of the answers given what `source` says: the memory tokens alone, or the question.
* `accuracy`: share of the answers' tokens with the highest probability, given the same and the true tokens before.
* `perplexity_text`: given the question as text; equal to `perplexity` if there is no bottleneck.
* `reconstruction`: like `accuracy`, given the memory of the answer itself. None if there is no bottleneck.

`perplexity_other`, `accuracy_other` and `reconstruction_other` are controls: given the memory (or the text) of another
question, or answer, of the task. None if there is one question only. `perplexity_none`, `accuracy_none` and
`reconstruction_none`: given BOS only. What the memory tells about an answer is the difference to these.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Unpack

from embrew.data.beir import RetrievalData, read_beir
from embrew.data.reading import is_beir
from embrew.evaluation.rows import task_rows
from embrew.evaluation.task import Columns, Instructed, NamedScores, Task, TaskKind, without_instruction
from embrew.ranking import sample_in_order
from embrew.text_encoder import EncodeOptions, TextEncoder

if TYPE_CHECKING:  # torch and transformers are imported when a model is evaluated: tables need neither
    from embrew.encoder import Encoder
    from embrew.generation import Bos, Source
    from embrew.text.tokens import Row

QuestionsAndAnswers = tuple[list[str], list[str]]  # questions, and the answer of each


def read(
    task: Task, *, questions: int | None = None, max_chars: int | None = None, seed: int = 42, columns: Columns = None
) -> QuestionsAndAnswers:
    """Return questions and held-out answers."""
    if task.settings.get("context") is not None:
        raise ValueError(
            f"task {task.name}: generation does not read demonstrations; leave out context={task.settings['context']!r}"
        )
    if is_beir(task.path):
        pairs = held_out_pairs(read_beir(task.path, task.split))
    else:
        rows = task_rows(task, GENERATION, columns)
        pairs = list(rows["query"]), list(rows["positive"])
    return choose_pairs(pairs, max_chars=max_chars, count=questions, seed=seed)


def score_generation(
    encoder: TextEncoder,
    pairs: QuestionsAndAnswers,
    *,
    source: Literal["auto", "memory", "text"] = "auto",
    bos: Literal["visible", "strict"] = "visible",
    max_new_tokens: int = 128,
    batch_size: int = 16,
    seed: int = 42,
    **options: Unpack[EncodeOptions],
) -> NamedScores:
    """Return scores of what an `Encoder` generates greedily after each question; the main one is ROUGE-L.

    Args:
        encoder: a causal LM with causal attention; a task's instruction replaces its own for queries.
        pairs: questions, and held-out answers, truncated to the encoder's limit for documents, as in training.
        source: what the answer is generated from: `memory`, `text`, or `auto` (the memory if the encoder has one).
        bos: whether BOS is visible in addition to the memory, as in training.
        max_new_tokens: maximum length of an answer in tokens.
        batch_size: answers generated per batch.
        seed: of the choice of another question for each answer.
        options: `batch_tokens`, padded tokens per batch when answers are scored, and `show_progress_bar`.
    """
    from embrew.evaluation.targets import target_rows
    from embrew.generation import has_bottleneck

    model, prefix = _generating(encoder)
    sacrebleu, rouge_scorer = _packages()
    questions, answers = pairs
    has_memory = has_bottleneck(model)
    chosen: Source = ("memory" if has_memory else "text") if source == "auto" else source
    instruction = model.instruction("query", prefix)
    generated = model.generate(
        questions,
        source=chosen,
        bos=bos,
        prompt=instruction,
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
        show_progress_bar=options.get("show_progress_bar", False),
    )
    lengths = {"max_tokens": model.max_length["query"], "limit": model.max_length["document"]}
    rows = target_rows(model, questions, answers, instruction=instruction, **lengths)
    predict = partial(predicted, model, bos=bos, batch_tokens=options.get("batch_tokens", 4096))
    answered = _with_controls(predict, model, rows, chosen, seed)
    reconstructed = _with_controls(predict, model, _repeated_rows(model, answers), "memory", seed) if has_memory else {}
    scorer = rouge_scorer.RougeScorer(["rougeL"])
    pairs_of_texts = zip(answers, generated, strict=True)
    rouge_l = [float(scorer.score(wanted, text)["rougeL"].fmeasure) for wanted, text in pairs_of_texts]
    scores: NamedScores = {"source": chosen, "rouge_l": math.fsum(rouge_l) / len(rouge_l)}
    scores["bleu_4"] = float(sacrebleu.corpus_bleu(list(generated), [list(answers)]).score) / 100
    scores["perplexity_text"] = predict(rows, "text").perplexity
    for ending, prediction in answered.items():
        scores[f"perplexity{ending}"] = prediction and prediction.perplexity
        scores[f"accuracy{ending}"] = prediction and prediction.accuracy
        reconstruction = reconstructed.get(ending)
        scores[f"reconstruction{ending}"] = reconstruction and reconstruction.accuracy
    examples = {"score": rouge_l, "question": questions, "answer": generated}
    counts = {"queries": len(questions)}
    return {"main_score": scores["rouge_l"], **scores, "counts": counts, "examples": examples}


def _generating(encoder: TextEncoder) -> tuple[Encoder, str | None]:
    """Return an encoder that may generate, without the task's instruction, and the instruction."""
    from embrew.encoder import Encoder

    model = without_instruction(encoder)
    if not isinstance(model, Encoder) or type(model) is not Encoder:  # no graph of another runtime either
        raise ValueError(
            f"a {type(model).__name__} only gives vectors; generation evaluates encoders that embrew has trained, or "
            "a recipe without stages on a causal LM, such as baselines/last-token"
        )
    return model, encoder.prefix["prompt"] if isinstance(encoder, Instructed) else None


def held_out_pairs(data: RetrievalData) -> QuestionsAndAnswers:
    """Return a split's questions, each with the text of its document of the highest grade; the first of several."""
    texts = {document.id: document.text for document in data.corpus}
    questions, answers = [], []
    for query, question in data.queries.items():
        there = {document: grade for document, grade in data.qrels[query].items() if document in texts and grade > 0}
        if there:
            questions.append(question)
            answers.append(texts[max(there, key=lambda document: there[document])])
    return questions, answers


def choose_pairs(
    pairs: QuestionsAndAnswers, *, max_chars: int | None, count: int | None, seed: int
) -> QuestionsAndAnswers:
    """Return pairs whose answer has up to `max_chars` characters; of these a seeded sample of `count`, in order.

    Raises:
        ValueError: there are fewer than `count`.
    """
    short = [i for i, text in enumerate(pairs[1]) if text.strip() and (max_chars is None or len(text) <= max_chars)]
    if not short or (count is not None and not 1 <= count <= len(short)):
        raise ValueError(
            f"questions={count}, max_chars={max_chars}: {len(short)} of {len(pairs[1])} questions have such an answer; "
            "ask for fewer, or raise max_chars"
        )
    chosen = sample_in_order(short, count, seed=seed)
    return [pairs[0][i] for i in chosen], [pairs[1][i] for i in chosen]


class Prediction(NamedTuple):
    """How well a language model predicts answers from their true tokens so far, over all tokens of all answers.

    Attributes:
        perplexity: exp of the mean of −log p.
        accuracy: share of tokens that are the likeliest ones.
    """

    perplexity: float
    accuracy: float


def predicted(encoder: Encoder, rows: Sequence[Row], source: Source, *, bos: Bos, batch_tokens: int) -> Prediction:
    """Return how well the targets of rows are predicted, in float32, a part of the logits at a time."""
    from embrew.evaluation.targets import target_scores

    total, right, tokens = 0.0, 0, 0
    for losses, likeliest in target_scores(encoder, rows, source=source, bos=bos, batch_tokens=batch_tokens):
        total += float(losses.double().sum())
        right += int(likeliest.sum())
        tokens += len(losses)
    return Prediction(math.exp(total / max(tokens, 1)), right / max(tokens, 1))


def _with_controls(
    predict: Callable[[Sequence[Row], Source], Prediction],
    encoder: Encoder,
    rows: Sequence[Row],
    source: Source,
    seed: int,
) -> dict[str, Prediction | None]:
    """Return how well the targets of rows are predicted in three conditions, by the ending of their scores' names.

    * no ending: after what their rows read: all of it, or its memory alone, as `source` says.
    * `_other`: after what another row reads, which row is in `others`. None if too many rows read or answer the same.
    * `_none`: after BOS alone, at the positions that follow it. EOS stands in for BOS where there is none, since the
      first token needs a position that predicts it.
    """
    parts = [_split_target(row) for row in rows]
    another = other_rows([(tuple(read.ids), tuple(target.ids)) for read, target in parts], seed=seed)
    swapped = [] if another is None else [parts[i][0] + parts[position][1] for position, i in enumerate(another)]
    return {
        "": predict(rows, source),
        "_other": predict(swapped, source) if swapped else None,
        "_none": predict([encoder.template.start_row + target for _, target in parts], "text"),
    }


def other_rows(rows: Sequence[tuple[Hashable, Hashable]], *, seed: int) -> list[int] | None:
    """Return for each row, what is read and its target, the index of another one that shares neither, each row once.

    All rows are on one circle in a random order, those that share something beside each other, and each gets the row
    that lies further by as many as share the most. None if these are more than half of all.

    >>> other_rows([("a", 1), ("b", 2), ("c", 3)], seed=1)
    [1, 2, 0]
    >>> other_rows([("a", 1), ("b", 1)], seed=1) is None
    True
    """
    group = list(range(len(rows)))  # of each row: the first of those it is connected with
    first: dict[tuple[int, Hashable], int] = {}
    for index, row in enumerate(rows):
        for part in enumerate(row):
            joined = (group[first.setdefault(part, index)], group[index])
            group = [min(joined) if joined_group in joined else joined_group for joined_group in group]
    order = list(range(len(rows)))
    random.Random(seed).shuffle(order)
    group_order: dict[int, int] = {}
    for i in order:
        group_order.setdefault(group[i], len(group_order))
    order.sort(key=lambda i: group_order[group[i]])
    shift = max(Counter(group).values(), default=1)
    if 2 * shift > len(rows):
        return None
    following = dict(zip(order, order[shift:] + order[:shift], strict=True))
    return [following[i] for i in range(len(rows))]


def _split_target(row: Row) -> tuple[Row, Row]:
    """Return what is read, and the target after it."""
    from embrew.text.tokens import Row, Segment

    start = row.segments.index(Segment.TARGET) if Segment.TARGET in row.segments else len(row.ids)
    return Row(row.ids[:start], row.segments[:start]), Row(row.ids[start:], row.segments[start:])


def _repeated_rows(encoder: Encoder, texts: Sequence[str]) -> list[Row]:
    """Return rows of texts as documents, each followed by its own tokens, without EOS, as the target."""
    from embrew.text.tokens import Row, Segment

    limit, prompt = encoder.max_length["document"], encoder.prompts["document"]
    rows = []
    for row in encoder.template.rows(texts, instruction=prompt, max_length=limit):
        text_ids = [i for i, segment in zip(row.ids, row.segments, strict=True) if segment == Segment.TEXT]
        rows.append(row + Row.labelled(text_ids, Segment.TARGET))
    return rows


def _packages() -> tuple[Any, Any]:
    """Import what computes BLEU and ROUGE."""
    try:
        import sacrebleu
        from rouge_score import rouge_scorer
    except ImportError as error:
        raise ImportError(
            f'{error.name} is not installed; run pip install "embrew[generation]"', name=error.name
        ) from None
    return sacrebleu, rouge_scorer


GENERATION = TaskKind(
    name="generation",
    metric="ROUGE-L",
    score=score_generation,
    read=read,
    rows="pairs",
    about=("query",),
    other=("positive",),
    corpus=True,
)
