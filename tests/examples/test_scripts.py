"""The scripts of `examples/`: each runs from a fresh process in an empty folder, and prints what its text promises."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(FOLDER.glob("*.py"))
PAGE = FOLDER.parent / "docs" / "examples.md"


def run(name: str, folder: Path) -> str:
    """Run a script without a network in a folder; return what it printed."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(FOLDER.parent / "src")}
    script = [sys.executable, str(FOLDER / f"{name}.py")]
    done = subprocess.run(script, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_all_are_on_one_page():
    assert len(SCRIPTS) == 7
    assert sorted(re.findall(r'--8<-- "examples/(\w+\.py)"', PAGE.read_text())) == [script.name for script in SCRIPTS]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_each_is_short_and_a_notebook(script):
    jupytext = pytest.importorskip("jupytext", reason="the extra dev is not installed")
    assert len(script.read_text().splitlines()) < 60
    notebook = jupytext.read(script, fmt="py:percent")
    kinds = [cell.cell_type for cell in notebook.cells]
    assert len(kinds) >= 3 and {"code", "markdown"} == set(kinds)
    assert notebook.cells[0].source.startswith("# ")  # a title
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    compile(code, script.name, "exec")
    assert "%%" not in code


SCORES = r": (\S+) untrained, (\S+) trained"


def test_minimal_in_small(model_folder, tmp_path, monkeypatch, capsys, forked):
    """The library on one screen: at most 30 lines of code; here with a tiny model, two steps and fewer pairs."""
    code = (FOLDER / "minimal.py").read_text()
    assert len([line for line in code.splitlines() if line and not line.startswith("#")]) <= 30
    for theirs, ours in (('"nano"', repr(str(model_folder("llama")))), ("20,", "2,"), (".items())", ".items())[:60]")):
        assert code.count(theirs) == 1
        code = code.replace(theirs, ours)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "minimal.py", "exec"), {})
    assert len(re.findall(SCORES, capsys.readouterr().out)) == 1


@pytest.mark.slow
def test_minimal(tmp_path):
    """A better encoder than the untrained one."""
    ((untrained, trained),) = re.findall(SCORES, run("minimal", tmp_path))
    assert float(trained) > float(untrained) > 0


@pytest.mark.slow
def test_first_embeddings(tmp_path):
    said = run("first_embeddings", tmp_path)
    assert "3 vectors of 256 dimensions" in said
    (found,) = re.findall(r"found first: (\d) of 8", said)
    assert int(found) >= 6
    assert "A theatre burned down.  ->  A fire destroyed the old theatre" in said


@pytest.mark.slow
def test_own_pairs(tmp_path):
    run("own_pairs", tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert page.lstrip().lower().startswith("<!doctype html") and len(page) < 5_000_000
    untrained, trained = (score(tmp_path / "results" / name) for name in ("untrained", "trained"))
    assert trained > 2 * untrained > 0


@pytest.mark.slow
def test_adapt(tmp_path):
    said = run("adapt", tmp_path)
    scores = {model: float(value) for value, model in re.findall(r"^nDCG@10 (\S+)  (.+)$", said, re.MULTILINE)}
    assert scores.pop("BM25") > 0.3
    assert {"contrast", "lbr"} < set(scores) and len(scores) == 3
    assert max(scores["contrast"], scores["lbr"]) > 0.1  # 0.05 by chance
    assert scores["lbr"] == pytest.approx(score(tmp_path / "out" / "results" / "lbr"), abs=6e-4)


@pytest.mark.slow
def test_latency_budget(tmp_path):
    said = run("latency_budget", tmp_path)
    (chosen, full) = re.findall(r"(\d+) layers, (\d+) dimensions: nDCG@10 ([\d.]+)", said)
    assert int(chosen[0]) < int(full[0]) == 6 and int(chosen[1]) <= 64 < int(full[1]) == 256
    (time,) = re.findall(r"(\S+) of the time", said)
    assert float(time) <= 0.5
    assert float(chosen[2]) > 0.5 * float(full[2]) > 0.1
    assert f"vectors of {chosen[1]} dimensions" in said


@pytest.mark.slow
def test_contexts(tmp_path):
    said = run("contexts", tmp_path)
    scores = dict(re.findall(r"nDCG@10 (without|with) context: (\S+)", said))
    assert float(scores["without"]) > 0.3 and float(scores["with"]) > 0.3  # 0.15 untrained, 0.03 by chance
    assert scores["with"] != scores["without"]
    saved = json.loads((tmp_path / "out" / "supervised" / "contexts" / "graphs" / "context.json").read_text())
    assert saved


@pytest.mark.slow
def test_serving(tmp_path):
    said = run("serving", tmp_path)
    (difference,) = re.findall(r"largest difference: (\S+)", said)
    assert float(difference) < 1e-5
    assert "64 dimensions of length 1.000" in said and "exit code 0" in said


def score(results: Path) -> float:
    """Return nDCG@10 of a result folder with one task."""
    (file,) = results.glob("*.test.json")
    return float(json.loads(file.read_text())["scores"]["test"][0]["ndcg_at_10"])
