"""Processes of one launch (`torchrun`) that evaluate together: counters in the launcher's store share out the work."""

from __future__ import annotations

import os
import time
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
        if store is None:
            from torch.distributed import HashStore

            store = HashStore()
        self._store = store
        self._evaluations = self._meetings = 0

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

    def begin(self) -> None:
        """Begin an evaluation, which has counters of its own; every process begins the same ones in the same order."""
        self._evaluations += 1
        self._meetings = 0

    def add(self, name: str) -> int:
        """Add 1 to a counter of all processes; return what it was."""
        return int(self._store.add(f"{self._evaluations}/{name}", 1)) - 1

    def meet(self) -> None:
        """Wait until all processes are here."""
        self._meetings += 1
        name = f"meeting {self._meetings}"
        complete = f"{self._evaluations}/{name} is complete"
        if self.add(name) == self.count - 1:
            self._store.set(complete, "")
        while not self._store.check([complete]):
            time.sleep(POLL)
