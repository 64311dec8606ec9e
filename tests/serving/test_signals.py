"""`embrew serve` as a process: how it ends, and what is left of it."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.serving.running import Process, served
from tests.serving.test_faults import until
from tests.serving.test_processes import is_gone

LONG = {"inputs": ["some words of a text " * 20] * 150}


def children(process: Process) -> list[int]:
    """Processes that a process has started, but for Python's own tracker of resources."""
    found = [int(pid) for task in Path(f"/proc/{process.pid}/task").iterdir() for pid in _children(task)]
    return [pid for pid in found if b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes()]


def _children(task: Path) -> list[str]:
    return (task / "children").read_text().split()


def waiting(address: str) -> float:
    """Texts that wait or are computed."""
    lines = httpx.get(f"{address}/metrics", timeout=30).text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("embrew_queue_texts "))


def test_sigterm_finishes_requests_and_ends_with_0() -> None:
    with (
        served("nano", "--max-batch-tokens", 256, "--max-queued-tokens", 10**6) as process,
        ThreadPoolExecutor() as pool,
    ):
        address = process.ready()
        asked = pool.submit(httpx.post, f"{address}/embed", json=LONG, timeout=60)
        until(lambda: waiting(address), 30)
        process.send(signal.SIGTERM)
        process.send(signal.SIGTERM)  # as from a launcher and a scheduler
        until(lambda: httpx.get(f"{address}/health").json()["error"]["code"] == "draining", 30)
        refused = httpx.post(f"{address}/embed", json={"inputs": "late"})
        assert refused.status_code == 503
        assert "retry-after" in refused.headers
        answer = asked.result()
        answered = time.monotonic()
        assert answer.status_code == 200
        assert len(answer.json()) == 150
        assert process.wait(20) == 0
        assert time.monotonic() - answered < 15
        assert b"Traceback" not in process.said


@pytest.mark.slow
def test_ctrl_c_while_loading_and_afterwards() -> None:
    for moment in (Process.listens, Process.ready):
        with served("nano") as process:
            moment(process)
            process.send(signal.SIGINT)
            assert process.wait(60) == 0
            assert b"Traceback" not in process.said


@pytest.mark.slow
def test_a_port_in_use_and_a_model_that_cannot_be_opened(tmp_path: Path) -> None:
    with served("nano") as first:
        port = first.listens().rpartition(":")[2]
        with served("nano", port=int(port)) as second:
            assert second.wait(60) == 1
            assert second.said.count(b"cannot listen at") == 1
            assert b"Traceback" not in second.said
    for more in ((), ("--workers", 2)):
        with served(tmp_path / "nothing", *more) as process:
            assert process.wait(120) == 1
            assert process.said.count(b"is not nano, not a folder with config.json") == 1
            assert process.said.count(b"error: ") == 1
            assert b"Traceback" not in process.said


@pytest.mark.slow
def test_kill_and_start_again_on_the_same_port() -> None:
    with served("nano") as first:
        address = first.ready()
        before = httpx.post(f"{address}/embed", json={"inputs": "a"}).json()
        busy = threading.Thread(target=_ignoring, args=(address,))
        busy.start()
        until(lambda: waiting(address), 30)
        first.send(signal.SIGKILL)
        assert first.wait() == -signal.SIGKILL
        busy.join()
        with served("nano", port=int(address.rpartition(":")[2])) as second:
            assert second.ready() == address
            assert httpx.post(f"{address}/embed", json={"inputs": "a"}).json() == before


def _ignoring(address: str) -> None:
    try:
        httpx.post(f"{address}/embed", json=LONG, timeout=60)
    except httpx.TransportError:
        return


@pytest.mark.slow
def test_workers_of_a_killed_server_end() -> None:
    """New interpreters: killed while they load, while they compute, and told to stop."""
    with served("nano", "--workers", 2) as process:
        process.listens()
        until(lambda: len(children(process)) == 2, 60)
        workers = children(process)
        process.send(signal.SIGKILL)
        until(lambda: all(map(is_gone, workers)), 60)
    with served("nano", "--workers", 2) as process:
        address = process.ready(300)
        workers = children(process)
        busy = threading.Thread(target=_ignoring, args=(address,))
        busy.start()
        until(lambda: waiting(address), 30)
        process.send(signal.SIGKILL)
        until(lambda: all(map(is_gone, workers)), 30)
        busy.join()


@pytest.mark.slow
def test_two_workers_one_of_which_is_killed_and_sigterm_of_the_group() -> None:
    """Every request is answered; SIGTERM to all processes ends none before the requests are answered."""
    body = {"inputs": ["some words of a text " * 20] * 20}
    with served("nano", "--workers", 2, "--max-batch-tokens", 256, "--max-queued-tokens", 10**6) as process:
        address = process.ready(300)
        workers = children(process)
        assert len(workers) == 2
        with ThreadPoolExecutor(16) as pool:
            asked = [pool.submit(httpx.post, f"{address}/embed", json=body, timeout=200) for _ in range(32)]
            until(lambda: waiting(address) > 100, 30)
            os.kill(workers[0], signal.SIGKILL)
            assert [each.result().status_code for each in asked] == [200] * 32
        until(lambda: b"the worker was started again" in process.said, 200)
        workers = children(process)
        assert len(workers) == 2
        with ThreadPoolExecutor(16) as pool:
            asked = [pool.submit(httpx.post, f"{address}/embed", json=body, timeout=200) for _ in range(16)]
            until(lambda: waiting(address) > 100, 30)
            for pid in (*workers, process.pid):
                os.kill(pid, signal.SIGTERM)
            assert [each.result().status_code for each in asked] == [200] * 16
        assert process.wait(60) == 0
        until(lambda: all(map(is_gone, workers)), 30)
