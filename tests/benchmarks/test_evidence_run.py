"""A plan from its first row to its table: run in parts, gone on with, refused where a row is no longer the plan's."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import evidence

from embrew.files.reading import BrokenFile
from tests.conftest import SENTENCES
from tests.training.test_stages import values

__all__ = ["values"]  # the fixture


@pytest.fixture
def plan(values, tmp_path, monkeypatch) -> Path:
    """An untrained row, and a first stage with two seeds, evaluated on a few pairs of sentences."""
    monkeypatch.setenv("EMBREW_DATA", str(tmp_path))  # which results name; nothing of it is read
    data = tmp_path / "STS"
    data.mkdir()
    rows = [{"sentence1": a, "sentence2": b, "score": float(len(a) % 5)} for a in SENTENCES for b in SENTENCES[:2]]
    (data / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump({"tasks": [{"data": str(data)}], "averages": {"all": ["STS"]}}))
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(values))
    (tmp_path / "results").mkdir()
    recipe = str(tmp_path / "recipe.yaml")
    write(
        tmp_path,
        rows=[
            {"row": "untrained", "recipe": recipe, "stages": [], "seeds": [1]},
            {"row": "A", "recipe": recipe, "stages": ["compress"], "seeds": [1, 2]},
        ],
    )
    return tmp_path


def write(folder: Path, **changes: Any) -> None:
    file = folder / "plan.yaml"
    known = yaml.safe_load(file.read_text()) if file.exists() else {}
    claims = [{"claim": "c", "better": "A: compress", "than": "untrained: untrained", "task": "STS"}]
    made = {"title": "t", "suite": str(folder / "suite.yaml"), "dtype": "float32", "claims": claims}
    file.write_text(yaml.safe_dump({**made, **known, **changes}))


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> dict[str, Any]:
    places = ["--output", str(folder / "results"), "--work", str(folder / "work")]
    monkeypatch.setattr(sys, "argv", ["evidence.py", str(folder / "plan.yaml"), *places, *options])
    evidence.main()
    found: dict[str, Any] = json.loads((folder / "results" / "plan.json").read_text())
    return found


@pytest.mark.slow
def test_a_plan_in_parts_and_with_other_settings(plan, monkeypatch):
    with pytest.raises(SystemExit, match="nothing of it is finished; run it without --finished"):
        run(plan, monkeypatch, "--finished")
    with pytest.raises(FileNotFoundError):  # a part writes no table
        run(plan, monkeypatch, "--only", "A, seed 1|untrained")
    part = run(plan, monkeypatch, "--finished")
    assert part["seeds"] == {"untrained: untrained": [1], "A: compress": [1]}
    assert part["missing"] == ["A: compress (seed 2)"] and part["dtype"] == "float32"
    page = (plan / "results" / "plan.md").read_text()
    assert "in the plan and not measured yet: A: compress (seed 2)" in page
    whole = run(plan, monkeypatch)
    assert "missing" not in whole and whole["seeds"]["A: compress"] == [1, 2]
    assert whole["rows"]["A: compress"]["STS"][0] == part["rows"]["A: compress"]["STS"][0]
    (claim,) = whole["claims"]
    first = whole["rows"]["untrained: untrained"]["STS"][0]
    assert claim["differences"] == pytest.approx([100 * (one - first) for one in whole["rows"]["A: compress"]["STS"]])
    shares = [
        one
        for seed in (1, 2)
        for one in [evidence.gap_of(plan / "work" / "plan" / "A" / str(seed) / "model", "compress")]
    ]
    assert whole["gap"] == {
        "A: compress": {
            f"gap: {name}": [None if one is None else one[name] for one in shares] for name in ("share", "other")
        }
    }

    # With other settings, neither a table of what is there nor a further run takes the old scores.
    rows = yaml.safe_load((plan / "plan.yaml").read_text())["rows"]
    rows[1]["set"] = ["stages.compress.objective.divergence=nll"]
    write(plan, rows=rows)
    for options in ([], ["--finished"]):
        with pytest.raises(ValueError, match="was trained with other settings"):
            run(plan, monkeypatch, *options)
    shutil.rmtree(plan / "work" / "plan" / "A" / "1" / "model")  # scores without the model that they are of
    (plan / "results" / "plan.json").unlink()
    del rows[1]["set"]
    write(plan, rows=rows)
    assert run(plan, monkeypatch, "--finished")["missing"] == ["A: compress (seed 1)"]


@pytest.mark.slow
def test_a_table_of_two_machines(plan, monkeypatch):
    """The table keeps the seed that ran elsewhere, with where that was; not with other settings, tasks or dtype."""
    with pytest.raises(FileNotFoundError):  # a part writes no table
        run(plan, monkeypatch, "--only", "A, seed 1|untrained")
    first = run(plan, monkeypatch, "--finished")
    assert "earlier" not in first
    shutil.rmtree(plan / "work")
    run(plan, monkeypatch, "--only", "A, seed 2")
    whole = run(plan, monkeypatch, "--finished")
    assert "missing" not in whole and whole["seeds"] == {"untrained: untrained": [1], "A: compress": [1, 2]}
    for row, columns in first["rows"].items():
        assert all(whole["rows"][row][name][0] == values[0] for name, values in columns.items())
    assert whole["gap"]["A: compress"]["gap: share"][0] == first["gap"]["A: compress"]["gap: share"][0]
    assert len(whole["claims"][0]["differences"]) == 2  # of an untrained row, which has every seed
    kept = {"untrained: untrained": [1], "A: compress": [1]}
    assert [(one["commit"], one["seeds"]) for one in whole["earlier"]] == [(first["commit"], kept)]
    again = run(plan, monkeypatch, "--finished")  # what was kept once keeps its commit and date
    assert again["earlier"] == whole["earlier"] and again["rows"] == whole["rows"]
    page = (plan / "results" / "plan.md").read_text()
    assert f"- kept from {first['date']} (commit {first['commit']}" in page and "A: compress, seed 1\n" in page

    rows = yaml.safe_load((plan / "plan.yaml").read_text())["rows"]
    rows[0]["set"] = ["encoder.normalize=false"]
    write(plan, rows=rows)
    assert run(plan, monkeypatch, "--finished")["missing"] == ["untrained: untrained (seed 1)"]
    shutil.rmtree(plan / "work")
    table = plan / "results" / "plan.json"
    old = json.loads(table.read_text())
    del old["settings"]  # as tables were written before they had it
    table.write_text(json.dumps(old))
    with pytest.raises(SystemExit, match="nothing of it is finished"):
        run(plan, monkeypatch, "--finished")
    table.write_text("{")
    with pytest.raises(BrokenFile, match="plan.json"):
        run(plan, monkeypatch, "--finished")
    table.write_text(json.dumps({**old, "settings": whole["settings"]}))
    assert run(plan, monkeypatch, "--finished")["seeds"] == {"A: compress": [1, 2]}
    write(plan, dtype="bfloat16")
    with pytest.raises(SystemExit, match="nothing of it is finished"):
        run(plan, monkeypatch, "--finished")


@pytest.mark.slow
def test_a_stage_of_another_plan_is_taken_over_and_its_scores_are_not(plan, monkeypatch):
    """The other plan's suite has a task of the same name, and other rows."""
    run(plan, monkeypatch)
    trained = plan / "work" / "plan" / "A" / "1"
    data = plan / "other" / "STS"
    data.mkdir(parents=True)
    lines = (plan / "STS" / "test.jsonl").read_text().splitlines(keepends=True)
    (data / "test.jsonl").write_text("".join(lines[::2]))
    (plan / "suite.yaml").write_text(yaml.safe_dump({"tasks": [{"data": str(data)}], "averages": {"all": ["STS"]}}))
    (trained.parents[1]).rename(plan / "work" / "first")
    run(plan, monkeypatch)
    before, scores = plan / "work" / "first" / "A" / "1", "results/compress/STS.test.json"
    seconds = [json.loads((one / "model" / "run.json").read_text())["seconds"] for one in (trained, before)]
    assert seconds[0] == seconds[1]  # of training, which was not done twice
    assert json.loads((trained / scores).read_text()) != json.loads((before / scores).read_text())
