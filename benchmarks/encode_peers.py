"""Encoding beside what a user would choose: Sentence-Transformers in torch, ONNX Runtime and OpenVINO, in both dtypes.

Sentence-Transformers' own backends for the two runtimes cannot be installed beside this project's transformers:
optimum-onnx 0.1.0 requires transformers < 4.58, and optimum-intel 2.2.0 requires transformers < 5.6. The peer is
therefore its `encode`, which tokenises, sorts and batches as always, around our exported graph in the plain runtime.
That graph includes pooling and normalisation, which its backends compute in torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import harness
import numpy as np
import torch
from encode import BATCH_TOKENS, COSINE, SETTING, encoder, folder, require_same_vectors, stock, texts_of
from harness import Bar, Benchmark, Outcome, Work
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from embrew.export.exporting import export_encoder
from embrew.runtimes.folder import GRAPH, open_openvino
from embrew.runtimes.openvino import Program
from embrew.storage.base_model import computes

DEFAULT = 32  # rows per batch, Sentence-Transformers' default
ROW_BATCHES = (8, 16, 32, 64)
PEER_COSINE = 0.99  # smallest allowed of a peer in bfloat16; ours is held to COSINE
Encode = Callable[[], np.ndarray]
Run = Callable[[Tensor, Tensor], Tensor]


# ---- graphs of other runtimes --------------------------------------------------------------------------------------


class Graph(nn.Module):
    """An exported graph as a model of one layer, so that its batches and their positions are counted as of others."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.layers = nn.ModuleList([_Layer(run)])

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the vectors of a batch."""
        vectors: Tensor = self.layers[0](ids[..., None], mask)
        return vectors


class _Layer(nn.Module):
    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.run(ids[..., 0], mask)


def onnx_runtime(file: Path) -> Run:
    """Return a graph in ONNX Runtime, on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def run(ids: Tensor, mask: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {"input_ids": ids.numpy(), "attention_mask": mask.numpy()})[0])

    return run


def around(graph: Graph) -> SentenceTransformer:
    """Return Sentence-Transformers, with a graph in place of its modules."""
    peer = stock()

    def forward(features: dict[str, Tensor], **_: Any) -> dict[str, Tensor]:
        return {"sentence_embedding": graph(features["input_ids"], features["attention_mask"])}

    peer.forward = forward  # type: ignore[method-assign, assignment]
    return peer


def rows_to_vectors(peer: SentenceTransformer, texts: list[str]) -> Callable[[int], np.ndarray]:
    """Return its `encode` as a function of rows per batch."""
    return lambda rows: peer.encode(texts, batch_size=rows)


# ---- the sides -----------------------------------------------------------------------------------------------------


class Sides:
    """Every way to encode the same texts.

    Attributes:
        ours: by runtime and dtype.
        peers: the same, from rows per batch to vectors.
    """

    def __init__(self, texts: list[str]) -> None:
        half = computes(torch.bfloat16, torch.device("cpu"))
        dtypes = ["float32", "bfloat16"] if half else ["float32"]
        self.ours: dict[str, Encode] = {}
        self.peers: dict[str, Callable[[int], np.ndarray]] = {}
        for dtype in dtypes:
            ours = encoder(dtype=dtype)
            self.ours[f"torch {dtype}"] = partial(ours.encode, texts, batch_tokens=BATCH_TOKENS)
            self.peers[f"torch {dtype}"] = rows_to_vectors(stock(dtype), texts)
        if find_spec("onnxruntime") and find_spec("onnxscript"):
            export_encoder(encoder(), folder() / "onnx", runtimes=["onnx"], verify="off")
            graph = Graph(onnx_runtime(folder() / "onnx/onnx/model.onnx"))
            self.peers["ONNX Runtime float32"] = rows_to_vectors(around(graph), texts)
        if find_spec("openvino"):
            export_encoder(encoder(), folder() / "openvino", runtimes=["openvino"], verify="off")
            for dtype in dtypes:
                graph = Graph(Program(folder() / "openvino" / GRAPH, bfloat16=dtype == "bfloat16"))
                self.peers[f"OpenVINO {dtype}"] = rows_to_vectors(around(graph), texts)
                own = open_openvino(folder() / "openvino", dtype=dtype)
                own.program = Graph(own.program)  # type: ignore[assignment]
                self.ours[f"OpenVINO {dtype}"] = partial(own.encode, texts, batch_tokens=BATCH_TOKENS)

    def require_equal(self) -> dict[str, float]:
        """Compare all vectors: float32 by the largest difference, bfloat16 by the smallest cosine.

        Raises:
            Unequal: a side is further from ours in float32 than allowed.
        """
        reference = self.ours["torch float32"]()
        found: dict[str, float] = {}
        both = [("ours", self.ours), ("peer", {name: partial(run, DEFAULT) for name, run in self.peers.items()})]
        for who, sides in both:
            for name, run in sides.items():
                vectors = np.asarray(run(), dtype=np.float32)
                if name.endswith("float32"):
                    found[f"{who}, {name}, largest difference"] = require_same_vectors(reference, vectors)
                    continue
                cosines = (vectors * reference).sum(-1) / np.linalg.norm(vectors, axis=-1)
                least = COSINE if who == "ours" else PEER_COSINE
                if not cosines.min() >= least:
                    raise harness.Unequal(f"{who}, {name}: smallest cosine {cosines.min():.5f}, {least} is needed")
                found[f"{who}, {name}, 1 - smallest cosine"] = float(1 - cosines.min())
        return found


# ---- the measurement -----------------------------------------------------------------------------------------------


def compare(benchmark: Benchmark, *, lengths: str, count: int, default: Bar, best: Bar, rounds: int) -> Outcome:
    """Time all sides in turn: peers at their default batch and at the best of four."""
    texts = texts_of(lengths)[:count]
    sides = Sides(texts)
    equality = sides.require_equal()
    alone = {
        name: {rows: harness.sample(partial(run, rows)).wall for rows in ROW_BATCHES}
        for name, run in sides.peers.items()
    }
    chosen = {name: min(seconds, key=seconds.__getitem__) for name, seconds in alone.items()}
    steps: dict[str, Encode] = {f"ours, {name}": run for name, run in sides.ours.items()}
    for name, run in sides.peers.items():
        steps |= {peer_name(name, rows): partial(run, rows) for rows in (DEFAULT, chosen[name])}
    compared = pairs_of(sides, chosen, default, best)
    tokens = sum(len(row.ids) for row in encoder().template.rows(texts))
    same = dict.fromkeys(steps, tokens)
    turns = harness.take_turns(steps, [pair[:2] for pair in compared], rounds=rounds, tokens=same)
    turns = replace(turns, work=with_operations(turns.work))
    installed = ["sentence-transformers", *(name for name in ("onnxruntime", "openvino") if find_spec(name))]
    notes: dict[str, Any] = {f"version of {name}": version(name) for name in installed}
    notes["seconds of each peer alone, by rows per batch"] = [
        {"peer": name, **{str(rows): seconds for rows, seconds in found.items()}} for name, found in alone.items()
    ]
    return Outcome(
        equality=equality,
        measures=[turns.measure(f"{ours} against {peer}", ours, peer, bar, "s") for ours, peer, bar in compared],
        notes=notes,
    )


def peer_name(name: str, rows: int) -> str:
    """A peer at a number of rows per batch."""
    return f"{name} in Sentence-Transformers, {rows} rows"


def pairs_of(sides: Sides, chosen: Mapping[str, int], default: Bar, best: Bar) -> Sequence[tuple[str, str, Bar]]:
    """Return what is compared: ours with each peer in the same dtype.

    A peer in another runtime is compared with ours in that runtime, at its default and its best, and its best with ours
    in torch.
    """
    pairs = []
    for name in sides.peers:
        in_torch = f"torch {name.rsplit(' ', 1)[1]}"
        ours = name if name in sides.ours else in_torch
        pairs.append((f"ours, {ours}", peer_name(name, DEFAULT), default))
        if chosen[name] != DEFAULT:
            pairs.append((f"ours, {ours}", peer_name(name, chosen[name]), best))
        if ours != in_torch:
            pairs.append((f"ours, {in_torch}", peer_name(name, chosen[name]), best))
    if "torch bfloat16" in sides.ours:
        pairs.append(("ours, torch bfloat16", peer_name("torch float32", DEFAULT), Bar(gate=1.1, target=1.3)))
    return pairs


def with_operations(work: Mapping[str, Work]) -> dict[str, Work]:
    """Return the work of all sides, where a position costs those outside of torch as many operations as in torch."""
    known = work["ours, torch float32"]
    assert known.gflop is not None
    assert known.positions is not None
    each = known.gflop / known.positions
    return {
        name: one
        if one.gflop
        else replace(one, gflop=each * (one.positions or 0), dtype="bfloat16" if "bfloat16" in name else "float32")
        for name, one in work.items()
    }


LOGNORMAL = "128 texts of lognormal lengths, token budgets against Sentence-Transformers' rows"
SHORT = "256 texts of 4 to 19 words, where there is little padding to save"
BENCHMARKS = tuple(
    Benchmark(
        name=f"encode-{lengths}",
        title=f"{title}: {SETTING}.",
        run=partial(compare, lengths=lengths, count=count, default=default, best=best, rounds=5),
    )
    for lengths, title, count, default, best in (
        ("lognormal", LOGNORMAL, 128, Bar(gate=1.3, target=1.5), Bar(gate=0.95, target=1.05)),
        ("short", SHORT, 256, Bar(gate=0.93, target=1.0), Bar(gate=0.93, target=1.0)),
    )
)
