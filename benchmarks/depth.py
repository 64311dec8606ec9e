"""Early exit: encoding with half and with a quarter of the layers against running all and reading the same layer."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import harness
import numpy as np
import torch
from encode import BATCH_TOKENS, texts_of
from harness import RESULTS, Bar, Benchmark, Outcome
from models import save_llama

from embrew.analysis.plots import drawing
from embrew.encoder import Encoder
from embrew.model.batching import plan
from embrew.text.tokens import Tokens

LAYERS = 12
TEXTS = 64
SHOWN = (1, 2, 3, 4, 6, 8, 10, 12)  # layers of the picture
EQUAL = 2e-6  # largest difference of a component of unit vectors


@cache
def encoder() -> Encoder:
    """12 random Llama layers of width 256 with nano's tokenizer, causal, mean pooling."""
    place = Path(tempfile.mkdtemp(prefix="embrew-bench-"))
    save_llama(place, width=256, inner=704, layers=LAYERS, heads=4)
    return Encoder.from_pretrained(
        place, dtype="float32", device="cpu", pooling="mean", attention="causal", max_length=512
    )


def run_all_and_read(texts: list[str], layer: int) -> np.ndarray:
    """The peer: every layer is run, in the same batches, and the states of one are pooled."""
    built = encoder()
    rows = built.template.rows(texts, max_length=512)
    vectors = np.empty((len(texts), built.backbone.hidden_size), dtype=np.float32)
    with torch.inference_mode():
        for batch in plan([len(row.ids) for row in rows], batch_size=32, batch_tokens=BATCH_TOKENS):
            tokens = Tokens.pad([rows[i] for i in batch])
            states = built.backbone.inner(
                inputs_embeds=built.backbone.embed(tokens), use_cache=False, output_hidden_states=True
            ).hidden_states[layer]
            pooled = built.pool(built.backbone.inner.norm(states), tokens)
            vectors[batch] = torch.nn.functional.normalize(pooled, dim=-1)
    return vectors


def early_exit(benchmark: Benchmark) -> Outcome:
    """The ideal ratio is layers ÷ layers run; the gate is 0.8 of it, the target 0.9."""
    texts = texts_of("lognormal")[:TEXTS]
    own: Callable[[int | None], Any] = lambda n: encoder().encode(texts, num_layers=n, batch_tokens=BATCH_TOKENS)  # noqa: E731
    equality, measures = {}, []
    for layers in (LAYERS // 2, LAYERS // 4):
        ideal = LAYERS / layers
        gap = float(np.abs(own(layers) - run_all_and_read(texts, layers)).max())
        if not gap <= EQUAL:
            raise harness.Unequal(f"layer {layers}: vectors differ by {gap:.1e}, {EQUAL:.0e} is allowed")
        equality[f"vectors of layer {layers}, largest difference"] = gap
        measures.append(
            harness.time_pairs(
                f"time of {TEXTS} texts with {layers} of {LAYERS} layers",
                partial(own, layers),
                partial(run_all_and_read, texts, layers),
                Bar(gate=0.8 * ideal, target=0.9 * ideal, stretch=ideal),
                unit="s",
            )
        )
    speeds = texts_a_second(own)
    draw(speeds, RESULTS / "early-exit.svg")
    notes = {
        "texts a second": [
            {"layers": n, "texts a second": s, "ideal": speeds[LAYERS] * LAYERS / n} for n, s in speeds.items()
        ]
    }
    return Outcome(equality=equality, measures=measures, notes=notes)


def texts_a_second(own: Callable[[int | None], Any], rounds: int = 5) -> dict[int, float]:
    """Speed at several depths, which take turns; the median of some rounds after a warm-up."""
    taken: dict[int, list[float]] = {layers: [] for layers in SHOWN}
    for number in range(rounds + 1):
        for layers, seconds in taken.items():
            wall = harness.sample(partial(own, layers)).wall
            if number:
                seconds.append(wall)
    return {layers: TEXTS / statistics.median(seconds) for layers, seconds in taken.items()}


def draw(speeds: dict[int, float], path: Path) -> None:
    """One line, and the ideal beside it: full speed × layers ÷ layers run."""
    ideal = [speeds[LAYERS] * LAYERS / layers for layers in speeds]
    with drawing(path, 6, 4) as figure:
        axes = figure.subplots()
        axes.plot(list(speeds), ideal, "--", color="0.6", label="ideal")
        axes.plot(list(speeds), list(speeds.values()), "o-", label="encode(num_layers=…)")
        axes.set_xlabel("layers run")
        axes.set_ylabel("texts per second")
        axes.set_xticks(list(speeds))
        axes.set_ylim(bottom=0)
        axes.legend()


BENCHMARKS = (
    Benchmark(
        name="early-exit",
        title="Encoding 64 texts of lognormal lengths with half and a quarter of 12 layers of width 256, against "
        "running all layers and reading the same one; float32.",
        run=early_exit,
    ),
)
