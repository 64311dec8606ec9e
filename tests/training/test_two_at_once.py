"""Two processes and one folder: the second is refused in one line; what is killed leaves no lock."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from embrew.cli import app
from embrew.files.writing import claimed, is_held
from embrew.recipe import Recipe
from embrew.settings.yaml_files import dump_yaml
from embrew.sweep import read_sweep, run_sweep
from embrew.training.stages import train
from tests import fresh
from tests.training.test_kill import command
from tests.training.test_stages import equal, values

__all__ = ["command", "values"]  # fixtures
STEPS = "stages.compress.training.max_steps=2000"
WORKERS = "stages.compress.training.dataloader_num_workers=2"


def refused(arguments: list[Any], words: str) -> None:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 1 and len(result.stderr.splitlines()) == 1, result.stderr
    assert f"error: another process is {words}" in result.stderr


def test_refused_in_one_line(values, tmp_path, monkeypatch):
    """Before anything is loaded or written; a sweep and an adaptation hold their folders too."""
    monkeypatch.setattr("embrew.recipe.build.encoder", lambda *_, **__: pytest.fail("nothing is loaded"))
    values["stages"] = values["stages"][:1]
    recipe, out = tmp_path / "recipe.yaml", tmp_path / "out"
    recipe.write_text(dump_yaml({**values, "evaluation": {"dev": ["no/such/folder"]}}))
    with claimed(out, "training into"):
        for more in ([], ["--resume"]):
            refused(["train", recipe, "-o", out, *more], f"training into {out}; wait until it ends")
        with pytest.raises(FileExistsError, match="another process is training into"):
            train(Recipe.from_values(values), out, resume=True)
        (tmp_path / "sweep.yaml").write_text("- {name: a, set: [seed=1]}\n- {name: b, set: [seed=2]}\n")
        values["evaluation"] = {"dev": [str(tmp_path / "pairs.jsonl")]}
        recipe.write_text(dump_yaml(values))
        with pytest.raises(FileExistsError, match="another process is sweeping in"):
            run_sweep(read_sweep(tmp_path / "sweep.yaml", recipe), out)
        refused(["adapt", "nano", "--docs", recipe, "-o", out], f"working in {out}")
        assert list(out.iterdir()) == []
    assert not out.exists()


@pytest.mark.slow
@pytest.mark.skipif(multiprocessing.get_start_method() != "fork", reason="workers are not forked here")
def test_killed_with_forked_workers(command, tmp_path):
    """Its workers live for some seconds, without the lock; resumed, it is the run that none was forked in."""
    train(Recipe.load(tmp_path / "recipe.yaml"), tmp_path / "whole")
    environment = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    start = command(tmp_path / "halves", WORKERS, WORKERS.replace("compress", "unsupervised"))
    target = tmp_path / "halves" / "compress.work" / "checkpoint-6"
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(start, env=environment, stdout=log, stderr=log)
        while not target.exists():
            time.sleep(0.002)
        found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False)
        process.kill()
        process.wait()
        free = not is_held(tmp_path / "halves")
    workers = [int(pid) for pid in found.stdout.split()]
    assert len(workers) == 2 and free
    done = subprocess.run([*start, "--resume"], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    said = (tmp_path / "log").read_text() + done.stderr
    assert "just got forked" not in said and "parallelism" not in said and "Traceback" not in said
    for name in ("compress", "unsupervised"):
        equal(tmp_path / "whole" / name, tmp_path / "halves" / name)


def test_sigterm_says_where_things_are(command, tmp_path):
    """As Ctrl-C does, with the exit code that schedulers know."""
    target = tmp_path / "run" / "compress.work" / "checkpoint-3"
    process = fresh.Fresh(command(tmp_path / "run", STEPS), env={**os.environ, "OMP_NUM_THREADS": "1"})
    while not target.exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 143 and stopped(said.decode(), tmp_path / "run")


def stopped(said: str, folder: Path) -> bool:
    """Whether the last line says what is finished; nothing is held, and a checkpoint is there."""
    *_, last = said.splitlines()
    assert last == f"stopped; no stage is finished in {folder}; the same command with --resume resumes", said
    assert "Traceback" not in said and "error" not in said.lower()
    return (folder / "compress.work" / "checkpoint-3").exists() and not is_held(folder)


@pytest.mark.slow
def test_stopped_under_a_launcher(command, tmp_path):
    """The launcher passes SIGTERM to its processes; the first of them says it, once."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*launch, *command(tmp_path / "run", STEPS)[1:]], env=environment, stderr=subprocess.PIPE, text=True
    )
    while not (tmp_path / "run" / "compress.work" / "checkpoint-3").exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    assert said.count("stopped; no stage is finished in") == 1, said
    assert not is_held(tmp_path / "run")
