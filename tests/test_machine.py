"""What is set before torch is imported."""

import os
import subprocess
import sys

import pytest

from embrew import machine

SET = ("OMP_WAIT_POLICY", "OMP_NUM_THREADS", "GOMP_SPINCOUNT")


@pytest.mark.parametrize(
    ("quota", "load", "given", "expected"),
    [
        ("max 100000", 3.0, {}, {"OMP_WAIT_POLICY": "PASSIVE"}),
        ("max 100000", 0.1, {}, {"GOMP_SPINCOUNT": "1000"}),
        ("250000 100000", 3.0, {}, {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "3"}),
        ("250000 100000", 3.0, {"OMP_NUM_THREADS": "1"}, {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"}),
        ("max 100000", 3.0, {"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"}),
        ("max 100000", 0.1, {"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"}),
    ],
)
def test_threads_wait_as_suits_the_machine(quota, load, given, expected, tmp_path, monkeypatch):
    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0), raising=False)
    monkeypatch.setattr(os, "environ", {**{key: os.environ[key] for key in os.environ if key not in SET}, **given})
    machine.set_threads()
    assert {name: os.environ[name] for name in SET if name in os.environ} == expected


def test_the_command_line_sets_them_before_torch_is_imported():
    script = """
import os, sys
for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
    os.environ.pop(name, None)
os.getloadavg = lambda: (9.0, 9.0, 9.0)
import embrew.cli
assert "torch" not in sys.modules
sys.argv = ["embrew", "--version"]
try:
    embrew.cli.main()
finally:
    print(os.environ["OMP_WAIT_POLICY"])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split()[-1] == "PASSIVE", done.stderr
