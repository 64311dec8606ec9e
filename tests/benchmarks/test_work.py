"""What a ratio is made of: operations, passes and rates by hand."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import harness
import work


class Model(nn.Module):
    """Two linear layers of width 8 and a head of 50 words."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(2))
        self.head = nn.Linear(8, 50, bias=False)

    def forward(self, ids, scored):
        states = self.words(ids)
        for layer in self.layers:
            states = layer(states)
        return self.head(states[:, :scored])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_forward_pass_by_hand(dtype):
    """3 rows of 5: 2·15·8² for each of two layers, 2·(3·2)·8·50 for the head."""
    model, ids = Model().to(dtype), torch.zeros(3, 5, dtype=torch.long)
    with torch.inference_mode():
        found = work.count(lambda: model(ids, 2), tokens=11)
    assert found == work.Work(
        gflop=(2 * 2 * 15 * 64 + 2 * 6 * 8 * 50) / 1e9,
        dtype=str(dtype).removeprefix("torch."),
        passes=1,
        positions=15,
        tokens=11,
        head_rows=6,
    )


def test_a_backward_pass_adds_products_and_no_rows_to_the_head():
    """Behind the scored rows 2 of 5, weights and inputs: twice the forward pass, less the gradient of the words' layer.

    The first layer's input is the embedding, which is trained too, so that nothing is left out.
    """
    model, ids = Model(), torch.zeros(3, 5, dtype=torch.long)
    found = work.count(lambda: model(ids, 2).sum().backward())
    assert found.gflop == 3 * (2 * 2 * 15 * 64 + 2 * 6 * 8 * 50) / 1e9
    assert found.head_rows == 6


def test_what_runs_outside_of_torch_has_no_counts():
    assert work.count(lambda: sum(range(10))) == work.Work()


def test_rate_and_share_of_the_ceiling():
    """30 GFLOP in 0.5 s are 60 GFLOP/s, which is 3/4 of 80."""
    done = work.Work(gflop=30.0, dtype="float32", passes=2, positions=1200, tokens=1000, head_rows=300)
    measure = harness.Measure(
        what="time", unit="ms", ours=500.0, peer=1000.0, ratio=2.0, bar=harness.Bar(gate=1, target=1),
        work=(done, work.Work()),
    )  # fmt: skip
    made = measure.made_of({"float32": 80.0, "bfloat16": 160.0})
    assert list(made) == ["ours"]
    assert (made["ours"]["gflop_per_s"], made["ours"]["share_of_ceiling"]) == (60.0, 0.75)
    assert work.in_words(made["ours"]) == (
        "30 GFLOP in float32; 2 forward passes, 1,200 positions for 1,000 tokens; 300 rows to the head; 60 GFLOP/s, "
        "75 % of the ceiling"
    )


def test_sides_are_taken_in_turn_and_once_more_where_a_compared_pair_disagrees(monkeypatch):
    seconds = {"a": iter([1.0, 1.0, 4.0] + [1.0] * 3), "b": iter([2.0] * 6), "c": iter([5.0, 0.1, 5.0] * 2)}
    called = []

    def sample(step, repeat):
        name = step()
        called.append(name)
        return harness.Sample(next(seconds[name]), 1.0)

    monkeypatch.setattr(harness, "sample", sample)
    sides = {name: (lambda name=name: name) for name in seconds}
    turns = harness.take_turns(sides, [("a", "b")], rounds=3)
    assert called == ["a", "b", "c"] * 6  # 2, 2 and 0.5 spread by 4: all rounds once more
    found = turns.measure("time", "a", "b", harness.Bar(gate=1, target=1), "s")
    assert (found.ratio, found.ours, found.peer, found.steady) == (2.0, 1.0, 2.0, True)
    assert not turns.measure("time", "a", "c", harness.Bar(gate=1, target=1), "s").steady
