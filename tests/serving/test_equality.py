"""The server gives the vectors of `Encoder.encode`: every kind of encoder, every combination of what can be asked."""

from __future__ import annotations

import asyncio
import base64
import itertools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from embrew.corpus.job import Ranges
from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from tests.serving.encoders import KINDS, LIMITS, LONG, PROMPTS, TEXTS, check_same, made, saved, serving_copy, wanted
from tests.serving.running import served, serving

slow = pytest.mark.slow
CLIENTS, ENCODINGS = 64, ("base64", "float")
DTYPES = {"float32": "<f4", "int8": "i1", "binary": "i1", "ubinary": "u1"}
ASKED_PROMPTS: list[dict[str, Any]] = [
    {},
    {"input_type": "query"},
    {"input_type": "document"},
    {"prompt_name": "query"},
    {"prompt_name": "long"},
    {"input_type": "query", "prompt_name": "long"},
    {"input_type": "document", "prompt_name": "query"},
    {"prompt": ""},
    {"prompt": "a title: "},
    {"prompt": LONG + "now "},
    {"input_type": "query", "prompt": "a title: "},
]
CONTEXTS: list[dict[str, Any]] = [{"prompt_name": "sea"}, {"input_type": "query", "prompt_name": "sea"}]
DEPTHS: list[dict[str, Any]] = [{}, {"num_layers": 1}, {"num_layers": 2}]
DIMENSIONS: list[dict[str, Any]] = [{}, {"dimensions": 12}]
PRECISIONS: list[dict[str, Any]] = [{}, {"precision": "binary"}, {"precision": "ubinary"}, {"precision": "int8"}]
SMALL: dict[str, Any] = {"max_batch_tokens": 60, "max_queued_tokens": 100_000}
UNIT: list[dict[str, Any]] = [{}, {"normalize": True}, {"normalize": False}]


def combined(*choices: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every combination; int8 only with all dimensions, for which there are ranges."""
    found = [{key: value for part in each for key, value in part.items()} for each in itertools.product(*choices)]
    return [asked for asked in found if asked.get("precision") != "int8" or "dimensions" not in asked]


def prompts_of(encoder: Any) -> list[dict[str, Any]]:
    return ASKED_PROMPTS + (CONTEXTS if encoder.contexts else [])


def body_of(asked: dict[str, Any], texts: list[Any], encoding: str) -> dict[str, Any]:
    encoding = "float" if "precision" in asked else encoding  # base64 is float32
    return {"model": "tiny", "input": texts, "encoding_format": encoding, **asked}


def vectors_in(answer: httpx.Response, asked: dict[str, Any]) -> np.ndarray:
    """The vectors of an answer, by their index."""
    assert answer.status_code == 200, (asked, answer.text)
    data = sorted(answer.json()["data"], key=lambda item: item["index"])
    kind = np.dtype(DTYPES[asked.get("precision", "float32")])
    rows = [item["embedding"] for item in data]
    if isinstance(rows[0], str):
        return np.stack([np.frombuffer(base64.b64decode(row), dtype=kind) for row in rows])
    return np.array(rows, dtype=kind)


async def ask_together(address: str, bodies: Sequence[dict[str, Any]]) -> list[httpx.Response]:
    """Answers to requests of 64 clients, in the order of the requests."""
    numbers = iter(range(len(bodies)))
    answers: list[Any] = [None] * len(bodies)

    limits = httpx.Limits(max_connections=CLIENTS)
    async with httpx.AsyncClient(base_url=address, timeout=120, limits=limits) as connections:

        async def client() -> None:
            for number in numbers:
                answers[number] = await connections.post("/v1/embeddings", json=bodies[number])

        await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return answers


def check_all(address: str, encoder: Any, every: Sequence[dict[str, Any]], ranges: Ranges | None = None) -> None:
    """Ask for all texts in one request at a time; then for some texts per request, by 64 clients at one time.

    Each of these requests has its own texts and options, in any order: every answer has to be that of its request.
    """
    right = {repr(asked): wanted(encoder, TEXTS, asked, ranges) for asked in every}
    with httpx.Client(base_url=address, timeout=120) as client:
        for number, asked in enumerate(every):
            body = body_of(asked, TEXTS, ("base64", "float")[number % 2])
            check_same(vectors_in(client.post("/v1/embeddings", json=body), asked), right[repr(asked)], asked)
    chance = random.Random(0)
    requests = [(asked, chance.sample(range(len(TEXTS)), chance.randint(1, 4))) for asked in every for _ in range(2)]
    chance.shuffle(requests)
    bodies = [body_of(asked, [TEXTS[i] for i in places], chance.choice(ENCODINGS)) for asked, places in requests]
    answers = asyncio.run(ask_together(address, bodies))
    for (asked, places), answer in zip(requests, answers, strict=True):
        check_same(vectors_in(answer, asked), right[repr(asked)][places], asked)


def one_of_each(encoder: Any, depths: Sequence[dict[str, Any]] = DEPTHS) -> list[dict[str, Any]]:
    """Every prompt and context with every depth, each with another choice of the rest."""
    rest = itertools.cycle(combined(DIMENSIONS, PRECISIONS, UNIT))
    return [{**asked, **next(rest)} for asked in combined(prompts_of(encoder), depths)]


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[] if kind == "last" else slow) for kind in KINDS])
def test_every_kind_alone_and_with_64_clients(make_encoder, kind):
    encoder = made(make_encoder, kind)
    ranges = Ranges.fit(np.asarray(encoder.encode(TEXTS)))
    with serving_copy(encoder, ranges=ranges) as address:
        check_all(address, encoder, one_of_each(encoder, DEPTHS[:2]), ranges)


@slow
@pytest.mark.parametrize("settings", [{}, SMALL, {"prefix_bytes": 0}])
def test_every_combination(make_encoder, settings):
    """Also in small batches, and where prefixes do not fit into memory: what was computed before changes nothing."""
    encoder = made(make_encoder, "last")
    ranges = Ranges.fit(np.asarray(encoder.encode(TEXTS)))
    every = combined(prompts_of(encoder), DEPTHS, DIMENSIONS, PRECISIONS, UNIT)
    with serving_copy(encoder, ranges=ranges, **settings) as address:
        check_all(address, encoder, every if not settings else one_of_each(encoder), ranges)


def test_a_default_prompt_of_the_server(make_encoder):
    encoder = made(make_encoder, "last")
    for name in ("query", "sea"):
        with serving_copy(encoder, default_prompt_name=name) as address, httpx.Client(base_url=address) as client:
            for asked in ({}, {"prompt": "a title: "}, {"input_type": "document"}, {"prompt_name": "long"}):
                body = {"input": TEXTS, **asked}
                given = vectors_in(client.post("/v1/embeddings", json=body), asked)
                check_same(given, wanted(encoder, TEXTS, asked or {"prompt_name": name}), asked)


def test_token_ids_are_the_text(make_encoder):
    """The template, the prompt and the end surround token ids as they surround the text that has them."""
    encoder = made(make_encoder, "last")
    ids = encoder.tokenizer(TEXTS[0], add_special_tokens=False).input_ids
    with serving_copy(encoder) as address, httpx.Client(base_url=address) as client:
        for asked in ({}, {"input_type": "query"}, {"prompt_name": "sea"}):
            right = wanted(encoder, [TEXTS[0]], asked)
            for texts in (ids, [ids], [ids, TEXTS[0]]):
                given = vectors_in(client.post("/v1/embeddings", json={"input": texts, **asked}), asked)
                check_same(given, np.repeat(right, len(given), 0), asked)


def test_other_routes_give_the_same_vectors(make_encoder):
    """`/embed` and `/similarity`: cosines are those of the encoder's vectors; `/embed_all`: the final states."""
    encoder = made(make_encoder, "last")
    with serving_copy(encoder) as address, httpx.Client(base_url=address) as client:
        for asked in ASKED_PROMPTS[1:6:2]:
            right = wanted(encoder, TEXTS, asked)
            given = client.post("/embed", json={"inputs": TEXTS, **asked}).json()
            check_same(np.array(given, dtype=np.float32), right, asked)
            strings = [text for text in TEXTS if isinstance(text, str)]
            body = {"inputs": {"source_sentence": strings[0], "sentences": strings[1:]}, "parameters": asked}
            right = wanted(encoder, strings, asked)
            given = client.post("/similarity", json=body).json()
            assert np.abs(np.array(given) - right[1:] @ right[0]).max() < 2e-6, asked
        states = client.post("/embed_all", json={"inputs": TEXTS, "input_type": "query"}).json()
    for text, given in zip(TEXTS, states, strict=True):
        tokens = encoder.tokenize([text], instruction="find: ", max_length=LIMITS["query"])
        with torch.inference_mode():
            right = encoder.hidden_states(tokens)[0].numpy()
        assert np.abs(np.array(given) - right).max() < 1e-5, text


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A folder of an encoder on nano with two limits."""
    encoder = Encoder.from_pretrained("nano", pooling="last", max_length=LIMITS, prompts=PROMPTS)
    encoder.backbone.add_lora({"r": 4, "lora_alpha": 8})
    return saved(encoder, tmp_path_factory.mktemp("trained") / "tiny")


@slow
def test_a_folder_in_a_fresh_process(trained):
    """`embrew serve FOLDER`, twice: as saved, and converted for OpenVINO in memory."""
    encoder = Encoder.from_pretrained(trained)
    for backend in ("torch", "openvino"):
        depths = DEPTHS if backend == "torch" else [{}]
        every = combined(ASKED_PROMPTS, depths, DIMENSIONS)
        with served(trained, "--backend", backend) as process:
            client = httpx.Client(base_url=process.ready(), timeout=120)
            assert client.get("/info").json()["backend"] == backend
            for number, asked in enumerate(every):
                body = body_of(asked, TEXTS, ("base64", "float")[number % 2])
                given = vectors_in(client.post("/v1/embeddings", json=body), asked)
                check_same(given, wanted(encoder, TEXTS, asked), asked, atol=2e-6 if backend == "torch" else 1e-5)
            answer = client.post("/embed", json={"inputs": "a", "num_layers": 1})
            assert answer.status_code == (200 if backend == "torch" else 400), answer.text


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    """Exports for Sentence-Transformers and OpenVINO, of an encoder with one limit, as both need it."""
    place = tmp_path_factory.mktemp("exported")
    encoder = Encoder.from_pretrained(
        "nano",
        memory_tokens=3,
        template="{instruction}{text}{memory}",
        pooling="mean",
        attention="bidirectional",
        max_length=48,
        prompts=PROMPTS,
    )
    export_encoder(encoder, place / "stock")
    export_encoder(encoder, place / "openvino", runtimes=["openvino"])
    return place


@slow
def test_an_export_for_sentence_transformers(exported):
    strings = [text for text in TEXTS if isinstance(text, str)]
    model = SentenceTransformer(str(exported / "stock"))
    with serving(exported / "stock") as address, httpx.Client(base_url=address, timeout=120) as client:
        for asked in combined(ASKED_PROMPTS, DIMENSIONS):
            body = {"input": strings, "encoding_format": "base64", **asked}
            given = vectors_in(client.post("/v1/embeddings", json=body), asked)
            options = {key: asked[key] for key in ("prompt_name", "prompt") if key in asked}
            side = asked.get("input_type") or asked.get("prompt_name")
            method = getattr(model, f"encode_{side}") if side in ("query", "document") else model.encode
            right = method(strings, truncate_dim=asked.get("dimensions"), normalize_embeddings=True, **options)
            check_same(given, np.asarray(right), asked)
        answer = client.post("/v1/embeddings", json={"input": [1, 2]})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "input"
