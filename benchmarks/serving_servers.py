"""Servers as processes of their own, and what they do under load."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from serving_load import Found, Spec

LOAD = Path(__file__).with_name("serving_load.py")
PATIENCE = 120.0  # seconds to open a model


@dataclass(kw_only=True)
class Server:
    """A server that runs while this is entered.

    Attributes:
        name: as it stands in results.
        command: that starts it; `{port}` is replaced.
        path: of the route for vectors.
        fields: of a request's body, beside `input`.
        environment: variables beside those of this process.
    """

    name: str
    command: Sequence[str]
    path: str = "/v1/embeddings"
    fields: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    def __enter__(self) -> Self:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        command = [word.format(port=self.port) for word in self.command]
        self.process = subprocess.Popen(
            command, env=os.environ | self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        ends = time.monotonic() + PATIENCE
        while not self._healthy():
            if self.process.poll() is not None or time.monotonic() > ends:
                self.process.kill()
                raise RuntimeError(f"{self.name} did not start: {' '.join(command)}")
            time.sleep(0.2)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _healthy(self) -> bool:
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
        return False

    def body(self, texts: Sequence[str], **fields: Any) -> str:
        """Return the body of a request."""
        return json.dumps({"input": list(texts), **self.fields, **fields})

    def vectors(self, texts: Sequence[str], **fields: Any) -> np.ndarray:
        """Return the vectors of texts, float32."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{self.path}",
            self.body(texts, **fields).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            found = json.load(answer)
        rows = found["embeddings"] if "embeddings" in found else [row["embedding"] for row in found["data"]]
        return np.stack([from_base64(row) if isinstance(row, str) else np.array(row, np.float32) for row in rows])

    def under(self, requests: Sequence[Sequence[str]], fields: dict[str, Any] | None = None, **spec: Any) -> Load:
        """Return what requests take, which another process sends.

        Args:
            requests: the texts of each, in turn.
            fields: of the bodies, beside those of the server.
            spec: further settings of `serving_load.Spec`.
        """
        bodies = [self.body(texts, **(fields or {})) for texts in requests]
        told = Spec(port=self.port, path=self.path, pid=self.process.pid, bodies=bodies, **spec)
        done = subprocess.run(
            [sys.executable, str(LOAD)], input=json.dumps(asdict(told)), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"the load generator failed\n{done.stderr[-3000:]}")
        return Load(Found(**json.loads(done.stdout)), len(requests[0]), told.clients)


@dataclass(frozen=True)
class Load:
    """What a server did in the time that counts.

    Attributes:
        found: every request.
        texts: per request.
        clients: without pause; 0: requests were sent at a rate.
    """

    found: Found
    texts: int
    clients: int

    @property
    def counted(self) -> list[tuple[float, float, int, str | None]]:
        """The requests that were answered in the time that counts."""
        return [answer for answer in self.found.answers if self.found.begun <= answer[1] < self.found.ended]

    @property
    def statuses(self) -> dict[int, int]:
        """How often which status was answered, of all requests."""
        every = [status for _, _, status, _ in self.found.answers]
        return {status: every.count(status) for status in sorted(set(every))}

    @property
    def rate(self) -> float:
        """Texts per second.

        Of clients without pause: what all of them ask for, by the mean time of an answer (Little's law), since answers
        come in groups, of which a count holds more or less by chance.

        Raises:
            RuntimeError: there are no answers.
        """
        good = [end - due for due, end, status, _ in self.counted if status == 200]
        if not good:
            raise RuntimeError("no answers in the time that counts; it must be longer on this machine")
        if self.clients:
            return self.texts * self.clients * len(good) / sum(good)
        return self.texts * len(good) / (self.found.ended - self.found.begun)

    def latency(self, percent: float) -> float:
        """Milliseconds of requests that were answered with vectors."""
        return float(
            np.percentile([1e3 * (end - due) for due, end, status, _ in self.counted if status == 200], percent)
        )

    @property
    def cpu(self) -> float:
        """CPU milliseconds of the server per text, in the time that counts."""
        inside = [sample for sample in self.found.samples if self.found.begun <= sample[0] < self.found.ended]
        seconds = (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])
        return 1e3 * seconds / self.rate

    @property
    def memory(self) -> float:
        """Largest resident memory of the server, in MB."""
        return max(resident for _, _, resident in self.found.samples)


def from_base64(text: str) -> np.ndarray:
    """Return float32 of base64."""
    return np.frombuffer(base64.b64decode(text), "<f4")
