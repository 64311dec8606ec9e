"""`torchrun -m embrew evaluate --suite`: equal to one process bit by bit, after kills too, with any number of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.corpus.test_resume import ROOT
from tests.evaluation.test_processes import write_corpus, written
from tests.rows import write_rows

pytestmark = pytest.mark.slow
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


@pytest.fixture
def arguments(tmp_path, sts_folder, retrieval_folder) -> list[str]:
    write_corpus(tmp_path / "large", 400)
    write_corpus(tmp_path / "small", 31)
    names = [sts_folder.name, retrieval_folder.name, "small", "large"]
    suite = tmp_path / "suite.yaml"
    suite.write_text("tasks:\n" + "".join(f"  - {{data: {name}}}\n" for name in names))
    return ["evaluate", "nano", "--pooling", "last", "--suite", str(suite), "--data", str(tmp_path), "--json"]


def start(processes: int, arguments: list[str], output: Path) -> subprocess.Popen:
    """Start them in a process group of their own."""
    module = ["-m", "tests.evaluation.launched", *arguments, "--output", str(output)]
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)] if processes > 1 else []
    return subprocess.Popen(
        [sys.executable, *run, *module],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def finish(process: subprocess.Popen) -> list[dict]:
    printed, said = process.communicate(timeout=600)
    assert process.returncode == 0, said.decode()[-3000:]
    return [{**result, "seconds": 0} for result in json.loads(printed)["results"]]


def test_the_same_bits_as_one_process(arguments, tmp_path):
    one = finish(start(1, arguments, tmp_path / "one"))
    assert len(one) == 4
    assert finish(start(3, arguments, tmp_path / "three")) == one
    assert written(tmp_path / "three") == written(tmp_path / "one")


def test_they_choose_the_same_pooling(tmp_path):
    for split in ("dev", "test"):
        rows = [{"sentence1": f"{split} {i} cats", "sentence2": f"{i % 7} lakes", "score": i % 5} for i in range(40)]
        (tmp_path / "pairs").mkdir(exist_ok=True)
        write_rows(tmp_path / "pairs" / f"{split}.jsonl", rows)
    arguments = ["evaluate", "nano", "--data", str(tmp_path / "pairs"), "--json"]
    one = finish(start(1, arguments, tmp_path / "one"))
    assert finish(start(2, arguments, tmp_path / "two")) == one
    choices = [(tmp_path / name / "untrained" / "choice.json").read_text() for name in ("one", "two")]
    assert choices[0] == choices[1]


def parts(folder: Path) -> int:
    return len(list(folder.glob(".parts/*/*.npz")))


def test_killed_and_resumed(arguments, tmp_path, capsys):
    one, kept = finish(start(1, arguments, tmp_path / "one")), []
    for processes in (2, 3, 1):
        process = start(processes, arguments, tmp_path / "out")
        while process.poll() is None and parts(tmp_path / "out") <= max(kept, default=0):
            time.sleep(0.01)
        assert process.poll() is None, "killed within a corpus"
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        kept.append(parts(tmp_path / "out"))
    assert finish(start(2, arguments, tmp_path / "out")) == one
    assert written(tmp_path / "out") == written(tmp_path / "one")
    with capsys.disabled():
        sys.stdout.write(f"\nkilled 3 times, files of begun corpora after each: {kept}\n")
