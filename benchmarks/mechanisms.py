"""What embrew's own copies of library code are worth: `python benchmarks/mechanisms.py MODEL`.

One contrastive step (32 NLI triplets, a LoRA of rank 16 on every linear layer, LoRA dropout 0.05) with every mechanism,
and without one of them, interleaved. A mechanism stays where it is worth 1.10 times. The model is a folder, or `nano`;
$EMBREW_DATA names the data.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from harness import SEED, circumstances, interleaved, one_core, origin, table, write

from embrew import Encoder
from embrew.data.datasets import load
from embrew.methods import OBJECTIVES
from embrew.model import adapters
from embrew.model.batching import Cost
from embrew.model.cpu.dropout import Mask
from embrew.model.kernels import use_own_sdpa
from embrew.training.step import TrainStep

LORA = {"r": 16, "lora_alpha": 32, "lora_dropout": 0.05}
ROWS, ROUNDS = 32, 5


def bernoulli(cls: type[Mask], like: torch.Tensor, probability: float) -> Mask:
    """Draw a mask as PyTorch draws it: a random number per element."""
    dropped = torch.empty(like.numel(), dtype=torch.bool).bernoulli_(probability)
    return cls(dropped.nonzero().view(-1))


class One(Cost):
    """A cost by which all rows are one forward pass."""

    @classmethod
    def for_layers(cls, *_: Any, **__: Any) -> Cost:
        """Return a cost whose passes are dear."""
        return Cost(overhead=1e9)


def apart() -> Any:
    """Compute rows in groups of similar length, padded."""
    return patch("embrew.model.forward.can_pack", lambda *_: False)


@contextmanager
def alone() -> Iterator[None]:
    """Compute all rows in one padded pass."""
    with apart(), patch("embrew.model.forward.Cost", One):
        yield


PATCHES: dict[str, Callable[[], Any]] = {
    "own LoRA layers": lambda: patch.object(adapters, "use_lora_linear", lambda model: None),
    "fast dropout": lambda: patch.object(Mask, "draw", classmethod(bernoulli)),
    "own sdpa, and packed rows, which need it": lambda: patch(
        "embrew.model.kernels.use_two_calls", lambda inner: False
    ),
    "packed rows": apart,
    "packed rows, and groups by length": alone,
}


def rows() -> list[dict[str, Any]]:
    """Return NLI triplets."""
    found = load(Path(os.environ["EMBREW_DATA"]) / "nli_triplets", kind="pairs", max_rows=ROWS)
    return [{**row, "instruction": None} for row in found]


def without(name: str) -> AbstractContextManager[Any]:
    """Return a context within which a mechanism is off."""
    return PATCHES[name]() if name in PATCHES else nullcontext()


def step_of(model: str, name: str) -> Callable[[], None]:
    """Return a training step."""
    with without(name):
        encoder = Encoder.from_pretrained(model, pooling="mean", dtype="float32", device="cpu", max_length=128)
        torch.manual_seed(SEED)
        encoder.backbone.add_lora(LORA)
        use_own_sdpa(encoder.backbone.inner)
    objective: Any = OBJECTIVES["contrastive"]()
    step = TrainStep(encoder.train(), objective)
    batch = objective.collate(rows(), encoder, seed=SEED)

    def run() -> None:
        with without(name), torch.autocast("cpu", torch.bfloat16):
            loss = step(**batch)["loss"]
        with without(name):
            loss.backward()
        step.zero_grad(set_to_none=True)

    return run


def main() -> None:
    """Measure and write a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    model = parser.parse_args().model
    one_core()
    names = ["all of them", *PATCHES]
    found = interleaved({name: step_of(model, name) for name in names}, ROUNDS)
    base = median(found["all of them"])
    cells = [[name, f"{median(some):.2f}", f"{median(some) / base:.2f}"] for name, some in found.items()]
    label = Path(model).name
    lines = [f"# CPU seconds of a contrastive step of {label}, with all mechanisms and without one", ""]
    lines += table(["without", "median seconds", "ratio"], cells)
    around = circumstances(f"python benchmarks/mechanisms.py {label}")
    write(f"mechanisms-{label}", [*lines, "", *origin(around)], {**around, "found": found})


if __name__ == "__main__":
    main()
