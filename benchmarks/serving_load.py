"""Send requests to a server on this machine and time them: `python serving_load.py < SPEC.json > FOUND.json`.

Works in a process of its own, on the cores that the server does not use. Times are seconds of the monotonic clock.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

UNANSWERED = 0  # in place of a status
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What is sent.

    Attributes:
        port, path: of the server.
        pid: of the server's process, whose CPU seconds and memory are read four times per second.
        bodies: of the requests, in turn.
        clients: how many send one request after the other; 0: requests are sent at `rate`, whatever is answered.
        rate: requests per second.
        warm, seconds: how long requests are sent that do not count, and that count. Those sent are waited for. Clients
            send for up to four times as long, until each was answered and `least` answers count.
        least: answers that must count.
        most: requests at most.
        timeout: seconds after which a request counts as unanswered.
    """

    port: int
    path: str
    pid: int
    bodies: list[str]
    clients: int = 0
    rate: float = 0.0
    warm: float = 0.0
    seconds: float = 10.0
    least: int = 0
    most: int = 50_000
    timeout: float = 120.0


@dataclass(kw_only=True)
class Found:
    """What was measured.

    Attributes:
        begun, ended: of the time that counts.
        answers: per request: when it was due, when it was answered, status, the `Retry-After` header.
        samples: of the server: time, CPU seconds, resident memory in MB.
    """

    begun: float = math.inf
    ended: float = math.inf
    answers: list[tuple[float, float, int, str | None]] = field(default_factory=list)
    samples: list[tuple[float, float, float]] = field(default_factory=list)


class Connection:
    """A connection that is kept between requests."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.writer: asyncio.StreamWriter | None = None

    async def post(self, path: str, body: bytes) -> tuple[int, str | None]:
        """Return the status of an answer, which is read to its end, and its `Retry-After`."""
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        head = (
            f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        )
        self.writer.write(head.encode() + b"\r\n\r\n" + body)
        first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        await self.reader.readexactly(int(headers["content-length"]))
        if headers.get("connection") == "close":
            self.close()
        return int(first.split()[1]), headers.get("retry-after")

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.writer = None


async def load(spec: Spec) -> Found:
    """Send requests and return what was measured."""
    found = Found()
    bodies = (body for body, _ in zip(cycle(body.encode() for body in spec.bodies), range(spec.most), strict=False))
    sampling = asyncio.create_task(sample(spec.pid, found))
    if spec.clients:
        await asyncio.gather(clock(spec, found), *(closed(spec, found, bodies) for _ in range(spec.clients)))
    else:
        await opened(spec, found, bodies)
    sampling.cancel()
    return found


async def clock(spec: Spec, found: Found) -> None:
    """Set when the time that counts begins and ends."""

    async def until(seconds: float, answers: int) -> float:
        begun = time.monotonic()
        await asyncio.sleep(seconds)
        while len(found.answers) < answers and time.monotonic() < begun + 4 * seconds:
            await asyncio.sleep(0.05)
        return time.monotonic()

    found.begun = await until(spec.warm, spec.clients)
    found.ended = await until(spec.seconds, len(found.answers) + spec.least)


async def closed(spec: Spec, found: Found, bodies: Iterator[bytes]) -> None:
    """Send one request after the other."""
    connection = Connection(spec.port)
    while found.ended == math.inf and (body := next(bodies, None)) is not None:
        await answered(connection, spec, found, body, time.monotonic())
    connection.close()


async def opened(spec: Spec, found: Found, bodies: Iterator[bytes]) -> None:
    """Send requests when they are due."""
    idle: list[Connection] = []
    begun, running = time.monotonic(), set()
    found.begun, found.ended = begun + spec.warm, begun + spec.warm + spec.seconds

    async def one(body: bytes, due: float) -> None:
        connection = idle.pop() if idle else Connection(spec.port)
        await answered(connection, spec, found, body, due)
        idle.append(connection)

    for i, body in enumerate(bodies):
        due = begun + i / spec.rate
        if due >= found.ended:
            break
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        task = asyncio.create_task(one(body, due))
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)
    for connection in idle:
        connection.close()


async def answered(connection: Connection, spec: Spec, found: Found, body: bytes, due: float) -> None:
    """Send a request, and note how it was answered."""
    status, retry = UNANSWERED, None
    try:
        async with asyncio.timeout(spec.timeout):
            status, retry = await connection.post(spec.path, body)
    except (TimeoutError, OSError, asyncio.IncompleteReadError):
        connection.close()
    found.answers.append((due, time.monotonic(), status, retry))


async def sample(pid: int, found: Found) -> None:
    """Note CPU seconds and memory of a process, four times per second."""
    while True:
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
            found.samples.append((time.monotonic(), (int(fields[11]) + int(fields[12])) / TICKS, resident))
        await asyncio.sleep(0.25)


def main() -> None:
    spec: dict[str, Any] = json.load(sys.stdin)
    if hasattr(os, "sched_setaffinity"):
        used = os.sched_getaffinity(0)
        with suppress(OSError):
            os.sched_setaffinity(0, set(range(os.cpu_count() or 1)) - used or used)
    print(json.dumps(asdict(asyncio.run(load(Spec(**spec))))))


if __name__ == "__main__":
    main()
