"""`embrew serve BASE --encoder NAME=DIR --chat`: encoders by name, chats of the base, and nothing between them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from embrew.encoder import Encoder
from embrew.serving.service import Service
from embrew.serving.settings import Settings
from tests.conftest import SENTENCES
from tests.residents import TEMPLATE
from tests.serving.running import running

SERVED = ("contrast", "memory", "tasks", "chain")
TEXTS: list[Any] = [*SENTENCES, "", "a", "ends with </s> and <pad>", "beyond both limits " * 30]
MESSAGES = [{"role": "user", "content": "what is a fox?"}]
KEY = "a-key"


def loaded(base: Path, encoders: dict[str, Path], **settings: Any) -> Service:
    """A service that has opened a base and encoders."""
    given = [f"{name}={folder}" for name, folder in encoders.items()]
    service = Service(Settings(str(base), encoder=given, **{"chat": True, "max_encoders": 4, **settings}))
    service.load()
    assert service.failure is None, service.failure
    return service


@pytest.fixture(scope="module")
def service(resident_base: Path, tenants: dict[str, Path]) -> Service:
    return loaded(resident_base, {kind: tenants[kind] for kind in SERVED[:3]}, encoder_folder=tenants["chain"].parent)


@pytest.fixture(scope="module")
def address(service: Service) -> Iterator[str]:
    with running(service) as found:
        yield found


@pytest.fixture(scope="module")
def alone(tenants: dict[str, Path]) -> dict[str, Encoder]:
    """The encoders, each opened alone."""
    return {kind: Encoder.from_pretrained(tenants[kind], merge_adapter=True) for kind in SERVED}


@pytest.fixture(scope="module")
def written(resident_base: Path) -> Callable[..., list[int]]:
    """What transformers writes, greedily, with the base alone."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(resident_base), AutoTokenizer.from_pretrained(resident_base)

    def write(messages: list[dict[str, str]], count: int) -> str:
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")["input_ids"]
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False)
        return tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)

    return write


def embed(address: str, model: str | None, texts: Any, **options: Any) -> np.ndarray:
    body = {"input": texts, **({} if model is None else {"model": model}), **options}
    answer = httpx.post(f"{address}/v1/embeddings", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    assert model is None or answer.json()["model"] == model
    return np.array([item["embedding"] for item in answer.json()["data"]], dtype=np.float32)


def chat(address: str, messages: Any = MESSAGES, **options: Any) -> dict[str, Any]:
    body = {"messages": messages, "max_tokens": 12, "temperature": 0, **options}
    answer = httpx.post(f"{address}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(address: str, **options: Any) -> list[dict[str, Any]]:
    body = {"messages": MESSAGES, "max_tokens": 12, "temperature": 0, "stream": True, **options}
    with httpx.stream("POST", f"{address}/v1/chat/completions", json=body, timeout=60) as answer:
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line]
    assert lines[-1] == "data: [DONE]" and all(line.startswith("data: ") for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_a_name_selects_an_encoder(address, alone):
    ids = [model["id"] for model in httpx.get(f"{address}/v1/models").json()["data"]]
    assert ids == [*SERVED[:3], "base"]
    for kind in SERVED[:3]:
        encoder = alone[kind]
        for side in ("query", "document"):
            right = getattr(encoder, f"encode_{side}")(TEXTS)
            assert np.abs(embed(address, kind, TEXTS, input_type=side) - right).max() <= 1e-5
        tei = httpx.post(f"{address}/embed", json={"inputs": TEXTS[:2], "model": kind, "dimensions": 8})
        assert np.abs(np.array(tei.json()) - encoder.encode(TEXTS[:2], truncate_dim=8)).max() <= 1e-5
        info = httpx.get(f"{address}/info", params={"model": kind}).json()
        assert info["model_id"] == kind and info["pooling"] == encoder.describe()["pooling"]
    right = alone["tasks"].encode(TEXTS, prompt_name="sea")
    assert np.abs(embed(address, "tasks", TEXTS, prompt_name="sea") - right).max() <= 1e-5
    states = httpx.post(f"{address}/embed_all", json={"inputs": ["a"], "model": "memory"}).json()
    assert len(states[0]) == len(httpx.post(f"{address}/tokenize", json={"inputs": "a", "model": "memory"}).json()[0])


def test_a_request_that_names_no_encoder_is_refused(address):
    for path, field in (("/v1/embeddings", "input"), ("/embed", "inputs"), ("/tokenize", "inputs")):
        for model, status, said in ((None, 400, "model is missing; "), ("base", 404, "model='base'; ")):
            body = {field: "a", **({} if model is None else {"model": model})}
            error = httpx.post(f"{address}{path}", json=body)
            assert error.status_code == status and error.json()["error"]["param"] == "model", error.text
            assert error.json()["error"]["message"] == f"{said}this server has contrast, memory, tasks"
    assert httpx.get(f"{address}/info").status_code == 400 and httpx.get(f"{address}/health").status_code == 200


def test_a_chat_is_what_the_base_writes_alone(address, written):
    right = written(MESSAGES, 12)
    answer = chat(address)
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": right, "refusal": None}
    assert choice["finish_reason"] == "length" and answer["model"] == "base"
    assert answer["usage"]["completion_tokens"] == 12
    assert chat(address, max_completion_tokens=3)["usage"]["completion_tokens"] == 3
    parts = events(address, stream_options={"include_usage": True})
    assert "".join(part["choices"][0]["delta"].get("content", "") for part in parts[:-1]) == right
    assert parts[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert parts[-2]["choices"][0]["finish_reason"] == "length"
    assert parts[-1]["choices"] == [] and parts[-1]["usage"] == answer["usage"] and len(parts) > 6
    in_parts = [{"role": "user", "content": [{"type": "text", "text": part} for part in ("what is", " a fox?")]}]
    assert chat(address, in_parts)["choices"] == answer["choices"]
    stop = right[4:6]
    assert chat(address, stop=stop)["choices"][0]["message"]["content"] == right[: right.index(stop)]
    drawn = [chat(address, temperature=1.0, seed=seed)["choices"][0]["message"]["content"] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "user"}]}, 400, "content is missing"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, 400, "messages"),
        ({"messages": [{"role": "developer", "content": "a"}]}, 400, "the chat template of the model refuses"),
        ({"messages": [{"role": "user", "content": "word " * 600}]}, 400, "positions; shorten them"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, 400, "lone surrogate"),
        ({"messages": [{"role": "user", "content": "x" * 100_001}]}, 413, "at most 100000 are read"),
        ({"temperature": -1}, 400, "temperature"),
        ({"top_p": 0}, 400, "top_p"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"n": 2}, 400, "n=2"),
        ({"stop": ""}, 400, "stop"),
        ({"tools": []}, 400, "tools is no field"),
        ({"model": "memory"}, 404, "the language model of this server is base"),
    ],
)
def test_chats_that_are_not_offered_are_refused(address, change, status, said):
    body = json.dumps({"messages": MESSAGES, "max_tokens": 2, **change})
    answer = httpx.post(
        f"{address}/v1/chat/completions", content=body, headers={"content-type": "application/json"}, timeout=60
    )
    assert answer.status_code == status and said in answer.json()["error"]["message"], answer.text


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_requests_of_three_encoders_and_chats_do_not_mix(count, address, service, alone, written):
    """At one time, in any order: every vector and every text is that of its own request."""
    generator = np.random.default_rng(0)
    texts = [f"{SENTENCES[i % len(SENTENCES)]} {i}" for i in range(24)]
    right = {kind: alone[kind].encode_query(texts) for kind in SERVED[:3]}
    questions = [[{"role": "user", "content": f"what is {i}?"}] for i in range(4)]
    answers = [written(question, 8) for question in questions]

    def one(number: int) -> None:
        if number % 10 == 0:
            which = number // 10 % len(questions)
            found = chat(address, questions[which], max_tokens=8)["choices"][0]["message"]["content"]
            assert found == answers[which], number
            return
        kind, some = SERVED[number % 3], generator.choice(len(texts), 2)
        vectors = embed(address, kind, [texts[i] for i in some], input_type="query")
        assert np.abs(vectors - right[kind][some]).max() <= 1e-5, (number, kind)

    sizes: list[int] = []
    compute = service.models["contrast"].group._compute.__func__

    def counting(self: Any, rows: Any) -> Any:
        sizes.append(len({id(encoder) for encoder, _ in rows}))
        return compute(self, rows)

    kind = type(service.models["contrast"].group)
    kind._compute = counting
    try:
        with ThreadPoolExecutor(12) as pool:
            list(pool.map(one, range(count)))
    finally:
        kind._compute = compute
    assert max(sizes) > 1, "rows of several encoders have shared a pass"


def test_a_cancelled_chat_ends(address, service):
    with httpx.stream(
        "POST",
        f"{address}/v1/chat/completions",
        json={"messages": MESSAGES, "temperature": 0, "max_tokens": 400, "stream": True},
        timeout=60,
    ) as answer:
        lines = (line for line in answer.iter_lines() if line)
        next(lines), next(lines)  # that of the role, and the first part
        assert service.chats.running
    ends = time.monotonic() + 5
    while service.chats.running:
        assert time.monotonic() < ends, "it goes on"
        time.sleep(0.01)
    with pytest.raises(httpx.ReadTimeout):
        body = {"messages": MESSAGES, "temperature": 0, "max_tokens": 400}
        httpx.post(f"{address}/v1/chat/completions", json=body, timeout=0.2)
    assert chat(address, max_tokens=1)["usage"]["completion_tokens"] == 1
    assert not service.chats.running, "that was answered although one client had gone"


def test_encoders_come_and_go_under_load(address, service, alone):
    """Requests that were accepted are answered; others are refused; another encoder's go on."""
    right = {kind: alone[kind].encode(SENTENCES) for kind in ("contrast", "chain")}
    ends, seen = threading.Event(), {"contrast": set(), "chain": set()}

    def ask(kind: str) -> None:
        while not ends.is_set():
            answer = httpx.post(f"{address}/v1/embeddings", json={"input": SENTENCES, "model": kind}, timeout=60)
            seen[kind].add(answer.status_code)
            if answer.status_code == 200:
                vectors = np.array([item["embedding"] for item in answer.json()["data"]])
                assert np.abs(vectors - right[kind]).max() <= 1e-5

    def post(action: str, **body: Any) -> httpx.Response:
        return httpx.post(f"{address}/v1/encoders/{action}", json=body, timeout=60)

    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask, kind) for kind in ("contrast", "chain", "chain")]
        try:
            for _ in range(3):
                answer = post("load", name="chain")
                assert [model["id"] for model in answer.json()["data"]] == [*SERVED, "base"], answer.text
                time.sleep(0.2)
                assert [model["id"] for model in post("unload", name="chain").json()["data"]] == [*SERVED[:3], "base"]
        finally:
            ends.set()
        for each in asking:
            each.result()
    assert seen == {"contrast": {200}, "chain": {200, 404}}
    assert not service.resident.encoders.keys() - set(SERVED[:3])
    cases = [
        (post("unload", name="chain"), 404, "model='chain'; this server has contrast, memory, tasks"),
        (post("load", name="contrast"), 400, "is loaded; unload it first"),
        (post("load", name="base", folder="chain"), 400, "base is the name of the language model"),
        (post("load", name="x", folder="../base"), 400, "is no name within the folder of encoders"),
        (post("load", name="nothing"), 400, "is no encoder written by embrew"),
    ]
    assert post("load", name="y", folder="head").status_code == 200
    cases.append((post("load", name="z", folder="chain"), 400, "4 encoders are loaded, which is max_encoders"))
    assert post("unload", name="y").status_code == 200
    for answer, status, said in cases:
        assert answer.status_code == status and said in answer.json()["error"]["message"], answer.text


def test_keys_guard_chats_and_loading(resident_base, tenants):
    service = loaded(resident_base, {"contrast": tenants["contrast"]})
    service.keys = (KEY,)
    with running(service) as address:
        for path in ("v1/chat/completions", "v1/encoders/load", "v1/encoders/unload"):
            assert httpx.post(f"{address}/{path}", json={}).status_code == 401
        headers = {"authorization": f"Bearer {KEY}"}
        answer = httpx.post(f"{address}/v1/encoders/load", json={"name": "chain"}, headers=headers)
        assert answer.status_code == 400 and "start the server with --encoder-folder DIR" in answer.text
        one = httpx.post(f"{address}/v1/embeddings", json={"input": "a"}, headers=headers)
        assert one.status_code == 200 and one.json()["model"] == "base", "the only encoder needs no name"


def test_a_server_that_does_not_chat_or_load_says_so(resident_base, tenants):
    with running(loaded(resident_base, {"contrast": tenants["contrast"]}, chat=False)) as address:
        answer = httpx.post(f"{address}/v1/chat/completions", json={"messages": MESSAGES})
        assert answer.status_code == 400 and "start it with a language model and --chat" in answer.text
        assert [model["id"] for model in httpx.get(f"{address}/v1/models").json()["data"]] == ["contrast"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"encoder": ["contrast"]}, "give NAME=DIR"),
        ({"encoder": ["a=x", "a=y"]}, "the name a is in use"),
        ({"encoder": ["base=x"]}, "the name base is in use"),
        ({"chat": True, "backend": "openvino"}, "run on torch"),
        ({"chat": True, "pooling": "mean"}, "pooling belongs to one encoder"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        Service(Settings("some/base", **options))


def test_a_model_that_cannot_chat_is_refused_at_the_start(model_folder, tmp_path):
    def failure(**options: Any) -> str:
        service = Service(Settings(str(model_folder("llama")), chat=True, **options))
        service.load()
        return str(service.failure)

    assert "has no chat template; give one by --chat-template" in failure()
    assert "2 encoders, and max_encoders=1; raise it" in failure(encoder=["a=x", "b=y"], max_encoders=1)
    (tmp_path / "chat.jinja").write_text(TEMPLATE)
    assert failure(chat_template=tmp_path / "chat.jinja") == "None"


def test_stock_clients(address, alone, written):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0)
    options: dict[str, Any] = {"model": "base", "messages": MESSAGES, "temperature": 0, "max_tokens": 12}
    right = written(MESSAGES, 12)
    assert client.chat.completions.create(**options).choices[0].message.content == right
    parts = client.chat.completions.create(**options, stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == right
    vectors = client.embeddings.create(model="memory", input=SENTENCES).data
    assert np.abs(np.array([item.embedding for item in vectors]) - alone["memory"].encode(SENTENCES)).max() <= 1e-5


def test_langchain(address, alone, written):
    langchain = pytest.importorskip("langchain_openai")
    options: dict[str, Any] = {"base_url": f"{address}/v1", "api_key": "any", "max_retries": 0}
    right = written(MESSAGES, 12)
    model = langchain.ChatOpenAI(model="base", temperature=0, max_tokens=12, **options)
    answer = model.invoke("what is a fox?")
    assert answer.content == right and answer.usage_metadata["output_tokens"] == 12
    assert "".join(part.content for part in model.stream("what is a fox?")) == right
    embeddings = langchain.OpenAIEmbeddings(
        model="contrast",
        check_embedding_ctx_length=False,
        model_kwargs={"extra_body": {"input_type": "query"}},
        **options,
    )
    vectors = np.array(embeddings.embed_documents(SENTENCES))
    assert np.abs(vectors - alone["contrast"].encode_query(SENTENCES)).max() <= 1e-5
