"""Prompts with demonstrations: their rows, the vectors that stand for them, and what is trained for these."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from embrew.settings.encoder import Demonstration, Demonstrations, Part
from embrew.text.template import Template
from embrew.text.tokens import Row, Segment, Tokens

if TYPE_CHECKING:
    from embrew.encoder import Encoder


class Demonstrator(nn.Module):
    """g = Linear → GELU → Linear, both with biases; or learned vectors instead; or nothing, where all is text.

    EPIC ("Embedding-based In-Context Prompt Training for Enhancing LLMs as Text Encoders"), Eq. 3, which leaves open
    the inner width (ours: that of a state) and how g starts. Here its output begins on the scale of the language
    model's input embeddings (`prompting.vectors.start`), one or two orders below that of a final state. What comes out
    is what the first layer reads: an input embedding after whatever scaling the model family does.

    Frozen until an objective trains it.

    Args:
        settings: which parts of a demonstration are vectors.
        width: of a state.
        seed: of the initial values.
    """

    def __init__(self, settings: Demonstrations, width: int, *, seed: int = 42) -> None:
        super().__init__()
        self.settings = settings
        self.project: nn.Sequential | None = None
        self.learned: nn.Parameter | None = None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
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


logger = logging.getLogger(__name__)
AT_ONCE = 8  # texts per forward pass, where vectors of demonstrations are computed


@dataclass(frozen=True)
class Context:
    """A task: its instruction and demonstrations of it.

    Attributes:
        instruction: what fills `{instruction}` of the texts that are embedded, and of the demonstrations' queries.
        demonstrations: queries with a text that answers each; none is a plain prompt.
        passage_instruction: what fills `{instruction}` of the demonstrations' passages; None: the prompt `document`.
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
        context: its instruction and demonstrations.
        row: positions between BOS and the instruction of a text; ids on `Segment.SOFT` count rows of `vectors`.
        vectors: `(vectors, width)` float32, on the CPU: input embeddings.
        model_hash: the `vectors_hash` of the encoder that it was made by, where that is known.
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


class Lead(NamedTuple):
    """An instruction in a demonstration.

    Attributes:
        before: token ids before the query.
        after: token ids after it.
        vectors: rows of a table, instead of both.
    """

    before: Sequence[int]
    after: Sequence[int] = ()
    vectors: Sequence[int] = ()


def lead(template: Template, instruction: str) -> Lead:
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
    return Lead(template.words(before), template.after_text(after))


def shown(settings: Demonstrations, template: Template, lead: Lead, examples: Sequence[Example]) -> list[Row]:
    """Return the demonstrations, one row each, that precede the instruction of a text.

    They end before the first that does not fit the budget.
    """
    rows_shown: list[Row] = []
    passage_is_text = settings.form("passage") == "text"
    between = template.after_text(settings.between) if passage_is_text and not lead.after else []
    end = template.after_text(settings.end) if passage_is_text else []
    left = settings.budget
    for number, example in enumerate(examples):
        row = Row([], [])
        named = number == 0 or settings.format != "one_instruction"
        words = named and settings.form("instruction") == "text"
        if words:
            row += Row.labelled(lead.before, Segment.PROMPT)
        elif named:
            row += Row.labelled(lead.vectors, Segment.SOFT)
        row += _part(settings.form("query"), example.query, example.query_vectors)
        row += Row.labelled(lead.after if words else [], Segment.PROMPT) + Row.labelled(between, Segment.PROMPT)
        row += _part(settings.form("passage"), example.passage, example.passage_vectors)
        row += Row.labelled(end, Segment.PROMPT)
        if left is not None:
            left -= len(row.ids)
            if left < 0:
                break
        rows_shown.append(row)
    return rows_shown


def joined(rows: Sequence[Row]) -> Row:
    """Concatenate rows to one."""
    return Row([i for row in rows for i in row.ids], [s for row in rows for s in row.segments])


def _part(form: str | None, ids: Sequence[int], vectors: Sequence[int]) -> Row:
    if form is None:
        return Row([], [])
    return Row.labelled(vectors, Segment.SOFT) if form == "vector" else Row.labelled(ids, Segment.PROMPT)


def insert(rows: Sequence[Row], context: Row, template: Template) -> list[Row]:
    """Insert a context after BOS and the soft prompt of each row; an empty one changes nothing."""
    at = len(template.first_ids)
    if not context.ids:
        return list(rows)
    return [
        Row(row.ids[:at] + context.ids + row.ids[at:], row.segments[:at] + context.segments + row.segments[at:])
        for row in rows
    ]


def prepare(encoder: Encoder, context: Context) -> PreparedContext:
    """Embed the demonstrations of a context, and return it as an encoder reads it.

    Raises:
        ValueError: the encoder does not read demonstrations; more of them than learned vectors; the
            template has the instruction after the text, or there are several templates.
    """
    settings = check_reads(encoder)
    template, pairs = encoder.template, context.demonstrations
    if settings.learnable is not None and len(pairs) > settings.learnable:
        raise ValueError(
            f"{len(pairs)} demonstrations, and this encoder learned vectors for {settings.learnable}; give fewer"
        )
    if encoder.training:
        encoder.eval()
    head = lead(template, context.instruction)
    table: list[Tensor] = []
    examples = [Example() for _ in pairs]
    answer = context.passage_instruction
    sides: tuple[tuple[Part, str, int], ...] = (
        ("query", context.instruction, encoder.max_length["query"]),
        ("passage", encoder.prompts["document"] if answer is None else answer, encoder.max_length["document"]),
    )
    with torch.no_grad():
        for part, instruction, limit in sides:
            texts = [getattr(pair, part) for pair in pairs]
            if settings.form(part) == "text":
                found = template.text_ids(texts, limit=settings.text_tokens, after=part == "passage")
                examples = [e._replace(**{part: ids}) for e, ids in zip(examples, found, strict=True)]
            elif settings.form(part) == "vector":
                if settings.learnable is None:
                    found = _embedded(encoder, texts, instruction, limit, table)
                else:
                    found = [[2 * number + (part == "passage")] for number in range(len(pairs))]
                examples = [e._replace(**{f"{part}_vectors": ids}) for e, ids in zip(examples, found, strict=True)]
        if pairs and settings.form("instruction") == "vector":
            (places,) = _embedded(encoder, [""], context.instruction, encoder.max_length["query"], table)
            head = head._replace(vectors=places)
        vectors = _vectors(encoder, table)
    rows = shown(settings, template, head, examples)
    if len(rows) < len(pairs):
        logger.warning(
            "%d of %d demonstrations fit demonstrations.budget=%s tokens; the others are left out",
            len(rows),
            len(pairs),
            settings.budget,
        )
    row = joined(rows)
    encoder.backbone.check_longest(
        encoder.max_seq_length + len(row.ids),
        f"the demonstrations take {len(row.ids)} tokens and texts up to {encoder.max_seq_length}",
        "give fewer demonstrations, or set max_length lower",
    )
    return PreparedContext(context, row, vectors)


def check_reads(encoder: Encoder) -> Demonstrations:
    """Return how an encoder reads demonstrations.

    Raises:
        ValueError: it does not read them, or its template has no position for them.
    """
    if encoder.demonstrator is None:
        raise ValueError(
            "this encoder does not read demonstrations; set encoder.demonstrations in its recipe "
            "(compress: none reads them as text), and train it so"
        )
    if len(encoder.templates) > 1:
        raise ValueError(f"this encoder has {len(encoder.templates)} templates; demonstrations go with one")
    lead(encoder.template, "")
    return encoder.demonstrator.settings


def _vectors(encoder: Encoder, table: list[Tensor]) -> Tensor:
    demonstrator = encoder.demonstrator
    if demonstrator is not None and demonstrator.learned is not None:
        return demonstrator.learned.detach().float().cpu()
    if demonstrator is None or not table:
        return torch.zeros(0, encoder.backbone.hidden_size)
    return demonstrator(torch.cat(table)).float().cpu()


def _embedded(
    encoder: Encoder, texts: Sequence[str], instruction: str, limit: int, table: list[Tensor]
) -> list[list[int]]:
    """Append the raw vectors of texts to a table; return the indices of each text's vectors."""
    settings = check_reads(encoder)
    places = []
    for begin in range(0, len(texts), AT_ONCE):
        rows = encoder.template.rows(texts[begin : begin + AT_ONCE], instruction=instruction, max_length=limit)
        found = sampled(encoder, Tokens.pad(rows).to(encoder.device))
        for number, row in enumerate(rows):
            count = settings.slots(row.segments.count(Segment.TEXT))
            first = sum(len(part) for part in table)
            table.append(found[[*range(1, count), 0], number])
            places.append(list(range(first, first + count)))
    return places


TEXTS = ["A heron waits in the shallow water.", "How do I reverse a linked list?", "The train to Brno leaves today."]


def start(encoder: Encoder, *, seed: int = 42) -> None:
    """Bring an encoder's new `Demonstrator`, if it has one, onto the scale of its input embeddings.

    The last layer of g is scaled so that the mean square of what it makes of a few texts is that of the embedding
    matrix; learned vectors become rows of that matrix, drawn from `seed`.
    """
    demonstrator = encoder.demonstrator
    if demonstrator is None:
        return
    embedding = encoder.backbone.causal_lm.get_input_embeddings()
    scale = getattr(embedding, "scalar_embed_scale", 1.0)  # Gemma scales its embeddings by sqrt(hidden)
    weight = embedding.weight.detach()
    with torch.no_grad():
        if demonstrator.learned is not None:
            places = torch.randperm(len(weight), generator=torch.Generator().manual_seed(seed))
            rows = weight[places[: len(demonstrator.learned)].to(weight.device)]
            demonstrator.learned.copy_(scale * rows.float())
        if demonstrator.project is not None:
            wanted = scale * torch.linalg.vector_norm(weight, dtype=torch.float32) / weight.numel() ** 0.5
            vectors = demonstrator(encoder(encoder.tokens(TEXTS)))
            factor = wanted / vectors.float().square().mean().sqrt()
            for parameter in demonstrator.project[2].parameters():
                parameter.mul_(factor)


def sampled(encoder: Encoder, tokens: Tokens) -> Tensor:
    """Return raw embeddings of texts, and the states of every n-th of their tokens (`Demonstrations.every`).

    A text of l tokens has ⌈l / n⌉ vectors: the states after n, 2n, … of its tokens, and its embedding in place of the
    last. Further vectors are 0.

    Returns:
        Float32 `(1 + most, texts, width)`: the embeddings, then first, second, … states; `most` is that of a text as
        long as the encoder allows. `(1, texts, width)` where one vector represents a text.
    """
    every = None if encoder.demonstrator is None else encoder.demonstrator.settings.every
    if every is None:
        return encoder(tokens)[None]
    states = encoder.hidden_states(tokens)
    text = tokens.where(Segment.TEXT)
    count = text.long().cumsum(-1)
    pooled = [encoder.pool(states, tokens)]
    for number in range(1, most_samples(encoder) + 1):
        chosen = text & (count == number * every) & (count[:, -1:] > number * every)
        pooled.append(torch.einsum("bt,bth->bh", chosen.to(states.dtype), states).to(pooled[0].dtype))
    return torch.stack(pooled)


def most_samples(encoder: Encoder) -> int:
    """Return the number of states that, with its embedding, represent a text of the maximum length."""
    settings = None if encoder.demonstrator is None else encoder.demonstrator.settings
    return 0 if settings is None or settings.every is None else ceil(encoder.max_seq_length / settings.every) - 1
