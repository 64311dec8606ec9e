"""Pooling by hand."""

from typing import get_args

import pytest
import torch

from embrew.model.pooling import pool
from embrew.settings.encoder import MODES, Pooling, PoolingMode
from embrew.text.tokens import Row, Segment, Tokens

P, X, M = int(Segment.PROMPT), int(Segment.TEXT), int(Segment.MEMORY)
TOKENS = Tokens.pad([Row([1, 2, 3, 4], [P, X, X, M]), Row([1, 4], [P, M])])
STATES = torch.tensor([[[1.0], [2.0], [4.0], [8.0]], [[1.0], [8.0], [99.0], [99.0]]])  # 99: padding, never read


BY_HAND = [
    ("cls", "all", [1, 1]),
    ("last", "all", [8, 8]),
    ("last", "text", [4, 0]),
    ("mean", "all", [15 / 4, 9 / 2]),
    ("mean", "text", [3, 0]),
    ("mean", "memory", [8, 8]),
    ("weighted_mean", "all", [(1 + 2 * 2 + 3 * 4 + 4 * 8) / 10, (1 + 2 * 8) / 3]),
    ("weighted_mean", "text", [(2 + 2 * 4) / 3, 0]),
]


def test_every_mode_is_worked_by_hand():
    assert {mode for mode, _, _ in BY_HAND} | {"concat"} == set(MODES) == set(get_args(PoolingMode))


@pytest.mark.parametrize(("mode", "over", "wanted"), BY_HAND)
def test_by_hand(mode, over, wanted):
    pooled = pool(Pooling(mode, over), STATES, TOKENS)  # type: ignore[arg-type]
    assert torch.allclose(pooled[:, 0], torch.tensor(wanted, dtype=torch.float32))


def test_chosen_memory_tokens_by_hand():
    tokens = Tokens.pad([Row([1, 7, 8, 9, 2], [P, M, M, M, P]), Row([7, 8, 9], [M, M, M])])
    states = torch.tensor([[[1.0], [2.0], [4.0], [8.0], [16.0]], [[32.0], [64.0], [128.0], [99.0], [99.0]]])
    wanted = {(0,): [2, 32], (2,): [8, 128], (0, 2): [(2 + 8) / 2, (32 + 128) / 2], (2, 1): [6, 96]}
    for slots, values in wanted.items():
        assert pool(Pooling("mean", "memory", slots=slots), states, tokens)[:, 0].tolist() == values
    assert pool(Pooling("last", "memory", slots=(0, 1)), states, tokens)[:, 0].tolist() == [4, 64]
    every = pool(Pooling("mean", "memory", slots=(0, 1, 2)), states, tokens)
    assert torch.equal(every, pool(Pooling("mean", "memory"), states, tokens))
    with pytest.raises(ValueError, match="slots choose among memory tokens"):
        Pooling("mean", "text", slots=(0,))


def test_concatenated_memory_tokens_by_hand():
    tokens = Tokens.pad([Row([1, 5, 7, 8], [P, X, M, M]), Row([1, 7, 8], [P, M, M])])
    states = torch.arange(16.0).view(2, 4, 2)
    pooling = Pooling("concat", "memory")
    assert pool(pooling, states, tokens).tolist() == [[4, 5, 6, 7], [10, 11, 12, 13]]
    assert pooling.dimensions(2, 2) == 4
    second = Pooling("concat", "memory", slots=(1,))
    assert pool(second, states, tokens).tolist() == [[6, 7], [12, 13]]
    assert second.dimensions(2, 2) == 2
    assert pool(pooling, states.bfloat16(), tokens).dtype == torch.float32
    for over in ("all", "text"):
        with pytest.raises(ValueError, match="it pools over 'memory' only"):
            Pooling("concat", over)  # type: ignore[arg-type]


def test_unknown_names():
    with pytest.raises(ValueError, match=f"choose from {', '.join(MODES)}$"):
        Pooling("max")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="choose from all, text, echo, memory"):
        Pooling("mean", "prompt")  # type: ignore[arg-type]
