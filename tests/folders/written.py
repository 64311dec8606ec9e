"""A folder of every kind, as this version writes it."""

from __future__ import annotations

from contextlib import chdir
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from typer.testing import CliRunner

from embrew.analysis.uniformity import evaluation_of
from embrew.cli import app
from embrew.corpus import encode_corpus, encoding
from embrew.encoder import Encoder
from embrew.files.formats import REPORT
from embrew.files.writing import write_json
from embrew.methods.teacher_vectors import TeacherVectors
from embrew.recipe import Recipe
from embrew.search import SearchIndex
from embrew.settings.yaml_files import dump_yaml
from embrew.storage import base_model
from embrew.training.stages import train
from embrew.training.trainer import StageTrainer
from tests.adapting.data import prepare
from tests.folders import make
from tests.folders.inputs import COMPRESS, MEAN, SENTENCES, SWEEP, jsonl, write_data, write_tiny


class Stopped(Exception):
    """Ends a command in the middle."""


@pytest.fixture(scope="session")
def written(tmp_path_factory) -> Path:
    """Folders of every kind. Tests change copies of them only."""
    folder = tmp_path_factory.mktemp("written")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with chdir(folder), patch.object(base_model, "supports_natively", return_value=True):  # bfloat16, on any machine
        write_all()
    torch.set_num_threads(threads)
    return folder


def write_all() -> None:
    """Write them into the current directory."""
    torch.manual_seed(0)
    write_data()
    write_tiny()
    make.encoders()
    stopped_run()
    Path("whole.yaml").write_text(dump_yaml(MEAN))
    recipe = Recipe.load("whole.yaml")
    train(recipe, "whole", evaluate=evaluation_of(recipe))
    command("export", "encoders/lora", "export")
    vectors()
    SearchIndex.build(Encoder.from_pretrained("encoders/lora", device="cpu"), "data/corpus.jsonl").save("index")
    command("evaluate", "encoders/lora", "--data", "data/sts.jsonl", "--output", "results")
    Path("sweep.yaml").write_text(SWEEP)
    command("train", "whole.yaml", "--sweep", "sweep.yaml", "--output", "sweep", "encoder.lora={r: 1, lora_alpha: 2}")
    adapted()
    TeacherVectors("encoders/lora", Path("teacher")).add({})
    about = {"page": "page.html", "models": ["a"], "command": "embrew compare", "finished": True}
    Path("page.files").mkdir()
    write_json(Path("page.files") / REPORT.file, {"format": REPORT.number, **about})


def command(*arguments: str) -> None:
    """Run the command line."""
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output


def stopped_run() -> None:
    """A run that stopped in its second stage, after step 5 of 6, with checkpoints of steps 2 and 4."""
    Path("run.yaml").write_text(dump_yaml(COMPRESS))
    recipe, step = Recipe.load("run.yaml"), StageTrainer.training_step

    def training_step(self: StageTrainer, *args: Any, **kwargs: Any) -> Any:
        if "supervised" in str(self.args.output_dir) and self.state.global_step == 5:
            raise Stopped
        return step(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StageTrainer, "training_step", training_step)
        with pytest.raises(Stopped):
            train(recipe, "run", evaluate=evaluation_of(recipe))


def vectors() -> None:
    """Folders of shards: complete ones, and one that stopped after its first shard."""
    encoder, add = Encoder.from_pretrained("encoders/lora", device="cpu"), encoding.add_shard

    def add_one(*args: Any) -> None:
        add(*args)
        raise Stopped

    encode_corpus(encoder, "data/corpus.jsonl", "shards/int8", precision="int8", shard_rows=8)
    encode_corpus(encoder, "data/corpus.jsonl", "shards/binary", precision="binary", shard_rows=8, truncate_dim=8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "add_shard", add_one)
        with pytest.raises(Stopped):
            encode_corpus(encoder, "data/corpus.jsonl", "shards/int8-stopped", precision="int8", shard_rows=8)


def adapted() -> None:
    """Prepared data of an adaptation."""
    Path("data/docs").mkdir()
    answers = [f"Number {i} is said first. {SENTENCES[i % 5]} Then {7 * i} follows." for i in range(24)]
    for i, answer in enumerate(answers):
        Path(f"data/docs/{i}.md").write_text(f"# Case {i}\n\n{answer}\n")
    jsonl("data/qa.jsonl", [{"question": f"What is known of case {i}?", "answer": a} for i, a in enumerate(answers)])
    prepare(Path("data/docs"), Path("data/qa.jsonl"), Path("adapted"))
