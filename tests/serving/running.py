"""Servers for tests: an application in a thread of this process, `embrew serve` as a process, and a model of words."""

from __future__ import annotations

import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from embrew.model.prefix import PrefixCache
from embrew.serving.models import Key, ReadOptions, TokenizedTexts
from embrew.serving.server import Server, configure
from embrew.serving.service import EXAMPLE, Service
from embrew.serving.settings import Settings
from tests.fresh import Fresh

LISTENING = re.compile(rb"listening at (http://\S+)")


@contextmanager
def running(service: Service, *, hosts: Collection[str] = (), **given: Any) -> Iterator[str]:
    """Run the application of a service, loaded or not, on a free port in a thread; yields the address.

    Args:
        service: what is served.
        hosts: as of `create_app`.
        **given: as of `configured`.
    """
    from embrew.serving.routes import create_app

    server = Server(configure(create_app(service, hosts=hosts), **given), service)
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)  # only a main thread handles signals
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.005)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive(), "the server did not end"


@contextmanager
def serving(
    model: object, *, keys: Sequence[str] = (), ranges: Any = None, ranges_of: Any = None, **settings: Any
) -> Iterator[str]:
    """Open a model as `embrew serve` does, and run it in a thread; yields the address."""
    service = Service(Settings(str(model), **settings))
    service.keys, service.ranges, service.ranges_of = tuple(keys), ranges, ranges_of
    service.load()
    if service.failure is not None:
        raise service.failure
    with running(service) as address:
        yield address


class Process:
    """`embrew serve` as a process, which runs the code `first` before; what it wrote is in `said`."""

    def __init__(self, *arguments: object, env: dict[str, str] | None = None, port: int = 0, first: str = "") -> None:
        words = ["embrew", "serve", *map(str, arguments), "--port", str(port)]
        words += ["--pooling", "last"] if arguments[0] == "nano" and "--pooling" not in arguments else []
        code = f"{first}\nimport runpy, sys\nsys.argv = {words}\nrunpy.run_module('embrew', run_name='__main__')"
        self.process = Fresh([sys.executable, *(["-c", code] if first else ["-m", *words])], env=env)
        self.address = ""

    @property
    def pid(self) -> int:
        """Of the process that listens."""
        return int(self.process.process.pid)

    @property
    def said(self) -> bytes:
        """What it has written to stdout and stderr."""
        found = [Path(self.process.scratch.name) / name for name in ("out", "err")]
        return b"".join(path.read_bytes() for path in found if path.exists())

    def listens(self, seconds: float = 120) -> str:
        """Wait until it listens; return the address."""
        found = _wait(lambda: LISTENING.search(self.said), seconds, self)
        self.address = found[1].decode()
        return self.address

    def ready(self, seconds: float = 120) -> str:
        """Wait until it computes; return the address."""
        address = self.listens(seconds)
        _wait(lambda: httpx.get(f"{address}/health", timeout=10).status_code == 200, seconds, self)
        return address

    def wait(self, seconds: float = 60) -> int:
        """Return its exit code."""
        return self.process.wait(seconds)

    def send(self, number: int) -> None:
        """Send it a signal."""
        self.process.send_signal(number)


@contextmanager
def served(*arguments: object, **options: Any) -> Iterator[Process]:
    """Run `embrew serve` with arguments as a process, and kill it at the end; `ready()` waits for it."""
    process = Process(*arguments, **options)
    try:
        yield process
    finally:
        if process.process.poll() is None:
            process.send(signal.SIGKILL)
        process.wait()


def _wait(found: Any, seconds: float, process: Process) -> Any:
    ends = time.monotonic() + seconds
    while not (result := found()):
        assert process.process.poll() is None, process.said.decode(errors="replace")[-3000:]
        assert time.monotonic() < ends, process.said.decode(errors="replace")[-3000:]
        time.sleep(0.05)
    return result


class Words:
    """A model whose tokens are words, and whose vectors are a text's length and 1.

    `prompt_name` and `num_layers` separate forward passes.

    Args:
        seconds: that a forward pass takes.

    Attributes:
        passes: texts of each forward pass so far.
        gate: forward passes wait for it.
        error: what a forward pass with a text that contains `poison` raises.
    """

    batch_tokens = 100
    about: dict[str, Any] = {  # noqa: RUF012
        "model_sha": None,
        "normalize": False,
        "always_normalizes": False,
        "dimensions": 2,
        "num_layers": 4,
        "prompts": {},
        "contexts": [],
        "max_length": {"query": 512, "document": 512, "other": 512},
    }

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self.passes, self.error = seconds, [], RuntimeError("out of memory")
        self.prefix = PrefixCache()
        self.gate = threading.Event()
        self.gate.set()

    def read(self, texts: list[Any], options: ReadOptions) -> TokenizedTexts:
        """One token per word, and one for the template."""
        counts = [len(text.split()) + 1 for text in texts]
        return TokenizedTexts(Key(context=options.prompt_name, num_layers=options.num_layers), texts, counts, counts)

    def tokenize(self, text: Any, options: ReadOptions, *, special: bool) -> list[dict[str, Any]]:
        """The words."""
        return [{"id": len(word), "text": word, "special": False} for word in text.split()]

    def compute(self, key: Key, rows: Sequence[Any]) -> list[np.ndarray]:
        """Return the vectors."""
        self.passes.append(list(rows))
        self.gate.wait()
        time.sleep(self.seconds)
        if any("poison" in row for row in rows):
            raise self.error
        return [np.array([[len(row), 1]], dtype=np.float32) for row in rows]

    @property
    def texts(self) -> list[str]:
        """All texts so far, in the order in which they were computed."""
        return [text for batch in self.passes for text in batch if text != EXAMPLE]


def of_words(model: Words, *, keys: Sequence[str] = (), batch_tokens: int = 100, **settings: Any) -> Service:
    """Return a loaded service of a model of words."""
    service = Service(Settings("words", **settings))
    service.keys, model.batch_tokens = tuple(keys), batch_tokens
    service.start(model, model.read([EXAMPLE], ReadOptions()))  # type: ignore[arg-type]
    return service
