"""Prompts with demonstrations: their settings, their rows, and the module that makes vectors of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from embrew.settings.encoder import Demonstration, Demonstrations
from embrew.text.template import Template
from embrew.text.tokens import Row, Segment


class Demonstrator(nn.Module):
    """g = Linear → GELU → Linear, both with biases; or learned vectors instead; or nothing, where all is text.

    EPIC ("Embedding-based In-Context Prompt Training for Enhancing LLMs as Text Encoders"), Eq. 3, which leaves open
    the inner width (ours: that of a state) and how g starts. Here its output begins on the scale of the language
    model's input embeddings (`context_vectors.start`), one or two orders below that of a final state. What comes out
    is what the first layer reads: an input embedding after whatever scaling the model family does.

    Frozen until an objective trains it.

    Args:
        settings: settings of demonstrations, such as the parts that are vectors.
        width: width of a state.
        seed: random seed of the initial values.
    """

    def __init__(self, settings: Demonstrations, width: int, *, seed: int = 42) -> None:
        super().__init__()
        self.settings = settings
        self.project: nn.Sequential | None = None
        self.learned: nn.Parameter | None = None
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # as in `pooling.LatentAttention`
            if settings.projects:
                self.project = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
            if settings.learnable:
                self.learned = nn.Parameter(0.02 * torch.randn(2 * settings.learnable, width))
        self.requires_grad_(False)

    def forward(self, embeddings: Tensor | None = None) -> Tensor:
        """Project raw embeddings `(vectors, width)` to input embeddings for a prompt, `(vectors, width)`.

        Without embeddings, return the learned vectors.
        """
        if embeddings is None and self.learned is not None:
            return self.learned.clone()
        if self.project is None or embeddings is None:
            raise ValueError("these demonstrations are not projected: they are text, or learned")
        if self.settings.normalize:
            embeddings = nn.functional.normalize(embeddings, dim=-1)
        projected: Tensor = self.project(embeddings.to(self.project[0].weight.dtype))  # type: ignore[arg-type]
        return projected


@dataclass(frozen=True)
class Context:
    """A task: its instruction and demonstrations of it.

    Attributes:
        instruction: text that fills `{instruction}` of embedded texts and of the demonstrations' queries.
        demonstrations: queries with a text that answers each; none is a plain prompt.
        passage_instruction: text that fills `{instruction}` of their passages; None: the prompt `document`.
    """

    instruction: str
    demonstrations: tuple[Demonstration, ...] = ()
    passage_instruction: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "demonstrations", tuple(Demonstration(*pair) for pair in self.demonstrations))


@dataclass(frozen=True)
class PreparedContext:
    """A context as one encoder reads it; made by `prepare`, or read from disk.

    Attributes:
        context: instruction and demonstrations.
        row: positions between BOS and the instruction of a text; ids on `Segment.SOFT` count rows of `vectors`.
        vectors: `(vectors, width)` float32, on the CPU: input embeddings.
        model_hash: `vectors_hash` of the encoder that made it, where that is known.
    """

    context: Context
    row: Row
    vectors: Tensor
    model_hash: str | None = None


class Example(NamedTuple):
    """One demonstration, ready to be put in a row: token ids where it is text, rows of a table where it is vectors."""

    query: Sequence[int] = ()
    passage: Sequence[int] = ()
    query_vectors: Sequence[int] = ()
    passage_vectors: Sequence[int] = ()


class InstructionIds(NamedTuple):
    """The instruction of a demonstration.

    Attributes:
        before: token ids before the query.
        after: token ids after the query.
        vectors: rows of a table, instead of both.
    """

    before: Sequence[int]
    after: Sequence[int] = ()
    vectors: Sequence[int] = ()


def instruction_ids(template: Template, instruction: str) -> InstructionIds:
    """Return the token ids of an instruction around a demonstration's query.

    Raises:
        ValueError: the template has the instruction after the text.
    """
    if "{instruction}" in template.after:
        raise ValueError(
            f"template={template.pattern!r} has the instruction after the text; demonstrations come before a text, "
            "each with its instruction: put {instruction} before {text}"
        )
    before, after = template.around(instruction)
    return InstructionIds(template.words(before), template.after_text(after))


def demonstration_rows(
    settings: Demonstrations, template: Template, instruction: InstructionIds, examples: Sequence[Example]
) -> list[Row]:
    """Return the demonstrations, one row each, that precede the instruction of a text.

    They end before the first that does not fit the budget.
    """
    rows_shown: list[Row] = []
    passage_is_text = settings.form("passage") == "text"
    between = template.after_text(settings.between) if passage_is_text and not instruction.after else []
    end = template.after_text(settings.end) if passage_is_text else []
    left = settings.budget
    for number, example in enumerate(examples):
        row = Row([], [])
        named = number == 0 or settings.format != "one_instruction"
        is_text = named and settings.form("instruction") == "text"
        if is_text:
            row += Row.labelled(instruction.before, Segment.PROMPT)
        elif named:
            row += Row.labelled(instruction.vectors, Segment.SOFT)
        row += _part(settings.form("query"), example.query, example.query_vectors)
        row += Row.labelled(instruction.after if is_text else [], Segment.PROMPT) + Row.labelled(
            between, Segment.PROMPT
        )
        row += _part(settings.form("passage"), example.passage, example.passage_vectors)
        row += Row.labelled(end, Segment.PROMPT)
        if left is not None:
            left -= len(row.ids)
            if left < 0:
                break
        rows_shown.append(row)
    return rows_shown


def concatenate(rows: Sequence[Row]) -> Row:
    """Concatenate rows to one."""
    return Row([i for row in rows for i in row.ids], [s for row in rows for s in row.segments])


def _part(form: str | None, ids: Sequence[int], vectors: Sequence[int]) -> Row:
    if form is None:
        return Row([], [])
    return Row.labelled(vectors, Segment.SOFT) if form == "vector" else Row.labelled(ids, Segment.PROMPT)


def insert(rows: Sequence[Row], context: Row, template: Template) -> list[Row]:
    """Insert a context after BOS and the soft prompt of each row; an empty one changes nothing."""
    index = len(template.first_ids)
    if not context.ids:
        return list(rows)
    return [
        Row(
            row.ids[:index] + context.ids + row.ids[index:],
            row.segments[:index] + context.segments + row.segments[index:],
        )
        for row in rows
    ]
