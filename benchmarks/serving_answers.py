"""The body of an answer: numbers as text, or base64."""

from __future__ import annotations

import base64
import json
from functools import partial
from typing import Any

import harness
import numpy as np
from harness import SEED, Bar, Benchmark, Measure, Outcome

ROWS, WIDTH = 32, 1024


def listed(vectors: np.ndarray) -> bytes:
    """Return the body as `json.dumps` of lists, which servers in a few lines send."""
    data = [{"object": "embedding", "index": i, "embedding": row.tolist()} for i, row in enumerate(vectors)]
    usage = {"prompt_tokens": ROWS, "total_tokens": ROWS}
    return json.dumps({"object": "list", "data": data, "model": "m", "usage": usage}).encode()


def read(body: bytes) -> np.ndarray:
    """Return the vectors of a body, as a client reads them."""
    rows: list[Any] = [row["embedding"] for row in json.loads(body)["data"]]
    return np.stack(
        [np.frombuffer(base64.b64decode(r), "<f4") if isinstance(r, str) else np.array(r, np.float32) for r in rows]
    )


def answers(benchmark: Benchmark) -> Outcome:
    """Write 32 vectors of 1,024 dimensions."""
    try:
        from embrew.serving.results import openai_json
    except ImportError as error:
        raise harness.Missing(f"{error.name} is not installed") from None
    vectors = np.random.default_rng(SEED).standard_normal((ROWS, WIDTH)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    coded = partial(openai_json, vectors, base64=True, model="m", tokens=ROWS)
    plain = partial(openai_json, vectors, base64=False, model="m", tokens=ROWS)
    peer = partial(listed, vectors)
    equality, measures = {}, []
    for name, write, time, size in (
        ("base64", coded, Bar(gate=10, target=20), Bar(gate=3, target=3.5)),
        ("numbers", plain, Bar(gate=1, target=10), Bar(gate=1, target=1.5)),
    ):
        if not (read(write()) == vectors).all():
            raise harness.Unequal(f"{name}: what is read is not what was written")
        equality[f"{name}, bits that differ"] = 0.0
        measures += [
            harness.time_pairs(f"time to write, {name}", write, peer, time, unit="ms", warm_ups=3, repeat=(50, 5)),
            Measure.of(f"bytes, {name}", "bytes", len(write()), len(peer()), size),
        ]
    return Outcome(equality=equality, measures=measures)


BENCHMARKS = [
    Benchmark(
        name="serve-answers",
        title=f"The body of an answer with {ROWS} vectors of {WIDTH:,} dimensions, against `json.dumps` of lists.",
        run=answers,
    )
]
