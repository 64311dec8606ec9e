"""The bag-of-words loss against a loop over texts and slots."""

from __future__ import annotations

import pytest
import torch

from embrew.losses import bag_of_words_nll


def case(texts: int = 7) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(texts, 3, 8, generator=generator).requires_grad_()
    weight, bias = torch.randn(20, 8, generator=generator), torch.randn(20, generator=generator)
    targets = torch.full((texts, 4), -1)
    for i in range(texts):
        count = i % 5
        targets[i, :count] = torch.randperm(20, generator=generator)[:count]
    return hidden, targets, weight, bias


def test_against_a_loop():
    hidden, targets, weight, bias = case()
    losses = []
    for states, bag in zip(hidden, targets.tolist(), strict=True):
        bag = [t for t in bag if t >= 0]
        if bag:
            largest = torch.stack([weight @ state + bias for state in states]).amax(0)
            losses.append(torch.stack([-torch.log_softmax(largest, 0)[t] for t in bag]).mean())
    wanted = torch.stack(losses).mean()
    value = bag_of_words_nll(hidden, targets, weight, bias)
    torch.testing.assert_close(value, wanted)
    (found,) = torch.autograd.grad(value, hidden)
    torch.testing.assert_close(found, torch.autograd.grad(wanted, hidden)[0])
    assert (found[0] == 0).all(), "a text without words teaches nothing"


def test_the_head_has_a_gradient_where_it_is_trained():
    hidden, targets, weight, bias = case()
    head = weight.requires_grad_(), bias.requires_grad_()
    found = torch.autograd.grad(bag_of_words_nll(hidden, targets, *head), head)
    log_p = (hidden.detach() @ weight.T + bias).amax(1).log_softmax(-1)
    losses = [-log_p[i][bag[bag >= 0]].mean() for i, bag in enumerate(targets) if (bag >= 0).any()]
    for ours, theirs in zip(found, torch.autograd.grad(torch.stack(losses).mean(), head), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_weights_and_nothing_at_all():
    hidden, targets, weight, bias = case()
    alone = torch.stack([bag_of_words_nll(hidden[i : i + 1], targets[i : i + 1], weight, bias) for i in range(7)])
    weights = torch.arange(7.0)
    value = bag_of_words_nll(hidden, targets, weight, bias, row_weights=weights)
    torch.testing.assert_close(value, (alone * weights).sum())
    assert bag_of_words_nll(hidden, torch.full((7, 1), -1), weight).item() == 0.0


def test_targets_outside_the_vocabulary():
    hidden, targets, weight, _ = case()
    with pytest.raises(ValueError, match="target 20; the vocabulary has 20"):
        bag_of_words_nll(hidden, targets.clamp(max=0).masked_fill(targets == 3, 0) + 20, weight)
    with pytest.raises(ValueError, match="targets of 2 texts for states of 7"):
        bag_of_words_nll(hidden, targets[:2], weight)
