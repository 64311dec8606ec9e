"""The main function of a process that computes; see `processes`."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import threading
from contextlib import suppress
from multiprocessing.connection import Connection

logger = logging.getLogger(__name__)


def compute_for(pipe: Connection) -> None:
    """Open the model, and compute what is sent until the other end is closed."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch  # after the thread, since the libraries take seconds

    from embrew.serving.opening import open_served

    with suppress(EOFError, ConnectionError):
        settings, device, threads, first = pipe.recv()
        torch.set_num_threads(threads)
        logging.getLogger("embrew").setLevel(logging.WARNING if first else logging.ERROR)
        try:
            served = open_served(settings, device)
        except Exception as error:
            pipe.send_bytes(_described(error))
            return
        pipe.send_bytes(pickle.dumps(("opened", served.reader, served.batch_tokens, served.known)))
        while True:
            key, rows = pickle.loads(pipe.recv_bytes())  # noqa: S301 -- of the process that started this one
            try:
                answer = pickle.dumps(("computed", served.engine.compute(key, rows), served.engine.counts()))
            except Exception as error:
                answer = _described(error)
            pipe.send_bytes(answer)


def _end_with_parent() -> None:
    """End this process at once when the one that started it has ended, in whatever way."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(0)


def _described(error: Exception) -> bytes:
    """Return an error as what `EngineError` takes: not every exception can be sent to another process."""
    kind = next((kind for kind in (ValueError, TypeError, OSError) if isinstance(error, kind)), RuntimeError)
    if kind is RuntimeError:
        logger.error("computing failed", exc_info=error)
    return pickle.dumps(("error", kind, type(error).__name__, str(error)))
