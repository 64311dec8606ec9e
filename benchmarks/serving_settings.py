"""What a context and a depth per request cost on `embrew serve`, under load."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import harness
from contexts import INSTRUCTION, texts_of
from harness import Bar, Benchmark, Outcome
from models import save_llama
from serving import compare, in_turn, near, ours, row
from serving_models import TEXTS
from serving_servers import Load

from embrew.encoder import Encoder
from embrew.model.contexts import Context
from embrew.settings.encoder import Demonstration, Demonstrations

CLIENTS, TOKENS, DEMONSTRATIONS, LAYERS = 16, 32, 5, 12


def with_context(place: Path) -> Encoder:
    """Return 12 random Llama layers of width 768, with an instruction (`plain`) and five demonstrations (`five`)."""
    save_llama(place / "llama", width=768, inner=2048, layers=LAYERS, heads=12)
    encoder = Encoder.from_pretrained(
        place / "llama",
        device="cpu",
        dtype="float32",
        template="{instruction}{text}{eos}",
        pooling="last",
        max_length=512,
        prompts={"plain": INSTRUCTION},
        demonstrations=Demonstrations(compress="pair"),
    )
    pairs = tuple(Demonstration(*texts_of(2, 60, seed=20 + i)) for i in range(DEMONSTRATIONS))
    encoder.add_context("five", Context(INSTRUCTION, pairs))
    encoder.save_pretrained(place / "saved", verify="off")
    return encoder


def settings(
    benchmark: Benchmark, *, sides: dict[str, dict[str, Any]], time: Bar, latency: Bar | None, rounds: int
) -> Outcome:
    """Compare two settings of the same server; the first is ours, the second the peer's."""
    texts = texts_of(4 * 256, TOKENS - 1)  # and EOS
    requests = [texts[i : i + TEXTS] for i in range(0, len(texts), TEXTS)]
    with tempfile.TemporaryDirectory(prefix="embrew-bench-") as scratch:
        encoder = with_context(Path(scratch))
        with ours(Path(scratch), "float32") as server:
            equality = {
                f"1 - smallest cosine, {name}": near(
                    server.vectors(texts[:32], **fields), encoder.encode(texts[:32], **fields), "float32"
                )
                for name, fields in sides.items()
            }
            loads, busy = in_turn(
                {name: (server, fields) for name, fields in sides.items()}, requests, rounds,
                clients=CLIENTS, warm=5, seconds=15,
            )  # fmt: skip
    (own, our_loads), (other, their_loads) = loads.items()
    measures = [measure(f"time per text, {own} against {other}", our_loads, their_loads, time)]
    if latency is not None:
        for percent, name in ((50, "median"), (99, "99th percentile")):
            one, two = ([load.latency(percent) for load in side] for side in (our_loads, their_loads))
            measures.append(compare(f"latency, {name}, {own} against {other}", one, two, latency))
    notes = {"load of the machine": busy, "settings": [row(name, found) for name, found in loads.items()]}
    return Outcome(equality=equality, measures=measures, notes=notes)


def measure(what: str, ours: list[Load], peer: list[Load], bar: Bar) -> harness.Measure:
    """Return the ratio of milliseconds per text, and of CPU time."""
    return compare(
        what,
        [1e3 / load.rate for load in ours],
        [1e3 / load.rate for load in peer],
        bar,
        [load.cpu for load in ours],
        [load.cpu for load in peer],
    )


BENCHMARKS = [
    Benchmark(
        name="serve-context",
        title=f"{DEMONSTRATIONS} demonstrations as vectors against the plain instruction, texts of {TOKENS} tokens, "
        f"{CLIENTS} clients without pause: `embrew serve`, {TEXTS} texts per request, 12 Llama layers of width 768.",
        run=partial(
            settings,
            sides={"five demonstrations": {"prompt_name": "five"}, "the instruction": {"prompt_name": "plain"}},
            time=Bar(gate=1 / 1.1, target=1 / 1.1, stretch=1 / 1.05),
            latency=Bar(gate=1 / 1.1, target=1 / 1.1, stretch=1 / 1.05),
            rounds=3,
        ),
    ),
    Benchmark(
        name="serve-depth",
        title=f"Half of the layers against all, texts of {TOKENS} tokens, {CLIENTS} clients without pause: "
        f"`embrew serve`, {TEXTS} texts per request, 12 Llama layers of width 768.",
        run=partial(
            settings,
            sides={"half of the layers": {"num_layers": LAYERS // 2}, "all layers": {}},
            time=Bar(gate=1.8, target=1.8),
            latency=None,
            rounds=3,
        ),
    ),
]
