"""Workers in processes of their own; here they are forked from a server that has imported the libraries."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from embrew.serving import processes
from embrew.serving.asked import Asked, WorkerDied
from embrew.serving.opening import open_served
from embrew.serving.processes import ProcessEngine, open_in_processes
from embrew.serving.reading import EncoderReader
from embrew.serving.service import Service
from embrew.serving.settings import Settings
from embrew.serving.stock import Prompted
from embrew.serving.worker import EngineError
from tests import fresh
from tests.serving.encoders import PROMPTS, TEXTS, made
from tests.serving.running import running
from tests.serving.test_faults import assert_empty, embed, until

TWO = Settings("nano", pooling="last", workers=2, batch_tokens=64)


@pytest.fixture(autouse=True)
def quick_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of new interpreters, which import for seconds."""
    fresh.start()
    context = multiprocessing.get_context("forkserver")
    monkeypatch.setattr(processes.multiprocessing, "get_context", lambda kind: context)
    monkeypatch.setattr(processes, "WAITS", (0.0, 0.01, 0.01))


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [f"text {i} " + "of some words " * (i % 5) for i in range(24)]


@pytest.fixture(scope="module")
def expected(texts: list[str]) -> np.ndarray:
    return np.asarray(Encoder.from_pretrained("nano").encode(texts))


def engines_of(service: Service) -> list[ProcessEngine]:
    assert service._workers is not None
    return [engine for engine in service._workers.engines if isinstance(engine, ProcessEngine)]


def pid(engine: ProcessEngine) -> int:
    assert engine._process is not None
    found = engine._process.pid
    assert found is not None
    return found


def is_gone(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().split(")")[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service(TWO)
    made.load()
    assert made.failure is None, made.failure
    yield made
    pids = [pid(engine) for engine in engines_of(made)]
    made.close()
    until(lambda: all(map(is_gone, pids)))


def test_a_worker_that_is_killed_while_it_computes(
    service: Service, texts: list[str], expected: np.ndarray, caplog: pytest.LogCaptureFixture
) -> None:
    """Both workers are stopped, hold a batch, and one of them is killed: every request gets its vectors."""
    first, second = engines_of(service)
    dead = pid(first)
    with running(service) as address, ThreadPoolExecutor(len(texts)) as clients:
        for engine in (first, second):
            os.kill(pid(engine), signal.SIGSTOP)
        asked = [clients.submit(embed, address, text) for text in texts]
        until(lambda: sum(len(t) for each in service.queue._waiting.values() for t in each.values()) < len(texts) - 2)
        until(lambda: service.queue.texts == len(texts))
        os.kill(dead, signal.SIGKILL)
        os.kill(pid(second), signal.SIGCONT)
        answers = [each.result() for each in asked]
        assert [answer.status_code for answer in answers] == [200] * len(texts)
        found = np.array([answer.json()[0] for answer in answers], dtype=np.float32)
        assert np.abs(found - expected).max() < 1e-5
        until(lambda: "the worker was started again" in caplog.text, 60)
        assert "killed by signal 9" in caplog.text
        assert pid(first) != dead
        assert len(first.compute(*_known(service))) == 1
    assert_empty(service)


def _known(service: Service) -> tuple:
    read = asyncio.run(service.in_pool(lambda reader: reader.read(["a text"], Asked())))
    return read.key, read.rows


def test_what_crosses_between_processes() -> None:
    """The text side is small, computes the same rows, and errors keep their class and message."""
    served, engines = open_in_processes(Settings("nano", pooling="last", workers=1))
    try:
        assert len(pickle.dumps(served.reader)) < 400_000, "its tokenizer's vocabulary; the weights have 6 MB"
        (engine,) = engines
        read = served.reader.read(["one", "two words"], Asked())
        vectors = np.stack(engine.compute(read.key, read.rows))[:, 0]
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        assert np.abs(vectors - np.asarray(Encoder.from_pretrained("nano").encode(["one", "two words"]))).max() < 1e-6
        with pytest.raises(EngineError, match="AttributeError: 'Prompted' object has no attribute"):
            engine.compute(read.key, [[Prompted("", "no row")]])
        assert len(engine.compute(read.key, read.rows)) == 2, "it lives on"
        assert engine.counts()["prefix_bytes"] == 0
    finally:
        for engine in engines:
            engine.close()
    with pytest.raises(WorkerDied, match="did not start again"):
        engine.restart()


@pytest.mark.parametrize("kind", ["last", "several templates", "soft prompt", "latent attention"])
def test_the_text_side_of_every_kind_can_be_sent(make_encoder: Callable[..., Encoder], kind: str) -> None:
    """Sent to another process and back, it reads the same rows; no parameter goes with it."""
    encoder = made(make_encoder, kind)
    reader = EncoderReader(encoder)
    assert not list(reader.parameters())
    again = pickle.loads(pickle.dumps(reader))  # noqa: S301 -- made here
    for name in (None, *PROMPTS, *encoder.contexts):
        asked = Asked(prompt_name=name)
        here, there = reader.read(TEXTS, asked), again.read(TEXTS, asked)
        assert (here.key, here.tokens, here.work) == (there.key, there.tokens, there.work)
        assert here.rows == there.rows


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "openvino"])
def test_exports_in_processes(tmp_path: Path, backend: str) -> None:
    """Sentence-Transformers and OpenVINO: the same vectors as in one process."""
    encoder = Encoder.from_pretrained("nano", memory_tokens=0, pooling="mean", max_length=48)
    export_encoder(encoder, tmp_path / "export", **({"runtimes": ["openvino"]} if backend == "openvino" else {}))
    settings = Settings(str(tmp_path / "export"), backend=backend, workers=2)
    here = open_served(settings)
    read = here.reader.read(["one", "two words"], Asked())
    there, engines = open_in_processes(settings)
    try:
        assert there.reader.read(["one", "two words"], Asked()).tokens == read.tokens
        for engine in engines:
            pairs = zip(engine.compute(read.key, read.rows), here.engine.compute(read.key, read.rows), strict=True)
            assert all(np.abs(a - b).max() < 1e-5 for a, b in pairs)
    finally:
        for engine in engines:
            engine.close()


@pytest.mark.slow
def test_a_worker_does_not_start_again_with_another_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its folder was written again: the server answers with the vectors of the model that it opened, or not at all."""
    folder = tmp_path / "encoder"
    Encoder.from_pretrained("nano").save_pretrained(folder, verify="off")
    service = Service(Settings(str(folder), workers=2))
    service.load()
    assert service.failure is None
    with running(service) as address:
        shutil.rmtree(folder)
        Encoder.from_pretrained("nano", pooling="mean", memory_tokens=0, template="{text}").save_pretrained(
            folder, verify="off"
        )
        for engine in engines_of(service):
            os.kill(pid(engine), signal.SIGKILL)
        until(lambda: all(is_gone(pid(engine)) for engine in engines_of(service)))
        answers = [embed(address, "a") for _ in range(2)]
        assert [answer.status_code for answer in answers] == [503, 503]
        assert "the model has changed since" in answers[0].json()["error"]["message"]


def test_errors_of_opening_reach_the_user(tmp_path: Path) -> None:
    service = Service(Settings(str(tmp_path), workers=2))
    service.load()
    alone = Service(Settings(str(tmp_path)))
    alone.load()
    assert service.state == "broken"
    assert type(service.failure) is type(alone.failure)
    assert str(service.failure) == str(alone.failure)


@pytest.mark.slow
def test_a_worker_that_cannot_start_again_is_given_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its folder is gone; the server says that it computes nothing any more, and does not try for ever."""
    folder = tmp_path / "encoder"
    Encoder.from_pretrained("nano").save_pretrained(folder)
    service = Service(Settings(str(folder), workers=2))
    service.load()
    assert service.failure is None
    with running(service) as address:
        folder.rename(tmp_path / "elsewhere")
        for engine in engines_of(service):
            os.kill(pid(engine), signal.SIGKILL)
        until(lambda: not any(engine._process and engine._process.is_alive() for engine in engines_of(service)))
        answers = [embed(address, "a") for _ in range(2)]
        assert [answer.status_code for answer in answers] == [503, 503]
        assert "did not start again" in answers[0].json()["error"]["message"]
        assert caplog.text.count("a worker did not start:") == 2 * 3
    assert_empty(service)
