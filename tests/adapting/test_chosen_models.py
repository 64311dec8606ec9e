"""The models that are raced where none is given: what fits memory and minutes, and is here or can be had."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
from huggingface_hub.errors import GatedRepoError

from embrew import adapt
from embrew.adapting import starts
from embrew.adapting.defaults import read_defaults, shipped
from embrew.adapting.preparation.prepare import Prepared
from embrew.adapting.starts import models_that_fit
from embrew.planning.devices import GIB, Device
from tests.adapting.data import prepare
from tests.rows import write_rows

NAMES = [one["model"] for one in shipped("models.yaml")["models"]]


@pytest.fixture
def pairs(tmp_path) -> Path:
    rows = [{"query": f"What is the number {i} for?", "positive": f"It has the use {i} " * 4} for i in range(60)]
    return write_rows(tmp_path / "pairs.jsonl", rows)


@pytest.fixture
def data(pairs, tmp_path) -> Prepared:
    return prepare(None, pairs, tmp_path / "data")


def machine(
    monkeypatch: pytest.MonkeyPatch, *, free: float = 64, speed: float = 1e12, here: list[str] = NAMES, hub: Any = None
) -> list[str]:
    """Stand for a machine; return what it asks the Hub for."""
    asked: list[str] = []

    def auth_check(_: Any, model: str) -> None:
        asked.append(model)
        if hub is not None:
            raise hub

    monkeypatch.setattr(starts, "total_and_free", lambda: (64 * GIB, int(free * GIB)))
    monkeypatch.setattr("embrew.planning.devices._timed", lambda _: speed)
    monkeypatch.setattr(starts, "is_cached", lambda model: model in here)
    monkeypatch.setattr(starts, "local_model", lambda model: None)
    monkeypatch.setattr("huggingface_hub.HfApi.auth_check", auth_check)
    return asked


def test_all_fit_a_fast_machine(data, monkeypatch):
    assert machine(monkeypatch) == [] and models_that_fit(data, read_defaults()) == NAMES


def test_a_gpu_whose_speed_is_unknown(data, monkeypatch):
    """Only its memory says what fits."""
    machine(monkeypatch)
    gpu = Device("another", 4 * GIB, math.nan, math.nan)
    monkeypatch.setattr(starts, "pick_device", lambda _: torch.device("cuda"))
    monkeypatch.setattr(starts, "device_here", lambda _: gpu)
    assert models_that_fit(data, read_defaults()) == [*NAMES[:2], "smollm2-135m", "google/gemma-3-270m"]


def test_small_memory_and_few_minutes(data, monkeypatch, caplog):
    """16 bytes a weight of bge-base, and 4 of Qwen3's; a step is 6 or 4 operations a weight and token."""
    caplog.set_level("INFO")
    machine(monkeypatch, free=4.1)
    assert models_that_fit(data, read_defaults()) == [*NAMES[:2], "smollm2-135m", "google/gemma-3-270m"]
    assert "BAAI/bge-base-en-v1.5 (about 4.6 GiB of 4.1 that are free)" in caplog.text
    assert "google/embeddinggemma-300m (about 4.1 GiB of 4.1 that are free)" in caplog.text
    machine(monkeypatch, speed=1.2e9)
    assert models_that_fit(data, read_defaults(["adapt.minutes=30"])) == NAMES[:2]
    assert "smollm2-135m (about " in caplog.text and "steps in 30 minutes)" in caplog.text


def test_offline_what_is_here(data, monkeypatch, caplog):
    caplog.set_level("INFO")
    asked = machine(monkeypatch, here=NAMES[2:4], hub=httpx2.ConnectError("no network"))
    assert models_that_fit(data, read_defaults()) == NAMES[2:4] and asked == NAMES[:1], "the Hub is asked once"
    assert f"{NAMES[0]} (not on this machine, and the Hub is out of reach)" in caplog.text
    machine(monkeypatch, here=[], hub=httpx2.ConnectError("no network"))
    with pytest.raises(ValueError, match="no model was given, and none of embrew's list is raced: .*Give one or"):
        models_that_fit(data, read_defaults())


def test_a_gated_model_is_named(data, monkeypatch, caplog):
    caplog.set_level("INFO")
    response = httpx2.Response(403, request=httpx2.Request("GET", "https://x"))
    machine(monkeypatch, here=NAMES[:1], hub=GatedRepoError("gated", response=response))
    assert models_that_fit(data, read_defaults()) == NAMES[:1]
    assert f"{NAMES[4]} (it is gated: accept its licence" in caplog.text


def test_a_race_without_a_model(pairs, model_folder, tmp_path, monkeypatch):
    """The chosen ones are written down, and not chosen again by the next call."""
    monkeypatch.setattr("embrew.adapting.run.models_that_fit", lambda *_: [str(model_folder("llama"))])
    options: Any = {"pairs": pairs, "output": tmp_path / "out", "quick": True, "export": False}
    options["overrides"] = ["adapt.poolings=[last]", "adapt.minutes=0.01"]
    report = adapt(**options)
    assert list(report["starts"]) == ["llama"]
    monkeypatch.setattr("embrew.adapting.run.models_that_fit", lambda *_: pytest.fail("chosen again"))
    assert adapt(**options)["models"] == report["models"]
