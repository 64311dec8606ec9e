"""Fresh processes take modules from where they are installed, not from the folder in which a command is given."""

from __future__ import annotations

import subprocess
import sys

from embrew.runtimes import llama_cpp
from embrew.runtimes.runtime import INSTALLED_ONLY


def run_fresh(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", INSTALLED_ONLY + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_files_of_the_current_folder_hide_no_library(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "here" / "fractions.py").write_text("raise SystemExit('not this one')")
    (tmp_path / "here" / "llama_cpp.py").write_text("")
    (tmp_path / "there" / "colours.py").write_text("red = 1")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "there"))
    done = run_fresh("import sys, fractions, colours; print(fractions.__file__, sys.argv)", "one")
    assert done.returncode == 0 and done.stdout.endswith("fractions.py ['-c', 'one']\n"), done.stderr
    llama_cpp._with_llama_cpp.cache_clear()
    monkeypatch.setenv(llama_cpp.PYTHON, sys.executable)
    assert (llama_cpp.interpreter() is None) == (run_fresh("import llama_cpp").returncode != 0)
    llama_cpp._with_llama_cpp.cache_clear()
