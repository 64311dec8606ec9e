"""How near a language model is to the generator: nats per token beside the generator's own, and facts that it knows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from world.facts import World
from world.language import mention, question, statement
from world.words import IDENTITY, PRONOUNS

ROWS = 64  # per forward pass


@dataclass(frozen=True)
class Gap:
    """Cross-entropy of a model and of the generator on the same documents, in nats per token, the end included.

    Attributes:
        documents: their number.
        tokens: their tokens with the end and without the beginning.
        generator: minus the generator's log-probability of the documents, per token: its entropy by Monte Carlo.
        generator_error: standard error of `generator`.
        model: minus the model's log-probability of the same documents, per token.
        excess: the model's less the generator's, per token; its mean over all documents is KL(generator, model).
        excess_error: standard error of `excess`, over documents.
    """

    documents: int
    tokens: int
    generator: float
    generator_error: float
    model: float
    excess: float
    excess_error: float

    @property
    def share(self) -> float:
        """The excess as a share of the generator's entropy."""
        return self.excess / self.generator


@torch.no_grad()
def measure_gap(model: Any, tokenizer: Any, texts: Sequence[str], log_probs: Sequence[float]) -> Gap:
    """Compare a model with the generator on texts, given the generator's log-probability of each."""
    end = tokenizer.eos_token_id
    rows = [[*ids, end] for ids in tokenizer(list(texts))["input_ids"]]
    counts = [len(row) - 1 for row in rows]
    model_nats: list[float] = []
    for start in range(0, len(rows), ROWS):
        model_nats += _nats(model, rows[start : start + ROWS]).tolist()
    tokens, per_text = sum(counts), statistics.fmean(counts)

    def error(nats: Sequence[float], mean: float) -> float:
        """Standard error of a ratio of sums, over documents."""
        rest = [total - mean * count for total, count in zip(nats, counts, strict=True)]
        return statistics.pstdev(rest) / per_text / math.sqrt(len(rows))

    generator_nats = [-value for value in log_probs]
    excess_nats = [a - b for a, b in zip(model_nats, generator_nats, strict=True)]
    generator, excess = sum(generator_nats) / tokens, sum(excess_nats) / tokens
    return Gap(
        documents=len(rows),
        tokens=tokens,
        generator=generator,
        generator_error=error(generator_nats, generator),
        model=sum(model_nats) / tokens,
        excess=excess,
        excess_error=error(excess_nats, excess),
    )


def _nats(model: Any, rows: Sequence[Sequence[int]]) -> Tensor:
    """Return minus the log-probability of every row given its first token, `(rows,)` float32."""
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    labels = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=-100)
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels[:, 1:], reduction="none")
    return losses.sum(1)


@dataclass(frozen=True)
class Probe:
    """The beginning of a text, and the words that may follow it."""

    kind: str
    prompt: str
    answers: tuple[str, ...]


def probes(world: World) -> Iterator[Probe]:
    """Yield every fact once per way of asking: statements, with a pronoun too, questions, and names for aliases."""
    for e, entity in enumerate(world.entities):
        for named, other in ((0, 1), (1, 0)):
            for template in IDENTITY:
                said = template.format(m=entity.names[named], v="|").partition(" |")[0]
                yield Probe("other name", said, (entity.names[other],))
        for r in range(len(world.relations)):
            answers = world.values[r][entity.values[r]]
            for register in (0, 1):
                for named in (0, 1):
                    kind = ("name", "alias")[named]
                    said = mention(world, e, named)
                    before = statement(world, e, r, register, said, 0).rpartition(f" {answers[0]}")[0]
                    yield Probe(f"statement by {kind}", before, answers)
                    yield Probe(f"question by {kind}", question(world, r, register, said), answers)
                opening = IDENTITY[register].format(m=entity.names[register], v=entity.names[1 - register])
                pronoun = statement(world, e, r, register, PRONOUNS[register], 0).rpartition(f" {answers[0]}")[0]
                yield Probe("statement by pronoun", f"{opening} {pronoun}", answers)


@torch.no_grad()
def measure_facts(model: Any, tokenizer: Any, world: World) -> dict[str, dict[str, float]]:
    """Return, by kind of probe, how often the likeliest next token is right, and the probability of the right ones."""
    asked = list(probes(world))
    found: dict[str, list[tuple[bool, float]]] = {}
    for start in range(0, len(asked), ROWS):
        some = asked[start : start + ROWS]
        rows = [torch.tensor(ids) for ids in tokenizer([probe.prompt for probe in some])["input_ids"]]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        logits = model(input_ids=ids, use_cache=False).logits.float()
        for probe, row, states in zip(some, rows, logits, strict=True):
            probs = states[len(row) - 1].softmax(-1)
            right = [tokenizer.convert_tokens_to_ids("Ġ" + word) for word in probe.answers]
            found.setdefault(probe.kind, []).append((int(probs.argmax()) in right, float(probs[right].sum())))
    return {
        kind: {
            "probes": len(several),
            "accuracy": statistics.fmean(hit for hit, _ in several),
            "probability": statistics.fmean(prob for _, prob in several),
        }
        for kind, several in found.items()
    }
