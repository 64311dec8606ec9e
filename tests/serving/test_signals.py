"""`embrew serve` as a process: how it ends, and what is left of it."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.serving.running import Process, served
from tests.serving.test_faults import until

LONG = {"inputs": ["some words of a text " * 20] * 80}


def waiting(address: str) -> float:
    """Texts that wait or are computed."""
    lines = httpx.get(f"{address}/metrics", timeout=30).text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("embrew_queue_texts "))


def test_sigterm_finishes_requests_and_ends_with_0():
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
        assert len(answer.json()) == 80
        assert process.wait(20) == 0
        assert time.monotonic() - answered < 15
        assert b"Traceback" not in process.said


@pytest.mark.slow
def test_ctrl_c_while_loading_and_afterwards():
    for moment in (Process.listens, Process.ready):
        with served("nano") as process:
            moment(process)
            process.send(signal.SIGINT)
            assert process.wait(60) == 0
            assert b"Traceback" not in process.said


@pytest.mark.slow
def test_a_port_in_use_and_a_model_that_cannot_be_opened(tmp_path):
    with served("nano") as first:
        port = first.listens().rpartition(":")[2]
        with served("nano", port=int(port)) as second:
            assert second.wait(60) == 1
            assert second.said.count(b"cannot listen at") == 1
            assert b"Traceback" not in second.said
    with served(tmp_path / "nothing") as process:
        assert process.wait(120) == 1
        assert process.said.count(b"is not nano, smollm2-135m, not a folder with config.json") == 1
        assert process.said.count(b"error: ") == 1
        assert b"Traceback" not in process.said
