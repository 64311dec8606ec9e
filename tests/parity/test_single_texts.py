"""One wrong vector among right ones is a difference, whatever the mean is, and is named as such."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embrew.parity.compare import ParityResult, compare
from embrew.passport.texts import CHOSEN
from tests.parity.faulty import THREE_PROMPTS, FaultyRuntime
from tests.parity.servers import Answer, serving
from tests.parity.test_faults import named

Wrong = Callable[[str, Sequence[str]], bool]


def turned(vector: np.ndarray, cosine: float) -> np.ndarray:
    """A unit vector at this cosine to another one."""
    other = np.roll(vector, 1) - vector * float(np.roll(vector, 1) @ vector)
    return cosine * vector + (1 - cosine**2) ** 0.5 * other / np.linalg.norm(other)


def found(export: Path, runtime: FaultyRuntime, wrong: Wrong, cosine: float, *, length: float = 1.0) -> ParityResult:
    """Compare with a server that turns or scales the vectors of some texts."""

    def embed(texts: Sequence[str], prompt_name: str | None) -> Any:
        if prompt_name is not None:
            texts = [THREE_PROMPTS[prompt_name] + text for text in texts]
        vectors = runtime(texts)
        pairs = zip(texts, vectors, strict=True)
        return np.stack([length * turned(each, cosine) if wrong(text, texts) else each for text, each in pairs])

    with serving(embed, tokenize=runtime.ids) as address:
        return compare(str(export), f"{address}/embed")


ONE: dict[str, tuple[Wrong, str]] = {
    "a plain text": (lambda text, texts: text == CHOSEN[1], "texts"),
    "a plain text with the third prompt": (lambda text, texts: text == "a title: " + CHOSEN[2], "texts"),
    "characters": (lambda text, texts: "🦆" in text and "passage: " in text, "texts"),
    "names of special tokens, same ids": (lambda text, texts: "</s>" in text, "texts"),
    "a prompt": (lambda text, texts: text.startswith("a title: "), "texts"),
    "beyond the limit": (lambda text, texts: "Long texts" in text and "passage: " in text, "texts"),
    "the last of a batch": (lambda text, texts: len(texts) > 2 and text == texts[-1], "batch"),
    "one of a batch": (lambda text, texts: len(texts) > 2 and "🦆" in text, "batch"),
}


QUICK = (("a plain text with the third prompt", 0.9998), ("one of a batch", 0.99))
CASES = [
    pytest.param(name, cosine, marks=() if (name, cosine) in QUICK else pytest.mark.slow)
    for name in ONE
    for cosine in (0.0, 0.99, 0.9998)
]


@pytest.mark.parametrize(("name", "cosine"), CASES)
def test_one_wrong_text(name, cosine, export, runtime):
    wrong, fault = ONE[name]
    comparison = found(export, runtime, wrong, cosine)
    assert not comparison.equal
    assert named(comparison) == {fault}, comparison.verdict
    if name == "a prompt":
        assert "all texts with the prompt 'a title: ' differ" in comparison.verdict
    if name == "a plain text":
        assert "1 of 71 texts differs" in comparison.verdict and CHOSEN[1][:40] in comparison.verdict


@pytest.mark.parametrize("tells_ids", [True, False])
def test_truncation_within_the_tolerance(tells_ids, export):
    """At 0.5, a text that is truncated at 64 tokens instead of 128 is near enough, and its own vector is nearer."""
    runtime = FaultyRuntime(export, "truncated at 64")
    with serving(runtime, tokenize=runtime.ids if tells_ids else None) as address:
        comparison = compare(str(export), f"{address}/embed", min_cosine=0.5)
    assert named(comparison) == {"truncated_64"}, comparison.verdict


def test_refused_texts_within_the_limit(export, runtime):
    def only_plain(path: str, headers: dict[str, Any], body: Any) -> Answer | None:
        return None if not any("🦆" in text for text in body["inputs"]) else (422, {}, '{"error": "no emoji"}')

    with serving(runtime, intercept=only_plain) as address:
        comparison = compare(str(export), f"{address}/embed")
    assert named(comparison) == {"refused"} and "no emoji" in comparison.verdict


def test_dimensions_that_change_between_requests(export, runtime):
    def embed(texts: Sequence[str], prompt_name: str | None) -> Any:
        return runtime(texts)[:, : 16 if len(texts) > 2 else 32]

    with serving(embed) as address, pytest.raises(ValueError, match="vectors of different dimensions: 16, 32"):
        compare(str(export), f"{address}/v1", model="tiny")


@pytest.mark.slow
def test_the_assumed_precision(export, runtime, tmp_path):
    """The weights of the runtime's own files decide, not the least precise ones of the export."""
    for file in export.glob("*.*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "checksums.json").unlink()
    parity = json.loads((export / "parity.json").read_text())
    cases = {
        ("llama.cpp", "int8"): {"/v1": ("int8", 0.99), "/api/embed": ("int8", 0.99), "/embed": ("fp32", 0.9999)},
        ("openvino", "bf16"): {"/v1": ("bf16", 0.999), "/api/embed": ("fp32", 0.9999), "/embed": ("fp32", 0.9999)},
    }
    for (name, weights), wanted in cases.items():
        types = {"sentence-transformers": "fp32", name: weights}
        (tmp_path / "parity.json").write_text(json.dumps({**parity, "runtimes": types}))
        with serving(runtime) as address:
            for place, (assumed, limit) in wanted.items():
                comparison = compare(str(tmp_path), address + place, model="tiny")
                assert (comparison.assumed_weights, comparison.min_cosine) == (assumed, limit), place
    with serving(runtime) as address:
        comparison = compare(str(tmp_path), address + "/v1", model="tiny", min_cosine=0.95)
    assert comparison.assumed_weights is None and comparison.min_cosine == 0.95
