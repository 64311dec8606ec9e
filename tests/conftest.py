"""What holds for every test: no network, no progress bars. `tests.models` has models, and takes seconds to import."""

from __future__ import annotations

import gc
import importlib
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
if "EMBREW_CACHE" not in os.environ:  # processes of pytest-xdist inherit it
    USER_CACHE = tempfile.TemporaryDirectory(prefix="embrew-cache-")
    os.environ["EMBREW_CACHE"] = USER_CACHE.name

import pytest

from tests import fresh


def __getattr__(name: str) -> Any:
    """Return a name of `tests.models`."""
    if name.startswith(("_", "pytest")):
        raise AttributeError(name)
    return getattr(importlib.import_module("tests.models"), name)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Load the fixtures of `tests.models`, but not in the process of pytest-xdist that only distributes tests.

    Garbage collection is off until `pytest_collection_finish`, since the objects that imports make are kept. Writes do
    not wait for the disk: files of tests need not survive a power failure.
    """
    if session.config.pluginmanager.has_plugin("dsession"):
        if session.config.args_source is pytest.Config.ArgsSource.TESTPATHS:  # all tests, which will need it
            fresh.start()
        return
    fresh.share(getattr(session.config, "workerinput", {}).get("fresh"))
    gc.disable()
    os.fsync = os.fstat
    for module in ("tests.models", "tests.residents"):
        session.config.pluginmanager.import_plugin(module)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a process of pytest-xdist where the server of `tests.fresh` is."""
    node.workerinput["fresh"] = fresh.address()


def pytest_collection_finish() -> None:
    """Leave what the imports made out of later garbage collections: every `Trainer.train` starts with one.

    Collect at 20,000 new objects in place of 700: a model of a test makes thousands, and they took 5 % of all CPU time.
    """
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


@pytest.fixture(scope="session")
def local_ray() -> Iterator[Path]:
    """Ray on this machine, started once per process that runs tests; yields the folder that kills its actors."""
    from tests.local_ray import ray_on_this_machine

    with ray_on_this_machine() as deaths:
        yield deaths


@pytest.fixture(autouse=True)
def _no_progress_style() -> None:
    """Commands choose how their process shows progress; the next test is another process."""
    from embrew import progress

    progress.set_style(None)


@pytest.fixture(autouse=True)
def _no_network(request, monkeypatch) -> None:
    """Only addresses of this machine can be reached, but by tests that are marked `network`."""
    if request.node.get_closest_marker("network"):
        return
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> Any:
        if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise OSError(f"tests run offline; something wanted {address}")
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)
