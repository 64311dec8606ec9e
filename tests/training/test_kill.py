"""After SIGKILL, finished parts are kept, and the run resumes to the same weights."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from embrew.recipe import Recipe
from tests import fresh
from tests.conftest import SENTENCES
from tests.training import unverified
from tests.training.test_stages import equal

RECIPE = """
encoder:
  model: {model}
  template: "{{instruction}}{{text}}{{memory}}"
  memory_tokens: 3
  attention: bidirectional
  pooling: {{mode: mean, over: memory}}
  max_length: {{query: 64, document: 64}}
  lora: {{r: 4, lora_dropout: 0.1}}
stages:
  - name: compress
    objective: {{type: compression}}
    data: {{path: {texts}}}
    training: {{max_steps: 30, learning_rate: 0.01, save_steps: 3, per_device_train_batch_size: 4, use_cpu: true}}
  - name: unsupervised
    adapter: merge
    objective: {{type: contrastive, positives: dropout, attention_dropout: 0.2}}
    data: {{path: {texts}}}
    batch: {{size: 8}}
    training: {{max_steps: 30, learning_rate: 0.01, save_steps: 3, use_cpu: true}}
"""


@pytest.fixture
def command(model_folder, tmp_path) -> Callable[..., list[str]]:
    texts = [f"{a} {b} Part {i}." for i, a in enumerate(SENTENCES) for b in SENTENCES]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    recipe = RECIPE.format(model=model_folder("llama"), texts=tmp_path / "texts.jsonl")
    (tmp_path / "recipe.yaml").write_text(recipe)

    def build(output: Path, *more: str) -> list[str]:
        return [sys.executable, "-m", "embrew", "train", str(tmp_path / "recipe.yaml"), "--output", str(output), *more]

    return build


def heed_ctrl_c() -> None:
    """A background job of a shell, and what it starts, ignores SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run(
    command: list[str],
    *,
    until: Callable[[], bool] | None = None,
    kill: int = signal.SIGKILL,
    forked: bool = False,
) -> int:
    """Run a command; with `until`, send a signal as soon as it holds."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    process: fresh.Fresh | subprocess.Popen
    if forked:
        process = fresh.Fresh(command, env=environment)
    else:
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=heed_ctrl_c
        )
    deadline = time.monotonic() + 120
    while until is not None and process.poll() is None and time.monotonic() < deadline:
        if until():
            process.send_signal(kill)
            break
        time.sleep(0.002)
    _, said = process.communicate(timeout=180)
    if until is None:
        assert process.returncode == 0, said.decode()[-2000:]
    return process.returncode


@pytest.mark.parametrize(
    ("stage", "checkpoint", "forked"),
    [
        pytest.param("compress", "checkpoint-3", True, id="first"),
        pytest.param("unsupervised", "checkpoint-3", False, id="second", marks=pytest.mark.slow),
    ],
)
def test_killed_in_a_stage(stage, checkpoint, forked, command, tmp_path):
    more = []
    if forked:  # a fork begins to train at once, and is killed long before its 10th step
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text(recipe.read_text().replace("max_steps: 30", "max_steps: 10"))
        more = ["--verify", "off"]
    unverified.train(Recipe.load(tmp_path / "recipe.yaml"), tmp_path / "whole")
    target = tmp_path / "halves" / f"{stage}.work" / checkpoint
    code = run(command(tmp_path / "halves", *more), until=target.exists, forked=forked)
    assert code == -signal.SIGKILL, "it was stopped, not done"
    run(command(tmp_path / "halves", "--resume", *more), forked=forked)
    for name in ("compress", "unsupervised"):
        equal(tmp_path / "whole" / name, tmp_path / "halves" / name)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_killed_at_any_time(seed, command, tmp_path):
    """At random moments of the time that the whole run takes on this machine, again and again, until it is done."""
    fresh.run([sys.executable, "-c", "pass"], check=True)  # the server of forks has imported its libraries
    begins = time.monotonic()
    run(command(tmp_path / "whole"), forked=True)
    lasts = time.monotonic() - begins
    generator = random.Random(seed)
    code, kills = -signal.SIGKILL, 0
    while code:
        ends = time.monotonic() + generator.uniform(0, lasts)
        more = ["--resume"] if (tmp_path / "halves" / "run.json").exists() else []
        code = run(command(tmp_path / "halves", *more), until=lambda ends=ends: time.monotonic() > ends, forked=True)
        kills += 1
        assert code in (0, -signal.SIGKILL) and kills < 60
    for name in ("compress", "unsupervised"):
        equal(tmp_path / "whole" / name, tmp_path / "halves" / name)
