"""The rows of an optimiser step of a stage that is resumed in another number of processes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from embrew import assembly
from embrew.recipe import StageConfig
from embrew.training.resuming.processes import keep_rows_per_step
from embrew.training.resuming.stage_json import read_stage

JOINT = {"type": "joint", "base": {"type": "contrastive"}}
ON_ONE = {"type": "contrastive", "gather": False}


def kept(
    encoder: Any, objective: dict[str, Any], begun: int, now: int, rows: int, batches: int, **more: Any
) -> tuple[int, int]:
    """Rows per process and batch, and batches per step, of a stage resumed in `now` processes."""
    values = {"name": "one", "objective": objective, "data": {"path": "none"}, **more}
    stage = StageConfig.model_validate(values)
    args: Any = SimpleNamespace(
        world_size=now, per_device_train_batch_size=rows, gradient_accumulation_steps=batches, deepspeed_plugin=None
    )
    keep_rows_per_step(stage, assembly.objective(stage.objective), args, encoder, begun=begun)
    return args.per_device_train_batch_size, args.gradient_accumulation_steps


@pytest.mark.parametrize(
    ("objective", "begun", "now", "rows", "batches", "wanted"),
    [
        ("mntp", 2, 2, 3, 5, (3, 5)),
        ("mntp", 2, 1, 8, 1, (8, 2)),  # 16 rows
        ("mntp", 1, 2, 8, 1, (4, 1)),
        ("mntp", 2, 4, 2, 2, (2, 1)),  # 8 rows
        ("mntp", 4, 3, 6, 1, (4, 2)),  # 24 rows, 8 of each: at most 6 in a batch
        ("mntp", 8, 1, 7, 3, (7, 24)),
        (JOINT, 2, 1, 8, 3, (16, 3)),  # a batch of all processes has the same 16 rows
        (JOINT, 2, 4, 8, 3, (4, 3)),
    ],
    ids=str,
)
def test_a_step_reads_as_many_rows(objective, begun, now, rows, batches, wanted, make_encoder):
    given = {"type": objective} if isinstance(objective, str) else objective
    found = kept(make_encoder(), given, begun, now, rows, batches)
    assert found == wanted
    assert found[0] * found[1] * now == rows * batches * begun


def test_a_global_batch_is_left_alone(make_encoder):
    assert kept(make_encoder(), {"type": "contrastive"}, 2, 4, 2, 1, batch={"size": 8}) == (2, 1)


@pytest.mark.parametrize(
    ("objective", "begun", "now", "rows", "words"),
    [
        ("mntp", 2, 3, 4, "begun in 2 processes and resumed in 3: the 8 rows of a step are not divisible by 3"),
        (JOINT, 1, 4, 2, "the 2 rows of a batch of all processes are not divisible by 4"),
        (ON_ONE, 2, 1, 4, "gather: false compares the texts of one process.*resume in 2 processes"),
        ({**JOINT, "base": ON_ONE}, 2, 1, 4, "gather: false"),
        ({"type": "matryoshka", "base": ON_ONE, "dims": [8, 4]}, 2, 1, 4, "gather: false"),
    ],
    ids=str,
)
def test_refused(objective, begun, now, rows, words, make_encoder):
    given = {"type": objective} if isinstance(objective, str) else objective
    with pytest.raises(ValueError, match=words):
        kept(make_encoder(), given, begun, now, rows, 1)


def test_dropout_is_said(make_encoder, caplog):
    kept(make_encoder(lora={"lora_dropout": 0.1}), {"type": "mntp"}, 2, 1, 4, 1)
    assert "dropout draws other random numbers in 1 processes than in 2" in caplog.text


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [("processes", 0, "processes is not a number of processes"), ("held_out", -1, "held_out is not a number of texts")],
)
def test_a_damaged_number(name, value, words, tmp_path):
    (tmp_path / "stage.json").write_text(
        f'{{"format": 3, "hash": "a", "recipe": {{}}, "arithmetic": {{}}, "content": {{}}, "{name}": {value}}}'
    )
    with pytest.raises(ValueError, match=words):
        read_stage(tmp_path)
