"""MetaEOL: eight prompts, each computed once a call, beside eight full passes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import harness
import numpy as np
import torch
from encode import folder, texts_of
from harness import Bar, Benchmark, Outcome

from embrew.encoder import Encoder
from embrew.recipe import Recipe
from embrew.text.tokens import Tokens

TEXTS = 32
EQUAL = 5e-6  # largest difference of a component of unit vectors


@cache
def encoder() -> Encoder:
    """The recipe's encoder on 6 random layers of width 384."""
    config = Recipe.load("baselines/metaeol").encoder
    return Encoder.from_pretrained(
        folder() / "model",
        device="cpu",
        dtype="float32",
        template=config.template,
        preparation=config.preparation,
        pooling=config.pooling.mode,
        max_length=512,
    )


def ours(texts: list[str]) -> Callable[[], np.ndarray]:
    """`encode`, as a user calls it."""
    built = encoder()
    return lambda: np.asarray(built.encode(texts, batch_size=TEXTS, show_progress_bar=False))


def peer(texts: list[str]) -> Callable[[], np.ndarray]:
    """One padded batch a prompt, everything computed for every text, tokenised meanwhile as in `encode`."""
    built = encoder()

    def run() -> np.ndarray:
        with torch.inference_mode():
            each = [built(Tokens.pad(template.rows(texts, max_length=512))) for template in built.templates]
        return np.asarray(torch.nn.functional.normalize(torch.stack(each).mean(0), dim=-1))

    return run


def metaeol(benchmark: Benchmark) -> Outcome:
    """Texts of 4 to 19 words, so that most of a prompted text is the prompt."""
    texts = texts_of("short")[:TEXTS]
    one, other = ours(texts), peer(texts)
    gap = float(np.abs(one() - other()).max())
    if gap > EQUAL:
        raise harness.Unequal(f"vectors differ by {gap:.1e}, allowed {EQUAL:.0e}")
    measure = harness.time_pairs(
        f"time of {TEXTS} texts", one, other, Bar(gate=1.3, target=1.6, stretch=1.8), unit="s", rounds=7
    )
    return Outcome(equality={f"components ({TEXTS} unit vectors)": gap}, measures=[measure])


BENCHMARKS = [
    Benchmark(
        name="metaeol-prefix",
        title="MetaEOL, eight prompts and 32 short texts, what stands before the text computed once a prompt, against "
        "eight full passes: 6-layer Llama of width 384, float32, one core.",
        run=metaeol,
    )
]
