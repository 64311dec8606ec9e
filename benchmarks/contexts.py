"""Prompts with demonstrations: what stands before every text computed once, beside running it again for every text."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import harness
import numpy as np
import peaks
import torch
from encode import folder
from harness import SEED, Bar, Benchmark, Outcome
from models import save_llama
from transformers import AutoTokenizer

from embrew.encoder import Encoder
from embrew.model.contexts import Context, insert
from embrew.settings.encoder import Demonstration, Demonstrations
from embrew.storage.base_model import ASSETS
from embrew.text.tokens import Tokens

PREFIX, TOKENS, TEXTS = 256, 32, 8
EQUAL = 5e-6  # largest difference of a component of unit vectors
INSTRUCTION = "Given a question of a patient, find the passage that answers it. Question: "


@cache
def words() -> list[str]:
    """Words of one token each."""
    vocabulary = AutoTokenizer.from_pretrained(ASSETS["nano"], trust_remote_code=False).get_vocab()
    return sorted(word[1:] for word in vocabulary if word[:1] == "Ġ" and word[1:].isascii() and word[1:].isalpha())


def texts_of(count: int, tokens: int, seed: int = SEED) -> list[str]:
    """Texts of so many words."""
    chance = random.Random(seed)
    return [" ".join(chance.choices(words(), k=tokens)) for _ in range(count)]


@cache
def wide() -> Path:
    """2 random Llama layers as wide as Qwen2.5-1.5B's, with nano's tokenizer."""
    place = Path(tempfile.mkdtemp(prefix="embrew-bench-"))
    save_llama(place / "model", width=1536, inner=8960, layers=2, heads=12)
    return place


@cache
def encoder(compress: str = "pair", pooling: str = "last", *, place: Path | None = None) -> Encoder:
    """6 random Llama layers of width 384, or those at `place`; demonstrations as vectors (`pair`) or text (`none`)."""
    return Encoder.from_pretrained(
        (place or folder()) / "model",
        device="cpu",
        dtype="float32",
        template="{instruction}{text}{eos}",
        pooling=pooling,
        attention="causal",
        max_length=1024,
        demonstrations=Demonstrations(compress=compress),  # type: ignore[arg-type]
    )


def textual(built: Encoder) -> str:
    """The name of a context of plain text, of 256 tokens with BOS and the instruction."""
    text = Demonstration(*texts_of(2, 20, seed=1))
    pairs = tuple(Demonstration(*texts_of(2, 20, seed=2 + i)) for i in range(9))
    frame = len(built.template.rows([""], instruction=INSTRUCTION)[0].ids) - 1  # without EOS
    for count in range(1, len(pairs)):
        made = built.add_context("textual", Context(INSTRUCTION, pairs[:count]))
        missing = PREFIX - frame - len(made.row.ids)
        if missing < 40:
            break
    for extra in range(80):  # fill up by words of the last passage
        longer = text._replace(passage=" ".join([pairs[count - 1].passage, *words()[:extra]]))
        made = built.add_context("textual", Context(INSTRUCTION, (*pairs[: count - 1], longer)))
        if frame + len(made.row.ids) >= PREFIX:
            break
    return "textual"


def again(built: Encoder, name: str, texts: list[str], rows: int) -> Callable[[], np.ndarray]:
    """The whole prompt is run for every text, in padded batches, as FlagEmbedding does (which re-tokenises it, too)."""
    context = built.contexts.get(name)

    def run() -> np.ndarray:
        parts = []
        with torch.inference_mode():
            for start in range(0, len(texts), rows):
                made = built.template.rows(
                    texts[start : start + rows], instruction=built.instruction(name), max_length=built.max_seq_length
                )
                if context is None:
                    tokens = Tokens.pad(made)
                else:
                    tokens = Tokens.pad(insert(made, context.row, built.template)).with_soft(context.vectors)
                parts.append(torch.nn.functional.normalize(built(tokens), dim=-1))
        return torch.cat(parts).numpy()

    return run


def once(built: Encoder, name: str, texts: list[str]) -> Callable[[], np.ndarray]:
    """`encode`, as a user calls it, with the prompt kept from an earlier call."""
    return lambda: np.asarray(built.encode(texts, prompt_name=name, batch_size=len(texts), show_progress_bar=False))


def require_equal(ours: np.ndarray, peer: np.ndarray) -> float:
    """Largest absolute difference of a component."""
    gap = float(np.abs(ours - peer).max())
    if ours.shape != peer.shape or not gap <= EQUAL:
        raise harness.Unequal(f"vectors differ by {gap:.1e}, {EQUAL:.0e} is allowed")
    return gap


def reuse(benchmark: Benchmark) -> Outcome:
    """A prefix of 256 tokens and texts of 32, both poolings; five demonstrations as vectors beside the instruction."""
    texts = texts_of(TEXTS, TOKENS - 1)  # and EOS
    measures, equality, notes = [], {}, {}
    for pooling in ("last", "mean"):
        built = encoder("none", pooling)
        name = textual(built)
        row = insert(built.template.rows(texts[:1], instruction=INSTRUCTION), built.contexts[name].row, built.template)[
            0
        ]
        notes[f"tokens of a row ({pooling})"] = float(len(row.ids))
        ours, peer = once(built, name, texts), again(built, name, texts, len(texts))
        equality[f"components, textual demonstrations, {pooling}"] = require_equal(ours(), peer())
        bar = Bar(gate=4, target=6, stretch=8)
        measures.append(harness.time_pairs(f"time of {TEXTS} texts, pooling {pooling}", ours, peer, bar, unit="ms"))
    pairs = tuple(Demonstration(*texts_of(2, 60, seed=20 + i)) for i in range(5))
    for built, width, repeat in ((encoder(), 384, 3), (encoder(place=wide()), 1536, 1)):
        built.prompts["plain"] = INSTRUCTION
        context = built.add_context("five", Context(INSTRUCTION, pairs))
        notes["positions of five demonstrations as vectors"] = float(len(context.row.ids))
        five, plain = once(built, "five", texts), once(built, "plain", texts)
        whole = again(built, "five", texts, len(texts))
        equality[f"components, five demonstrations as vectors, width {width}"] = require_equal(five(), whole())
        bar = Bar(gate=1 / 1.10, target=1 / 1.10, stretch=1 / 1.05)
        what = f"time of five demonstrations as vectors, width {width}; peer: the plain instruction"
        measures.append(harness.time_pairs(what, five, plain, bar, unit="ms", rounds=11, repeat=(repeat, repeat)))
    return Outcome(equality=equality, measures=measures, notes=notes)


def one_pass(*, shared: bool, rows: int) -> Callable[[], dict[str, float]]:
    """Rows of 544 tokens, 512 of which they have in common, in one batch."""
    built = encoder("none")
    built.prompts["long"] = " ".join(words()[:512]) + " "
    texts = texts_of(rows, TOKENS)
    if shared:
        run: Callable[[], np.ndarray] = once(built, "long", texts)
    else:
        run = again(built, "long", texts, rows)
    once(built, "long", texts[:2])()  # what a first call allocates anyway
    return lambda: {"sum": float(run().sum())}


def memory(benchmark: Benchmark) -> Outcome:
    """Peak memory of a batch, and what a kept beginning adds to it when the batch doubles."""
    found = peaks.memory_of(benchmark)
    gap = abs(found["kept 32"]["sum"] - found["again 32"]["sum"])
    if gap > 32 * 384 * EQUAL:
        raise harness.Unequal(f"sums of vectors differ by {gap:.1e}")
    # keys and values of a whole batch in all layers, in MB: what holding them beside the batch would take
    every = 2 * 6 * 32 * 512 * 384 * 4 / 2**20
    added = found["kept 32"]["grew"] - found["kept 16"]["grew"]
    measures = [
        harness.Measure(
            what="growth of peak memory, 32 rows of 544 tokens; peer: the prompt run for every row",
            unit="MB",
            ours=found["kept 32"]["grew"],
            peer=found["again 32"]["grew"],
            ratio=found["again 32"]["grew"] / found["kept 32"]["grew"],
            bar=Bar(gate=1, target=2),
        ),
        harness.Measure(
            what="what 16 further rows add; peer: their keys and values in all layers",
            unit="MB",
            ours=added,
            peer=every / 2,
            ratio=every / 2 / max(added, 1e-9),
            bar=Bar(gate=1, target=1.5),
        ),
    ]
    return Outcome(equality={"sums of vectors": gap}, measures=measures)


BENCHMARKS = [
    Benchmark(
        name="icl-prefix",
        title="A prompt of 256 tokens with textual demonstrations before texts of 32, computed once, against running "
        "it every time; and five demonstrations as vectors against the plain instruction: 6-layer Llama of width 384, "
        "and for the latter two layers of width 1,536 as well, float32, one core.",
        run=reuse,
    ),
    Benchmark(
        name="icl-memory",
        title="Peak memory of a batch behind a prompt of 512 tokens, computed once against for every row: same model.",
        run=memory,
        variants={
            "kept 16": lambda: one_pass(shared=True, rows=16),
            "kept 32": lambda: one_pass(shared=True, rows=32),
            "again 32": lambda: one_pass(shared=False, rows=32),
        },
    ),
]
