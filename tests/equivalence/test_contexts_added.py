"""A context is added, in this process and by the command line, while eight threads encode and reopen the folder."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

from embrew.encoder import Encoder
from embrew.model.contexts import Context
from embrew.settings.encoder import Demonstration, Demonstrations
from tests.conftest import SENTENCES

ONE = Context("Find the answer: ", (Demonstration("fox", SENTENCES[0]),))
OTHER = Context("Find a similar sentence: ", (Demonstration("sea", SENTENCES[3]),))
TEXTS = SENTENCES[1:3]


@pytest.fixture
def encoder(model_folder: Callable[[str], Path]) -> Encoder:
    made = Encoder.from_pretrained(
        model_folder("llama"), device="cpu", template="{instruction}{text}{eos}", demonstrations=Demonstrations()
    )
    made.add_context("task", ONE)
    return made


def which(vectors: np.ndarray, wanted: dict[str, np.ndarray]) -> str:
    """Which of the known vectors these are; a mixture of two is none of them."""
    return next((name for name, known in wanted.items() if np.abs(vectors - known).max() < 1e-6), "neither")


def test_eight_threads_encode_while_a_context_is_replaced_in_memory(encoder: Encoder) -> None:
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
