"""How often the host waits for the device in an optimiser step, counted on a pretended device."""

import pytest
import torch

from embrew import build
from embrew.losses import dependencies
from embrew.training.finite import check_finite
from embrew.training.gradcache import Chunks
from embrew.training.step import TrainStep
from tests.objectives.cases import ENCODERS, LORA, SETTINGS, prepared
from tests.pretend_device import DEVICE, There, counted, move

MOST = 2  # per optimiser step; one is the check whether its losses are finite
EVERY = [(f"{name}-{i}", name, settings) for name, several in SETTINGS.items() for i, settings in enumerate(several)]
ALWAYS = {
    "alignment-0",
    "alignment-2",
    "angle-0",
    "bottleneck-0",
    "compression-2",
    "epic-1",
    "icl-1",
    "llama2vec-0",
    "mntp-0",
}
CASES = [
    pytest.param(name, settings, id=i, marks=[] if i in ALWAYS else [pytest.mark.slow]) for i, name, settings in EVERY
]


def counts_of_a_step(make_encoder, name, settings, chunks=None):
    """The waits in the loss and the backward pass of a batch, by kind."""
    encoder = make_encoder(lora=LORA, **ENCODERS.get(name, {}))
    objective = build.objective({"type": name, **settings})
    objective.setup(encoder)
    batch = objective.collate(prepared(objective, encoder), encoder)
    step = TrainStep(encoder, objective, chunks).train()
    move(step)
    with counted():  # what is measured once per process, such as whether a model follows its attention pattern
        step(**batch)
    with counted() as waits:
        loss = step(**batch, progress=0.3)["loss"]
        loss.backward()
        check_finite([loss.detach()], step=1)
    assert loss.device == DEVICE and waits.operations > 100
    return waits.counts


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_a_step_waits_at_most_twice(make_encoder, name, settings):
    counts = counts_of_a_step(make_encoder, name, settings)
    assert counts.total() <= MOST, counts


@pytest.mark.parametrize("tolerance", [1e9, None])
def test_subspaces_of_all_layers_wait_together(make_encoder, monkeypatch, tolerance):
    """Where the first round is enough, and where none is, and all layers are solved exactly."""
    monkeypatch.setattr(dependencies, "OVERSAMPLING", 4)
    monkeypatch.setattr(dependencies, "TOLERANCE", tolerance or 0.0)
    counts = counts_of_a_step(make_encoder, "espresso", SETTINGS["espresso"][0])
    assert counts.total() == (MOST if tolerance else MOST + 1), counts


@pytest.mark.parametrize("name", ["contrastive", pytest.param("epic", marks=pytest.mark.slow)])
def test_a_step_with_gradient_caching_waits_at_most_twice(make_encoder, name):
    settings = next(settings for i, of, settings in EVERY if of == name)
    assert counts_of_a_step(make_encoder, name, settings, Chunks(rows=2)).total() <= MOST


WAYS = {
    "item": lambda x: x.sum().item(),
    "a decision": lambda x: bool((x > 0).any()),
    "float": lambda x: float(x.sum()),
    "a list": lambda x: x.tolist(),
    "a copy": lambda x: x.cpu(),
    "a copy that is not blocking": lambda x: x.to("cpu", non_blocking=True),
    "a mask": lambda x: x[x > 0],
    "a mask that is written": lambda x: x.index_put_((x > 0,), torch.zeros((), device=x.device)),
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 0),
    "masked_select": lambda x: x.masked_select(x > 0),
    "equal": lambda x: torch.equal(x, x),
    "unique": lambda x: x.unique(),
    "a solver": lambda x: torch.linalg.eigh(x),
    "an upload": lambda x: torch.ones(3).to(x.device),
    "a constructor": lambda x: torch.tensor([1, 2], device=x.device),
    "an index from the CPU": lambda x: x[torch.tensor([0, 1])],
    "a list as an index": lambda x: x[[0, 1]],
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_wait_is_counted(way):
    x = There(torch.eye(3))
    with counted() as waits:
        (x @ x).relu().sum(), x[0], x[:, 1:], torch.zeros(3, device=x.device) + 1.0
        torch.ones(3).to(x.device, non_blocking=True)
        assert waits.total == 0
        WAYS[way](x)
    assert waits.total == 1, waits.counts


def test_a_tensor_on_the_cpu_is_refused_as_an_operand():
    with counted(), pytest.raises(RuntimeError, match="same device"):
        There(torch.eye(3)) + torch.eye(3)
