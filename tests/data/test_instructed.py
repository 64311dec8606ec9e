"""Several instructions of a data set: one for each batch, the same in every process and after resuming."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from typing import Any

import pytest
from accelerate.data_loader import BatchSamplerShard
from datasets import Dataset
from torch.utils.data import BatchSampler

from embrew.data.mixing import InstructedRows, MixedOrder
from embrew.recipe import Recipe, StageConfig, build
from embrew.training.trainer import StageTrainer
from tests.distributed.runs import recipe as tiny
from tests.distributed.runs import train_counted, write_data

SIZES = [8, 12, 20]
WORDINGS = [["a0", "a1", "a2"], [], ["c0", "c1"]]


def rows_of() -> Dataset:
    """Three data sets; documents of the last have an instruction too."""
    rows = [
        {
            "query": f"{name}{i}",
            "instruction": f"{name} own",
            "document_instruction": "c own" if name == "c" else None,
        }
        for name, size in zip("abc", SIZES, strict=True)
        for i in range(size)
    ]
    return Dataset.from_list(rows)


def order_of(seed: int = 7, block: int = 4, wordings: Any = WORDINGS) -> MixedOrder:
    return MixedOrder(SIZES, [0.4, 0.3, 0.3], block=block, seed=seed, instructions=wordings)


def epochs(order: MixedOrder, count: int = 20) -> list[list[dict[str, Any]]]:
    """Batches of some epochs, as a data loader reads them."""
    rows = InstructedRows(rows_of(), order)
    found = []
    for epoch in range(count):
        order.set_epoch(epoch)
        numbers = list(order)
        assert len(numbers) == len(order) == 40
        found += [rows.__getitems__(numbers[i : i + order.block]) for i in range(0, len(numbers), order.block)]
    return found


def test_a_batch_has_one_and_all_are_drawn():
    """Of its own data set, for documents too; data sets without keep theirs; the rows are those of the plain order."""
    order = order_of(wordings=())
    batches = epochs(order_of())
    seen = Counter[str]()
    for batch in batches:
        name = batch[0]["query"][0]
        (drawn,) = {row["instruction"] for row in batch}
        assert drawn == "b own" if name == "b" else drawn in WORDINGS[ord(name) - ord("a")]
        assert all(row["document_instruction"] == (drawn if name == "c" else None) for row in batch)
        seen[drawn] += 1
    assert set(seen) == {"a0", "a1", "a2", "b own", "c0", "c1"}
    assert 0.15 < seen["a1"] / sum(seen[name] for name in WORDINGS[0]) < 0.55
    queries, plain = rows_of()["query"], []
    for epoch in range(20):
        order.set_epoch(epoch)
        plain += [queries[row] for row in order]
    assert [row["query"] for batch in batches for row in batch] == plain


def test_two_processes_draw_the_same():
    """The two halves of a batch, as accelerate deals them out, have one instruction."""
    halves = []
    for process in range(2):
        order = order_of()
        sampler = BatchSampler(order, batch_size=2, drop_last=False)
        shard = BatchSamplerShard(sampler, num_processes=2, process_index=process)
        rows = InstructedRows(rows_of(), order)
        halves.append([{row["instruction"] for row in rows.__getitems__(batch)} for batch in shard])
    assert len(halves[0]) == 10 and halves[0] == halves[1]
    assert len({tuple(one) for one in halves[0]}) > 2 and all(len(one) == 1 for one in halves[0])


def stage(data: Any, **more: Any) -> StageConfig:
    return StageConfig.model_validate({"name": "s", "objective": {"type": "contrastive"}, "data": data, **more})


def test_what_does_not_go_together(model_folder, tmp_path):
    with pytest.raises(ValueError, match="give instruction, or instructions"):
        stage({"path": "p", "instruction": "x", "instructions": ["y", "z"]})
    with pytest.raises(ValueError, match="instructions"):
        stage({"path": "p", "instructions": ["only one"]})
    both = {"path": "a.jsonl", "instructions": ["x", "y"], "instruct": "both"}
    made: Any = {"data": [both, {"path": "b.jsonl"}], "mix": {"batches": "mixed"}}
    with pytest.raises(ValueError, match="instructions with instruct: both in mixed batches"):
        build.check_stage(tiny(tmp_path, made), 0)
    made["mix"] = {"batches": "one"}
    build.check_stage(tiny(tmp_path, made), 0)
    texts = {"data": {"path": "t.jsonl", "instructions": ["x", "y"]}, "objective": {"type": "compression"}}
    with pytest.raises(ValueError, match="instructions are for pairs, not text rows"):
        build.check_stage(tiny(tmp_path, {**texts, "batch": None}), 0)
    pairs = {"data": {"path": "a.jsonl", "instructions": ["x", "y"]}, "batch": None}
    for variant in ("sigmoid", "log_sigmoid"):  # whose references are computed before wordings are drawn
        aligned = {**pairs, "objective": {"type": "alignment", "variant": variant}}
        with pytest.raises(ValueError, match=f"instructions with objective.variant='{variant}'.*set instruction, or"):
            build.check_stage(tiny(tmp_path, aligned), 0)


def test_a_stage_reads_them_and_resumes(model_folder, tmp_path, monkeypatch):
    """Every batch that is collated has one of its data set's; a resumed run goes on with those of the whole one."""
    shutil.copytree(model_folder("llama"), tmp_path / "llama")
    write_data(tmp_path)
    wordings = {"a": ["find: ", "look: ", "seek: "], "c": ["give: ", "show: "]}
    made: Recipe = tiny(
        tmp_path,
        {
            "data": [{"path": str(tmp_path / f"{name}.jsonl"), "instructions": of} for name, of in wordings.items()],
            "training": {"max_steps": 8, "save_steps": 2, "logging_steps": 1},
        },
    )
    seen: list[tuple[str, str]] = []
    init = StageTrainer.__init__

    def watched(self: StageTrainer, step: Any, *args: Any, **kwargs: Any) -> None:
        collate = step.objective.collate

        def noted(rows: Any, *more: Any, **options: Any) -> Any:
            ((name, instruction),) = {(row["query"][0], row["instruction"]) for row in rows}
            seen.append((name, instruction))
            return collate(rows, *more, **options)

        step.objective.collate = noted
        init(self, step, *args, **kwargs)

    monkeypatch.setattr(StageTrainer, "__init__", watched)
    assert train_counted(made, tmp_path / "whole") == 8
    whole = seen[:8]
    assert all(instruction in wordings[name] for name, instruction in whole) and len(set(whole)) > 2
    train_counted(made, tmp_path / "halves", stop=6)
    seen.clear()
    assert train_counted(made, tmp_path / "halves", resume=True) == 4, "checkpoint 4 was there"
    assert seen[:4] == whole[4:8]
    files = [json.loads((tmp_path / run / "run.json").read_text())["losses"]["one"] for run in ("whole", "halves")]
    assert [line["loss"] for line in files[0]] == pytest.approx([line["loss"] for line in files[1]], rel=1e-6)
