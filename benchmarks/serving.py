"""`embrew serve` beside other servers, under load: throughput and latency of the same vectors."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import harness
import numpy as np
import torch
from harness import Bar, Benchmark, Measure, Outcome
from serving_models import TEXTS, models, queries
from serving_servers import Load, Server

from embrew.encoder import Encoder
from embrew.storage.base_model import computes

INFINITY = os.environ.get("INFINITY")  # the program infinity_emb of an environment of its own
COSINE = {"float32": 1 - 1e-6, "bfloat16": 0.995}  # smallest that is allowed
PEER = Path(__file__).with_name("serving_peer.py")
WAYS = ("threads", "lock", "async")


# ---- the servers ---------------------------------------------------------------------------------------------------


def ours(place: Path, dtype: str, *options: str, base64: bool = True) -> Server:
    """Return `embrew serve`; its vectors as base64, which OpenAI's client asks for."""
    command = [sys.executable, "-m", "embrew", "serve", str(place / "saved"), "--port", "{port}", "--dtype", dtype]
    fields = {"encoding_format": "base64"} if base64 else {}
    return Server(name="embrew serve", command=[*command, *options], fields=fields)


def fastapi(place: Path, dtype: str, how: str) -> Server:
    """Return FastAPI around Sentence-Transformers, with the route written in one of the three ways."""
    command = [sys.executable, str(PEER), str(place / "stock"), "{port}", dtype, how]
    return Server(name=f"FastAPI, {how}", command=command, path="/embed")


def infinity(place: Path, dtype: str) -> Server:
    """Return infinity with its engine for torch; without its store of known vectors, and without `torch.compile`."""
    assert INFINITY is not None
    options = ["--engine", "torch", "--device", "cpu", "--dtype", dtype, "--no-vector-disk-cache", "--no-compile"]
    options += ["--no-bettertransformer", "--no-trust-remote-code", "--no-model-warmup", "--host", "127.0.0.1"]
    return Server(
        name="infinity",
        command=[INFINITY, "v2", "--model-id", str(place / "older"), *options, "--port", "{port}"],
        path="/embeddings",
        fields={"model": "older", "encoding_format": "base64"},
        environment={"DO_NOT_TRACK": "1", "PYTHONPATH": ""},
    )


def best_way(place: Path, dtype: str, requests: Sequence[Sequence[str]], clients: int) -> tuple[Server, dict[str, Any]]:
    """Return the fastest of the three ways to write the peer's route, and what each reaches."""
    found = {}
    for how in WAYS:
        with fastapi(place, dtype, how) as server:
            found[how] = server.under(requests, clients=clients, warm=3, seconds=8).rate
    notes = {f"texts/s of FastAPI, {how}, at first": rate for how, rate in found.items()}
    return fastapi(place, dtype, max(found, key=found.__getitem__)), notes


# ---- against peers -------------------------------------------------------------------------------------------------


def saturated(benchmark: Benchmark, *, clients: int, dtype: str, rounds: int, warm: float, seconds: float) -> Outcome:
    """Let clients send one request after the other, to every server in turn."""
    if find_spec("fastapi") is None:
        raise harness.Missing("fastapi is not installed")
    requests = queries()
    with models() as place, ExitStack() as running:
        peer, notes = best_way(place, dtype, requests, clients=16)
        servers = [ours(place, dtype), peer, *([infinity(place, dtype)] if INFINITY else [])]
        for server in servers:
            running.enter_context(server)
        sample = [text for texts in requests[:16] for text in texts]
        reference = Encoder.from_pretrained(place / "saved", dtype="float32", device="cpu").encode(sample)
        equality = {f"1 - smallest cosine, {one.name}": near(one.vectors(sample), reference, dtype) for one in servers}
        loads, busy = in_turn(
            {server.name: (server, {}) for server in servers}, requests, rounds, clients=clients, warm=warm,
            seconds=seconds,
        )  # fmt: skip
    own, *others = loads
    measures = []
    for other in others:
        what = f"{clients} clients, {own} against {other}"
        measures += [
            compare(f"time per text, {what}", [1e3 / one.rate for one in loads[own]],
                    [1e3 / one.rate for one in loads[other]], Bar(gate=1.3, target=2.0),
                    [one.cpu for one in loads[own]], [one.cpu for one in loads[other]]),
            compare(f"latency, 99th percentile, {what}", [one.latency(99) for one in loads[own]],
                    [one.latency(99) for one in loads[other]], Bar(gate=1 / 1.2, target=1.0)),
        ]  # fmt: skip
    notes["load of the machine"] = busy
    notes |= {f"version of {name}": version(name) for name in ("sentence-transformers", "fastapi", "uvicorn")}
    notes["servers"] = [row(name, found) for name, found in loads.items()]
    return Outcome(equality=equality, measures=measures, notes=notes)


def in_turn(
    sides: Mapping[str, tuple[Server, dict[str, Any]]], requests: Sequence[Sequence[str]], rounds: int, **spec: Any
) -> tuple[dict[str, list[Load]], str]:
    """Return what all sides do under the same load, one after the other in every round, and the load of the machine.

    Args:
        sides: server, and further fields of a request, by name.
        requests: the texts of each; every round begins with others.
        rounds: of all sides; each begins with another one.
        spec: of `serving_load.Spec`.
    """
    loads: dict[str, list[Load]] = {name: [] for name in sides}
    busy = []
    for i in range(rounds):
        names = [*sides][i % len(sides) :] + [*sides][: i % len(sides)]
        for name in names:
            server, fields = sides[name]
            mixed = [*requests[53 * i :], *requests[: 53 * i]]
            loads[name].append(server.under(mixed, fields, least=2 * spec["clients"], **spec))
            busy.append(os.getloadavg()[0])
    return loads, f"{min(busy):.1f} to {max(busy):.1f}"


def near(vectors: np.ndarray, reference: Any, dtype: str) -> float:
    """Return 1 - the smallest cosine.

    Raises:
        Unequal: it is too small.
    """
    cosine = float(((vectors * reference).sum(-1) / np.linalg.norm(vectors, axis=-1)).min())
    if not cosine >= COSINE[dtype]:
        raise harness.Unequal(f"smallest cosine {cosine:.5f}, {COSINE[dtype]} is needed")
    return 1 - cosine


def compare(
    what: str,
    ours: Sequence[float],
    peer: Sequence[float],
    bar: Bar,
    our_cpu: Sequence[float] = (),
    peer_cpu: Sequence[float] = (),
) -> Measure:
    """Return the ratio of milliseconds over all rounds."""
    pairs = tuple(theirs / own for own, theirs in zip(ours, peer, strict=True))
    return Measure(
        what=what,
        unit="ms",
        ours=statistics.median(ours),
        peer=statistics.median(peer),
        ratio=statistics.median(pairs),
        bar=bar,
        low=min(pairs),
        high=max(pairs),
        cpu_ratio=statistics.median(b / a for a, b in zip(our_cpu, peer_cpu, strict=True)) if our_cpu else None,
        pairs=pairs,
        steady=max(pairs) / min(pairs) <= harness.SPREAD,
    )


def row(name: str, loads: Sequence[Load]) -> dict[str, Any]:
    """Return what a server did in all rounds, as a row of a table."""
    rates = [one.rate for one in loads]
    counts: dict[int, int] = {}
    for one in loads:
        for status, count in one.statuses.items():
            counts[status] = counts.get(status, 0) + count
    return {
        "server": name,
        "texts/s": statistics.median(rates),
        "smallest": min(rates),
        "largest": max(rates),
        "p50 (ms)": statistics.median(one.latency(50) for one in loads),
        "p99 (ms)": statistics.median(one.latency(99) for one in loads),
        "CPU ms per text": statistics.median(one.cpu for one in loads),
        "RSS (MB)": max(one.memory for one in loads),
        "answers": ", ".join(f"{count} × {status}" for status, count in counts.items()),
    }


SETTING = f"{TEXTS} questions of banking77 per request, 12 random Llama layers of width 768, one core for the server"
HALF = ("bfloat16",) if computes(torch.bfloat16, torch.device("cpu")) else ()
BENCHMARKS = [
    Benchmark(
        name=f"serve-{clients}" + ("-bf16" if dtype == "bfloat16" else ""),
        title=f"{clients} clients without pause, {SETTING}, {dtype} on all sides.",
        run=partial(saturated, clients=clients, dtype=dtype, rounds=rounds, warm=warm, seconds=seconds),
    )
    for dtype in ("float32", *HALF)
    for clients, rounds, warm, seconds in ((16, 3, 5, 18), (64, 3, 12, 24))
]
