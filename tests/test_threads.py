"""What is set before torch is imported."""

import os
import subprocess
import sys

import pytest

from embrew import threads

SET = ("OMP_WAIT_POLICY", "OMP_NUM_THREADS")


@pytest.mark.parametrize(
    ("quota", "given", "expected"),
    [
        ("max 100000", {}, {"OMP_WAIT_POLICY": "PASSIVE"}),
        ("250000 100000", {}, {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "3"}),
        ("250000 100000", {"OMP_NUM_THREADS": "1"}, {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"}),
        ("max 100000", {"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"}),
    ],
)
def test_threads_sleep_and_are_as_many_as_the_container_has_cores(quota, given, expected, tmp_path, monkeypatch):
    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(threads, "CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr(os, "environ", {**{key: os.environ[key] for key in os.environ if key not in SET}, **given})
    threads.set_threads()
    assert {name: os.environ[name] for name in SET if name in os.environ} == expected


def test_the_command_line_sets_them_before_torch_is_imported():
    script = """
import os, sys
os.environ.pop("OMP_WAIT_POLICY", None)
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
