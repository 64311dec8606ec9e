"""What GitHub reads: the workflow runs `.ci/run` on the Python versions that are declared; templates name commands."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from embrew.cli import app

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DECLARED = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))

in_checkout = pytest.mark.skipif(not GITHUB.exists(), reason="an unpacked sdist has no .github")


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@in_checkout
def test_the_workflow_runs_what_has_to_pass_on_every_declared_python():
    (job,) = read(GITHUB / "workflows" / "ci.yml")["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert job["strategy"]["matrix"]["python"] == DECLARED
    assert PROJECT["requires-python"] == f">={DECLARED[0]}"
    (run,) = (step for step in job["steps"] if "run" in step)
    (pin,) = re.findall(r"^TORCH \?= (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert run["env"]["TORCH"].split()[0] == pin


@in_checkout
def test_templates_ask_for_the_output_of_commands_that_exist():
    forms = {path.stem: read(path) for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config"}
    assert len(forms) == 3
    verbs = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    for name, form in forms.items():
        assert {"name", "description", "body"} <= set(form), name
        fields = [part for part in form["body"] if part["type"] != "markdown"]
        assert len({part["id"] for part in fields}) == len(fields) >= 3, name
        for part in fields:
            assert part["type"] in ("textarea", "input") and {"label", "description"} <= set(part["attributes"])
            named = re.findall(r"`embrew (?:--debug )?([a-z]+)", str(part["attributes"]))
            assert set(named) <= verbs, name
    required = {
        name: {p["id"] for p in form["body"] if p.get("validations", {}).get("required")}
        for name, form in forms.items()
    }
    assert "doctor" in required["bug_report"] and "parity" in required["different_vectors"]


def test_the_citation_names_this_version_and_licence():
    citation = read(ROOT / "CITATION.cff")
    assert citation["cff-version"] == "1.2.0" and citation["message"] and citation["authors"]
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])
