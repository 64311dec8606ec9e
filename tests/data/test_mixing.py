"""Shares, and the order that rows of several data sets are read in."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embrew.data.mixing import MixedOrder, shares
from embrew.recipe import build
from embrew.recipe.stage import MixConfig, StageConfig


def owner(row: int, sizes: list[int]) -> int:
    return int(np.searchsorted(np.cumsum(sizes), row, side="right"))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(4, 60), min_size=2, max_size=4), st.integers(1, 4), st.integers(0, 3))
def test_a_block_is_of_one_data_set_and_has_no_row_twice(sizes, block, epoch):
    order = MixedOrder(sizes, shares(sizes), block=block, seed=7)
    order.set_epoch(epoch)
    rows = list(order)
    assert len(rows) == len(order) == sum(sizes) // block * block
    assert min(rows) >= 0 and max(rows) < sum(sizes)
    for group in np.array(rows).reshape(-1, block).tolist():
        assert len({owner(row, sizes) for row in group}) == 1
        assert len(set(group)) == block
    assert list(order) == rows, "the same epoch is the same order"
    order.set_epoch(epoch + 1)
    assert len(rows) < 8 or list(order) != rows


def test_no_row_comes_again_before_its_data_set_is_through():
    order = MixedOrder([12, 400], [0.9, 0.1], block=4, seed=1)
    small = [row for row in order if row < 12]
    assert len(small) > 100
    for start in range(0, len(small) - 12, 12):
        assert sorted(small[start : start + 12]) == list(range(12))


def test_rows_come_as_often_as_their_share_says():
    sizes = [1000, 9000]
    for probabilities in (shares(sizes), shares(sizes, temperature=0.0), shares(sizes, weights=[3.0, 1.0])):
        order = MixedOrder(sizes, probabilities, block=1, seed=0)
        found = np.mean([row < 1000 for row in order])
        assert found == pytest.approx(probabilities[0], abs=0.02)


def test_shares_by_temperature():
    assert shares([100, 400], temperature=0.5) == pytest.approx([1 / 3, 2 / 3])
    with pytest.raises(ValueError, match="positive weight"):
        shares([1, 2], weights=[1.0, 0.0])


def test_a_data_set_smaller_than_a_batch():
    with pytest.raises(ValueError, match=r"3 rows does not fill a batch of 4.*mix.batches: mixed"):
        MixedOrder([10, 3], [0.5, 0.5], block=4, seed=0)
    assert len(list(islice(MixedOrder([10, 3], [0.5, 0.5], block=1, seed=0), 13))) == 13


def test_a_ratio_is_a_share_of_a_sets_rows():
    stage = StageConfig.model_validate(
        {
            "name": "one",
            "objective": {"type": "contrastive"},
            "data": [{"path": "a", "ratio": 0.1}, {"path": "b"}, {"path": "c", "ratio": 0.5}],
            "batch": {"size": 2},
        }
    )
    order = build.order(stage, [300, 30, 80], build.objective(stage.objective), seed=1)
    assert order is not None and order.block == 2
    assert order.probabilities == pytest.approx([0.3, 0.3, 0.4])
    mixed = stage.model_copy(update={"mix": MixConfig(batches="mixed")})
    assert build.order(mixed, [300, 30, 80], build.objective(stage.objective), seed=1).block == 1
