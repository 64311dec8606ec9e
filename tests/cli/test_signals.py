"""SIGTERM ends a verb at whatever moment it comes, also where Python or a library drops the exception."""

import sys

import pytest

from tests import fresh

PROGRAM = """
import os, signal, time, weakref
from embrew import cli
from embrew.cli import signals

class Finalised:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)

class Plain: pass

def finaliser():
    Finalised()

def callback():
    known, plain = weakref.WeakValueDictionary(), Plain()
    weakref.finalize(plain, os.kill, os.getpid(), signal.SIGTERM)
    del plain

def library():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except BaseException:
        pass

@cli.app.command("wait")
def wait(how: str):
    globals()[how]()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        time.sleep(0.01)

def early(*_, **__):
    os.kill(os.getpid(), signal.SIGTERM)

import sys
if sys.argv[1] == "early":
    cli.app = early
else:
    sys.argv[1:] = ["wait", sys.argv[1]]
cli.main()
"""


@pytest.mark.parametrize(
    "how", ["early", *(pytest.param(how, marks=pytest.mark.slow) for how in ("finaliser", "callback", "library"))]
)
def test_sigterm_is_never_dropped(how):
    """An exception in `__del__` is printed and dropped: training continued to its end and exited with 0."""
    process = fresh.Fresh([sys.executable, "-c", PROGRAM, how])
    _, said = process.communicate(timeout=60)
    assert process.wait() == 143, said.decode()
    assert "Traceback" not in said.decode()
    assert how == "early" or said.decode().startswith("stopped; ")
