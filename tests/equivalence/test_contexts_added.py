"""A context is added, in this process and by the command line, while eight threads encode and reopen the folder."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle

import numpy as np
import pytest

from embrew.encoder import Encoder
from embrew.model.contexts import Context
from embrew.settings.encoder import Demonstration, Demonstrations
from embrew.storage.parts import context_sha256, read_contexts, write_context
from tests.conftest import SENTENCES

ONE = Context("Find the answer: ", (Demonstration("fox", SENTENCES[0]),))
OTHER = Context("Find a similar sentence: ", (Demonstration("sea", SENTENCES[3]),))
TEXTS = SENTENCES[1:3]


@pytest.fixture
def encoder(model_folder) -> Encoder:
    made = Encoder.from_pretrained(
        model_folder("llama"), device="cpu", template="{instruction}{text}{eos}", demonstrations=Demonstrations()
    )
    made.add_context("task", ONE)
    return made


def which(vectors: np.ndarray, wanted: dict[str, np.ndarray]) -> str:
    """Which of the known vectors these are; a mixture of two is none of them."""
    return next((name for name, known in wanted.items() if np.abs(vectors - known).max() < 1e-6), "neither")


def test_a_context_that_is_replaced_on_disk_is_read_whole(encoder, tmp_path):
    """A reader that opens its files one by one would see the words of one context with the vectors of another."""
    encoder.save_pretrained(tmp_path / "model", verify="off")
    prepared = {"one": encoder.contexts["task"], "other": encoder.add_context("task", OTHER)}
    known = {context_sha256(context): name for name, context in prepared.items()}
    stop = threading.Event()

    def read() -> list[str]:
        found = []
        while not stop.is_set():
            context = read_contexts(tmp_path / "model")["task"]
            assert context.context == prepared[known[context_sha256(context)]].context
            found.append(known[context_sha256(context)])
        return found

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(read) for _ in range(4)]
        try:
            for name in ["other", "one"] * 3:
                write_context(tmp_path / "model", "task", prepared[name], overwrite=True)
                time.sleep(0.05)  # so that every context is read
        finally:
            stop.set()
        found = [name for reader in readers for name in reader.result(timeout=60)]
    assert {*found} == {"one", "other"} and len(found) > 6


def test_eight_threads_encode_while_a_context_is_replaced_in_memory(encoder):
    """Every vector is that of one of the two contexts, and plain vectors never move."""
    wanted = {"one": encoder.encode(TEXTS, prompt_name="task")}
    encoder.add_context("task", OTHER)
    wanted["other"] = encoder.encode(TEXTS, prompt_name="task")
    plain = {"plain": encoder.encode(TEXTS)}
    assert np.abs(wanted["one"] - wanted["other"]).max() > 0.01
    stop = threading.Event()

    def work(number: int) -> list[str]:
        found = []
        while not stop.is_set():
            found.append(which(encoder.encode(TEXTS, prompt_name="task"), wanted))
            found.append(which(encoder.encode(TEXTS), plain))
        return found

    with ThreadPoolExecutor(8) as pool:
        workers = [pool.submit(work, number) for number in range(8)]
        try:
            for number, context in zip(range(3), cycle((ONE, OTHER)), strict=False):
                encoder.add_context("task", context)
                encoder.add_context(f"further-{number}", context)
        finally:
            stop.set()
        found = [name for worker in workers for name in worker.result(timeout=60)]
    assert {*found} == {"one", "other", "plain"} and len(found) > 16
    assert len(encoder.contexts) == 4
