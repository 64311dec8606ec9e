"""Probes are run whatever happens in one of them; the command's output and exit code."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from embrew.cli import app
from embrew.doctor import child, nano, run
from embrew.doctor.finding import Finding, run_probe, worst
from embrew.storage.base_model import ASSETS

HERE = "tests.doctor.probes"


def place(name: str) -> str:
    return f"{HERE}:{name}"


def test_an_error_is_a_line() -> None:
    first, second = run_probe("broken", child.load(place("broken")))
    assert (first.status, second.status, second.name) == ("ok", "failed", "broken")
    assert second.value == "RuntimeError: broken in two lines" and "second" in second.details["message"]
    assert second.details["places"][-1].startswith("tests/doctor/probes.py:") and "--json" in second.advice
    (left,) = run_probe("leave", child.load(place("leave")))
    (absent,) = run_probe("absent", child.load("embrew.nowhere:probe"))
    assert left.status == absent.status == "failed" and "No module named" in absent.value
    assert worst([first]) == "ok" and worst([first, second]) == "failed"


def test_a_crash_ends_only_itself() -> None:
    """In real processes: the probes after it are run in a new one."""
    found = list(run.in_processes({"fine": place("fine"), "crash": place("crash"), "broken": place("broken")}))
    assert [(one.name, one.status) for one in found] == [
        ("fine", "ok"),
        ("crash", "failed"),
        ("first", "ok"),
        ("broken", "failed"),
    ]
    assert found[1].value == "its process was ended by SIGSEGV" and "last words" in found[1].details["stderr"]


@pytest.mark.slow
def test_a_hang_ends_only_itself() -> None:
    names = ("hang", "leave", "fine")
    began = time.monotonic()
    found = list(run.in_processes({name: place(name) for name in names}, patience=20))
    assert [(one.name, one.status) for one in found] == [("hang", "failed"), ("leave", "failed"), ("fine", "ok")]
    assert found[0].value == "took more than 20 s" and time.monotonic() - began < 60


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The probes that need torch are those put in here, and are run in this process."""
    probes: dict[str, str] = {}

    def in_this_process(_: Any) -> Iterator[Finding]:
        for name, what in probes.items():
            yield from run_probe(name, child.load(what))

    monkeypatch.setattr(run, "in_processes", in_this_process)
    monkeypatch.setattr(run.machine, "cores", lambda: 64)  # so that no warning depends on this machine
    return probes


def test_exit_codes(here: dict[str, str]) -> None:
    here["fine"] = place("fine")
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 0 and "ok      fine: all well" in done.stdout and "0 failed" in done.stdout
    here["broken"] = place("broken")
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 1 and "failed  broken: RuntimeError: broken in two lines" in done.stdout
    assert "1 failed" in done.stdout and "for a bug report: embrew doctor --json" in done.stdout


def test_warnings_do_not_fail(here: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    warned = Finding("memory", "warning", "little", "choose a smaller model")
    monkeypatch.setattr(run.machine, "memory", lambda: warned)
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 0 and "warning memory: little\n        choose a smaller model" in done.stdout


def test_a_broken_model_is_a_failed_line(here: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One flipped bit in the weights of the shipped model."""
    broken = tmp_path / "nano"
    shutil.copytree(ASSETS["nano"], broken)
    content = bytearray((broken / "model.safetensors").read_bytes())
    content[-100] ^= 1
    (broken / "model.safetensors").write_bytes(content)
    monkeypatch.setattr(nano, "ASSETS", {"nano": broken})
    here["self-test: open nano"] = run.SELF_TEST["self-test: open nano"]
    done = CliRunner().invoke(app, ["doctor", "--json"])
    report = json.loads(done.stdout)
    last = report["findings"][-1]
    assert done.exit_code == 1 and report["status"] == last["status"] == "failed"
    assert last["name"] == "self-test: open nano" and "its weights have sha256" in last["value"]
    assert "install embrew again" in last["advice"]


@pytest.mark.slow
def test_the_command_in_a_process_of_its_own(tmp_path: Path) -> None:
    """All of it, as a user runs it: one JSON object on stdout, and nothing left behind."""
    environment = {**os.environ, "HF_TOKEN": "hf_abcdefghijklmnopqrstuvwxyz", "TMPDIR": str(tmp_path / "temporary")}
    (tmp_path / "temporary").mkdir()
    (tmp_path / "results").mkdir()
    command = [sys.executable, "-m", "embrew", "doctor", "--json", "--folder", str(tmp_path / "results")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=500, check=False)
    report = json.loads(done.stdout)
    failed = [one for one in report["findings"] if one["status"] == "failed"]
    assert not failed and done.returncode == 0, failed
    names = [one["name"] for one in report["findings"]]
    assert {*run.SELF_TEST, "self-test: saving", "self-test: export", "threads", "file system", "torch"} <= {*names}
    assert len(names) == len({*names})
    assert "hf_abc" not in done.stdout and str(Path.home()) + "/" not in done.stdout
    assert not list((tmp_path / "results").iterdir())
    assert not list((tmp_path / "temporary").glob("embrew-*"))
