"""Forked processes have of a test what new interpreters have of it: files, arguments and environment."""

import signal
import subprocess
import sys
import time

import embrew
from tests import fresh

CODE = """
import os, sys
assert not [name for name in sys.modules if name.split(".")[0] == "embrew"]
import embrew
print(sys.argv, os.getcwd(), os.environ.get("OWN"), os.environ.get("OTHER"), hasattr(embrew, "changed"))
print("to stderr", file=sys.stderr)
sys.exit(3)
"""


def test_as_a_new_interpreter(tmp_path, monkeypatch):
    monkeypatch.setattr(embrew, "changed", True, raising=False)
    monkeypatch.setenv("OTHER", "not given")
    command = [sys.executable, "-c", CODE, "a", "b"]
    options = {"env": {**fresh.ENVIRONMENT, "OWN": "given"}, "cwd": tmp_path}
    wanted = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    got = fresh.run(command, **options)
    assert wanted.returncode == 3 and wanted.stdout == f"['-c', 'a', 'b'] {tmp_path} given None False\n"
    assert (got.returncode, got.stdout, got.stderr) == (wanted.returncode, wanted.stdout, wanted.stderr)


def test_modules_errors_and_signals(tmp_path):
    done = fresh.run([sys.executable, "-m", "embrew", "recipe", "show", "no-such"])
    assert done.returncode == 1 and done.stderr.startswith("error: ") and "'no-such'" in done.stderr
    for number, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 1)):
        # No file object, in whose end an interrupt would be ignored; and no long sleep, which goes on to its end if the
        # signal comes after the interpreter last looked for one, before the sleep has begun.
        opened = f"os.close(os.open('{tmp_path / 'up'}', os.O_CREAT))"
        sleeps = f"import os, time; {opened}; [time.sleep(0.05) for _ in range(1200)]"
        process = fresh.Fresh([sys.executable, "-c", sleeps])
        while not (tmp_path / "up").exists():
            time.sleep(0.002)
        process.send_signal(number)
        assert process.wait(30) == code == process.poll()
        (tmp_path / "up").unlink()
