"""Fresh processes without the seconds of importing libraries: forks of a server that has imported these and no embrew.

The server is a process of its own (exec, not a fork of the tests), so what it forks shares files with a test and
nothing else, like a new interpreter. Each behaviour keeps one test whose process is a new interpreter.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from multiprocessing import forkserver
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired
from unittest import mock

ROOT = Path(__file__).parents[1]
LIBRARIES = (
    "torch",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint",
    "transformers.trainer",
    "transformers.models.auto.modeling_auto",
    "transformers.models.llama.modeling_llama",
    "peft",
    "sentence_transformers",
    "datasets",
    "safetensors.numpy",
    "scipy.stats",
    "pydantic",
    "typer",
    "rich.console",
)
ENVIRONMENT = dict(os.environ)  # before any test changes it


def start() -> None:
    """Start the server, unless it runs."""
    multiprocessing.set_forkserver_preload(list(LIBRARIES))
    with mock.patch.dict(os.environ, ENVIRONMENT, clear=True):
        forkserver._forkserver.ensure_running()


def address() -> str | None:
    """Where the server of this process listens, if it has one."""
    return forkserver._forkserver._forkserver_address


def share(other: str | None) -> None:
    """Use the server of another process, which outlives this one; the libraries are imported once for all."""
    if other is None:
        return
    server = forkserver._forkserver
    server._forkserver_address, server._forkserver_alive_fd = other, os.open(os.devnull, os.O_WRONLY)
    server.ensure_running = lambda: None


class Fresh:
    """A process that runs `-m module` or `-c code` with arguments; what it says goes to files."""

    def __init__(self, command: list[str], *, env: dict[str, str] | None = None, cwd: Path | str | None = None) -> None:
        interpreter, *arguments = command
        if interpreter != sys.executable or arguments[0] not in ("-m", "-c"):
            raise ValueError(f"{command[:2]}; give [sys.executable, '-m' or '-c', ...]")
        self.command = command
        self.scratch = tempfile.TemporaryDirectory(prefix="embrew-fresh-")
        out, err = (str(Path(self.scratch.name) / name) for name in ("out", "err"))
        start()
        settings = arguments, str(cwd or Path.cwd()), dict(os.environ if env is None else env), out, err
        self.process = multiprocessing.get_context("forkserver").Process(target=become, args=settings)
        self.process.start()

    def poll(self) -> int | None:
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.process.kill()

    def wait(self, timeout: float | None = None) -> int:
        self.process.join(timeout)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
            raise TimeoutExpired(self.command, timeout or 0)
        return self.process.exitcode

    def communicate(self, timeout: float | None = None) -> tuple[bytes, bytes]:
        """What it wrote to stdout and to stderr, once it has ended."""
        self.wait(timeout)
        found = [Path(self.scratch.name) / name for name in ("out", "err")]
        said = [path.read_bytes() if path.exists() else b"" for path in found]
        return said[0], said[1]

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode


def run(
    command: list[str], *, timeout: float = 300, text: bool = True, check: bool = False, **place
) -> CompletedProcess:
    """In place of `subprocess.run(..., capture_output=True)`; another interpreter is started as it is."""
    place.pop("capture_output", None)
    if command[0] != sys.executable:
        return subprocess.run(command, timeout=timeout, text=text, check=check, capture_output=True, **place)
    process = Fresh(command, **place)
    said = [part.decode() if text else part for part in process.communicate(timeout)]
    done = CompletedProcess(command, process.wait(), *said)
    if check:
        done.check_returncode()
    return done


def become(arguments: list[str], cwd: str, environment: dict[str, str], out: str, err: str) -> None:
    """Turn this process into `python arguments...`."""
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    assert not [name for name in sys.modules if name.split(".")[0] == "embrew"]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    gc.freeze()
    kind, what, *rest = arguments
    if kind == "-c":
        sys.argv = ["-c", *rest]
        exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = [what, *rest]
        runpy.run_module(what, run_name="__main__", alter_sys=True)
