"""Processes of one launch (`torchrun`) that evaluate together: counters in the launcher's store say who does what."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

POLL = 0.2  # seconds


class Processes:
    """The processes of one launch; without a store, this process alone.

    Attributes:
        count: number of processes.
        rank: number of this process, from 0.
    """

    def __init__(self, store: Any = None, *, rank: int = 0, count: int = 1) -> None:
        self.rank, self.count = rank, count
        self._store = store
        self._counters: Counter[str] = Counter()
        self._evaluations = 0

    def begin(self) -> None:
        """Begin an evaluation, which has counters of its own; every process begins the same ones in the same order."""
        self._evaluations += 1

    @classmethod
    def of_launch(cls) -> Processes:
        """Return the processes that `torchrun` or `accelerate launch` started; each uses the GPU of its local rank."""
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return cls()
        import torch
        from torch.distributed import PrefixStore, rendezvous

        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        store, rank, count = next(rendezvous("env://"))
        return cls(PrefixStore("embrew/evaluate", store), rank=rank, count=count)

    def add(self, name: str) -> int:
        """Add 1 to a counter of all processes; return what it was."""
        if self._store is not None:
            return int(self._store.add(self._key("counter", name), 1)) - 1
        key = self._key("counter", name)
        self._counters[key] += 1
        return self._counters[key] - 1

    def decided(self, name: str, decide: Callable[[], Any]) -> Any:
        """Return what the process that asks first decides, as JSON; the others wait for it."""
        if self._store is None:
            return decide()
        if self.add(f"asked/{name}") == 0:
            self._store.set(self._key("decided", name), json.dumps(decide()))
        while not self._store.check([self._key("decided", name)]):
            time.sleep(POLL)
        return json.loads(self._store.get(self._key("decided", name)))

    def say(self, name: str) -> None:
        """Let all processes know something."""
        if self._store is not None:
            self._store.set(self._key("said", name), "")

    def is_said(self, name: str) -> bool:
        """Return whether a process has said it."""
        return self._store is not None and bool(self._store.check([self._key("said", name)]))

    def meet(self) -> None:
        """Wait until all processes are here."""
        if self.add("met") + 1 == self.count:
            self.say("met")
        while self.count > 1 and not self.is_said("met"):
            time.sleep(POLL)

    def _key(self, kind: str, name: str) -> str:
        return f"{self._evaluations}/{kind}/{name}"
