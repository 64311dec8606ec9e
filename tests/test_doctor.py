"""`embrew doctor`: each kind of line, a self-test that notices, and processes that crash or hang."""

from __future__ import annotations

import json
import os
import shutil
import sys
from importlib import metadata

import pytest
import torch
from packaging.requirements import Requirement
from typer.testing import CliRunner

from embrew import doctor, machine
from embrew.cli import app
from embrew.doctor import Finding
from embrew.storage import base_model
from embrew.storage.base_model import ASSETS


def test_versions_against_floors(monkeypatch):
    installed = {"new": "3.0", "exact": "2.0", "old": "1.9", "build": "2.13.0+cpu", "before": "2.1.0rc1"}

    def version(name: str) -> str:
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(metadata, "version", version)
    lines = {name: doctor.required_package(Requirement(f"{name}>=2.0")) for name in (*installed, "absent")}
    assert {name for name, line in lines.items() if line.status == "failed"} == {"old", "absent"}
    assert lines["old"].value == "1.9; embrew needs old>=2.0"
    assert lines["old"].advice == "pip install --upgrade 'old>=2.0'"
    assert lines["absent"].value == "not installed" and lines["absent"].advice == "pip install 'absent>=2.0'"


def test_load_memory_and_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "cores", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (9.0, 0, 0))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text("3000000000")
    (tmp_path / "memory.current").write_text("2500000000")
    lines = {line.name: line for line in (*doctor.machine(), *doctor.devices())}
    assert {lines[name].status for name in ("cpu", "memory", "threads")} == {"warning"}
    assert lines["memory"].value == "0.5 of 3.0 GB free"
    assert lines["threads"].advice.startswith("set OMP_NUM_THREADS=2")


@pytest.mark.slow
def test_the_whole_command(monkeypatch):
    """In real processes: the self-test passes here."""
    monkeypatch.setattr(doctor, "cores", lambda: 64)  # so that no warning depends on this machine's load
    done = CliRunner().invoke(app, ["doctor", "--json"])
    report = json.loads(done.stdout)
    failed = [line for line in report["findings"] if line["status"] == "failed"]
    assert done.exit_code == 0 and not failed, failed
    names = [line["name"] for line in report["findings"]]
    tested = ("vectors", "padding", "attention", "training", "saving", "export")
    assert names[-6:] == [f"self-test: {name}" for name in tested] and len(names) == len({*names})


def test_other_weights_of_the_shipped_model_fail(tmp_path, monkeypatch):
    """One flipped bit."""
    shutil.copytree(ASSETS["nano"], tmp_path / "nano")
    shutil.copy(ASSETS["nano"].parent / "nano_vectors.json", tmp_path)
    content = bytearray((tmp_path / "nano" / "model.safetensors").read_bytes())
    content[-100] ^= 1
    (tmp_path / "nano" / "model.safetensors").write_bytes(content)
    monkeypatch.setattr(base_model, "ASSETS", {"nano": tmp_path / "nano"})
    (line,) = doctor.self_test()
    assert line.status == "failed" and "its weights have sha256" in line.value and "install embrew" in line.advice


BEGIN = """import json, os, signal, sys, time
print(json.dumps({"name": "first", "status": "ok", "value": "well"}), flush=True)
"""


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "its process ended with SIGSEGV"),
        ("time.sleep(60)", "its process took more than 3 s"),
    ],
)
def test_a_process_that_ends_early_is_a_failed_line(code, says):
    first, last = doctor.in_process([sys.executable, "-c", BEGIN + code], seconds=3)
    assert first == Finding("first", "ok", "well")
    assert last.status == "failed" and says in last.value
