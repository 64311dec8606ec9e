"""Which sides of the encoding benchmarks are compared, and what the ones outside of torch compute."""

import sys
from pathlib import Path
from types import SimpleNamespace

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import encode_peers
import work


def test_a_graph_is_counted_like_a_model():
    """Batches of 2 rows of 7 and 3 rows of 4: 26 positions."""
    graph = encode_peers.Graph(lambda ids, mask: (ids * mask).sum(-1, keepdim=True).float())
    found = []

    def step():
        for rows, width in ((2, 7), (3, 4)):
            found.append(graph(torch.ones(rows, width, dtype=torch.long), torch.ones(rows, width, dtype=torch.long)))

    counted = work.count(step, tokens=20)
    assert (counted.passes, counted.positions, counted.tokens, counted.gflop) == (2, 26, 20, None)
    assert found[0].tolist() == [[7.0], [7.0]]


def test_operations_outside_of_torch_are_those_of_as_many_positions():
    in_torch = work.Work(gflop=30.0, dtype="float32", passes=2, positions=100)
    found = encode_peers.with_operations(
        {"ours, torch float32": in_torch, "OpenVINO bfloat16 …": work.Work(passes=1, positions=150)}
    )
    assert found["ours, torch float32"] == in_torch
    assert found["OpenVINO bfloat16 …"] == work.Work(gflop=45.0, dtype="bfloat16", passes=1, positions=150)


def test_every_peer_is_compared_in_its_dtype_at_its_default_and_its_best():
    own = ("torch float32", "torch bfloat16", "OpenVINO bfloat16")
    sides = SimpleNamespace(
        ours=dict.fromkeys(own), peers=dict.fromkeys(("torch bfloat16", "ONNX Runtime float32", "OpenVINO bfloat16"))
    )
    chosen = {"torch bfloat16": 32, "ONNX Runtime float32": 8, "OpenVINO bfloat16": 64}
    found = [pair[:2] for pair in encode_peers.pairs_of(sides, chosen, None, None)]
    peers = "in Sentence-Transformers,"
    assert found == [
        ("ours, torch bfloat16", f"torch bfloat16 {peers} 32 rows"),
        ("ours, torch float32", f"ONNX Runtime float32 {peers} 32 rows"),
        ("ours, torch float32", f"ONNX Runtime float32 {peers} 8 rows"),
        ("ours, OpenVINO bfloat16", f"OpenVINO bfloat16 {peers} 32 rows"),
        ("ours, OpenVINO bfloat16", f"OpenVINO bfloat16 {peers} 64 rows"),
        ("ours, torch bfloat16", f"OpenVINO bfloat16 {peers} 64 rows"),
        ("ours, torch bfloat16", f"torch float32 {peers} 32 rows"),
    ]
