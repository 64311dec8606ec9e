"""One side of `steps.py`: train a stage, or encode and evaluate, one measured turn at a time.

Runs under the source of one commit (PYTHONPATH). Reads commands from standard input, one per turn, and writes one line
of JSON per turn. A training turn is some optimiser steps of the real trainer, with its data, schedule and logging.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from embrew.threads import set_threads

set_threads()  # as the command line does, before torch is imported

import torch  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402
from transformers import TrainerCallback  # noqa: E402

TURN = "turn"
COUNT = "count"
ROWS = 2_000  # of each data set, so that a worker starts soon


class Stopwatch:
    """Answers commands: times what happens between two calls of `next`."""

    def __init__(self) -> None:
        self.begun: tuple[float, float] | None = None
        self.counter: FlopCounterMode | None = None

    def next(self) -> bool:
        """Report the turn that ends here, and wait for the next command; return False if there is none."""
        answer: dict[str, float] = {}
        if self.begun is not None:
            answer = {"wall": time.perf_counter() - self.begun[0], "cpu": time.process_time() - self.begun[1]}
        if self.counter is not None:
            self.counter.__exit__(None, None, None)
            answer["gflop"] = self.counter.get_total_flops() / 1e9
            self.counter = None
        print(json.dumps(answer), file=sys.__stdout__, flush=True)
        command = sys.stdin.readline().strip()
        if command == COUNT:
            self.counter = FlopCounterMode(display=False)
            self.counter.__enter__()
        self.begun = time.perf_counter(), time.process_time()
        return bool(command)


class Turns(TrainerCallback):
    """Stops the trainer before every `steps`-th step until the next command."""

    def __init__(self, watch: Stopwatch, steps: int) -> None:
        self.watch, self.steps = watch, steps

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Report and wait."""
        if state.global_step % self.steps == 0 and not self.watch.next():
            os._exit(0)


def train(recipe_name: str, stage: str, overrides: list[str], folder: Path, steps: int) -> None:
    """Train one stage of a recipe, from its language model, until the commands end."""
    from embrew.recipe import Recipe
    from embrew.training.stages import train as run
    from embrew.training.trainer import StageTrainer

    whole = Recipe.load(recipe_name, overrides)
    chosen = next(found for found in whole.stages if found.name == stage)
    training = {**chosen.training, "max_steps": 100_000, "save_strategy": "no", "disable_tqdm": True}
    rows = [config.model_copy(update={"max_rows": min(config.max_rows or ROWS, ROWS)}) for config in chosen.datasets]
    chosen = chosen.model_copy(update={"training": training, "data": rows})
    recipe = whole.model_copy(update={"stages": [chosen]})
    watch, original = Stopwatch(), StageTrainer.__init__

    def gated(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.add_callback(Turns(watch, steps))

    StageTrainer.__init__ = gated  # type: ignore[method-assign]
    run(recipe, folder, verify="off")


def encode(model: str, kind: str) -> None:
    """Encode texts with an encoder opened as `embrew encode` and `embrew evaluate` open it."""
    import random

    from embrew.opening import open_model

    how: dict[str, Any] = {}
    if "pooling" in signature(open_model).parameters:  # earlier commits read a language model at its last token
        from embrew.opening import is_bare

        how = {"pooling": "last"} if is_bare(model) else {}
    encoder: Any = open_model(model, **how)
    draw = random.Random(0)
    words = ["the", "lake", "is", "deep", "and", "water", "cold", "while", "people", "walk", "along", "a", "shore"]
    if kind == "short":
        lengths = [draw.randint(4, 14) for _ in range(512)]
    else:
        lengths = [min(int(draw.lognormvariate(3.5, 1.0)) + 2, 400) for _ in range(128)]
    texts = [" ".join(draw.choices(words, k=length)) for length in lengths]
    repeat(lambda: encoder.encode(texts))


def evaluate(model: str, suite: str) -> None:
    """Evaluate a saved encoder on a suite, as `embrew evaluate` of the commit does."""
    from embrew.evaluation import evaluate as run
    from embrew.evaluation.suites import read_suite
    from embrew.opening import open_model

    how: dict[str, Any] = {"as_trained": True} if "as_trained" in signature(open_model).parameters else {}
    encoder: Any = open_model(model, **how)
    tasks = read_suite(suite)
    repeat(lambda: run(encoder, tasks))


def repeat(step: Callable[[], Any]) -> None:
    """Run a step once per command."""
    watch = Stopwatch()
    while watch.next():
        step()


def main() -> None:
    """Read the workload, a JSON object, from the first argument."""
    work = json.loads(sys.argv[1])
    sys.stdout = sys.stderr  # standard output holds answers only
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    if work["kind"] == "train":
        train(work["recipe"], work["stage"], work["overrides"], Path(work["folder"]), work["steps"])
    elif work["kind"] == "encode":
        encode(work["model"], work["texts"])
    else:
        evaluate(work["model"], work["suite"])


if __name__ == "__main__":
    main()
