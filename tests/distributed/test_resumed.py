"""A stage that is resumed in another number of processes reads the same rows and learns the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embrew.encoder import Encoder
from tests.conftest import SENTENCES
from tests.distributed import resumed
from tests.distributed.launch import in_forks
from tests.distributed.resumed import CASES, ROWS, SAVED, STEPS
from tests.distributed.test_runs import trained

MODULE = "tests.distributed.resumed"


@pytest.fixture(scope="module")
def folder(model_folder, tmp_path_factory) -> Path:
    """With stages that one and two processes have begun, and stages that others have resumed."""
    place = tmp_path_factory.mktemp("resumed")
    shutil.copytree(model_folder("llama"), place / "llama")
    resumed.write_data(place)
    for processes, begun in [(1, 0), (2, 0), (1, 2), (2, 1), (4, 2)]:
        in_forks(processes, MODULE, str(place), str(begun), timeout=2400)
    return place


def read(out: Path, processes: int) -> tuple[list[list[str]], dict[str, float]]:
    """Rows of the batches of all processes together, in the order of steps, and losses by step."""
    found = [json.loads((out.parent / f"{out.name}-{rank}.json").read_text()) for rank in range(processes)]
    batches = [[row for part in parts for row in part] for parts in zip(*(one["rows"] for one in found), strict=False)]
    return batches, found[0]["losses"]


def steps(batches: list[list[str]], rows: int) -> list[set[str]]:
    """The rows of each step, when each step has read that many."""
    flat = [row for batch in batches for row in batch]
    return [set(flat[start : start + rows]) for start in range(0, len(flat), rows)]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("begun", "before", "now", "mode"),
    [
        *((2, before, 1, "ddp") for before in ("ddp", "fsdp2")),
        *((1, "ddp", 2, mode) for mode in ("ddp", "fsdp2")),
        *((2, mode, 4, mode) for mode in ("ddp", "fsdp2")),
    ],
)
def test_another_number_of_processes(begun: int, before: str, now: int, mode: str, case: str, folder: Path) -> None:
    """The rows of every step, its loss, the trained weights and the vectors of the saved folder."""
    out = folder / f"{begun}-{before}" / case
    stage: dict[str, Any] = CASES[case][0]
    training = stage.get("training", {})
    per_step = training["per_device_train_batch_size"] * begun if training else stage["batch"]["size"]
    per_step *= training.get("gradient_accumulation_steps", 1)
    batches, losses = read(out / "whole", begun)
    wanted = steps(batches, per_step)[:STEPS]
    epoch = ROWS // per_step
    assert set.union(*wanted[:epoch]) == {str(i) for i in range(ROWS)}, "each row once in an epoch"
    again = out / f"resumed-{now}-{mode}"
    batches, after = read(again, now)
    assert steps(batches, per_step)[: STEPS - SAVED] == wanted[SAVED:]
    assert list(after) == [str(step) for step in range(SAVED + 1, STEPS + 1)]
    assert [losses[step] for step in after] == pytest.approx(list(after.values()), abs=1e-5, rel=1e-5)
    one, other = trained(out / "whole" / "one"), trained(again / "one")
    assert one.keys() == other.keys() and len(one) > 10
    assert max(float((one[name] - other[name]).abs().max()) for name in one) <= 1e-5
    vectors = [Encoder.from_pretrained(place).encode(SENTENCES) for place in (out / "whole", again)]
    np.testing.assert_allclose(*vectors, atol=1e-4)
