"""On a local Ray, replicas give the answers of `embrew serve`, and others take the place of those that end."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
import yaml

from embrew.cli.recipe import read_launch
from embrew.encoder import Encoder
from embrew.model.context_vectors import initialize_demonstrator
from embrew.model.contexts import Context
from embrew.serving.ray import app, read_arguments
from embrew.serving.routes import create_app
from embrew.serving.settings import Settings
from embrew.settings.encoder import Demonstration, Demonstrations
from tests.local_ray import ending_what_starts, environment
from tests.ports import free_port
from tests.serving.encoders import LIMITS, PROMPTS, TEXTS, check_same, wanted
from tests.serving.running import Words, of_words

KEY = "a-key-of-the-tests"
EXAMPLES = ("served_model_name", "api_key_file", "encoder")
STRINGS = [text for text in TEXTS if isinstance(text, str)]
MODEL = "/shared/encoders/supervised"
slow = pytest.mark.slow


def shipped() -> dict[str, Any]:
    return yaml.safe_load(read_launch("launch/ray-serve"))


def test_the_arguments_in_the_shipped_file_are_settings_at_their_defaults():
    text = read_launch("launch/ray-serve")
    (application,) = shipped()["applications"]
    assert application["import_path"] == "embrew.serving.ray:app" and application["args"] == {"model": MODEL}
    offered = re.findall(r"^ {6}# (\w+: \S+)", text, re.MULTILINE)
    args = yaml.safe_load("\n".join(offered))
    known = {field.name: field.default for field in fields(Settings)}
    assert set(args) | {"model"} == set(known)
    assert known["model"] is MISSING
    assert {name: args[name] for name in known if name in args and name not in EXAMPLES} == {
        name: value for name, value in known.items() if name in args and name not in EXAMPLES
    }


def test_routes_and_keys_of_an_application_under_a_prefix():
    service = of_words(Words(), keys=("k",), max_client_batch_size=1)

    async def ask(path: str, body: Any = None, key: str = "k") -> httpx.Response:
        transport = httpx.ASGITransport(app=create_app(service), root_path="/two")
        headers = {"authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://server", headers=headers) as client:
            return await (client.get(path) if body is None else client.post(path, json=body))

    assert [asyncio.run(ask(f"/two{path}", key="no")).status_code for path in ("/health", "/", "/info")] == [
        200,
        200,
        401,
    ]
    assert 'embrew_requests_total{path="/health",status="200"} 1.0' in asyncio.run(ask("/two/metrics")).text
    for path, field in (("/v1/embeddings", "input"), ("/embed", "inputs")):
        answer = asyncio.run(ask(f"/two{path}", {field: ["a", "b"]}))
        assert (answer.status_code, answer.json()["error"]["param"]) == (413, field)


# On a local Ray


class Cluster:
    """`serve run` of three applications: the shipped one, one of two replicas with a key, and a model of words."""

    def __init__(self, folder: Path, model: Path, tenants: Sequence[str], env: dict[str, str]) -> None:
        port = free_port()
        config = yaml.safe_load(read_launch("launch/ray-serve").replace(MODEL, str(model)))
        config["http_options"]["port"] = port
        replica = {"name": "Embeddings", "ray_actor_options": {"num_cpus": 0.1}, "health_check_period_s": 1}
        two = {
            "name": "two",
            "import_path": "embrew.serving.ray:app",
            "route_prefix": "/two",
            "runtime_env": {"env_vars": {"EMBREW_API_KEY": KEY}},
            "args": {
                "model": "nano",
                "pooling": "mean",
                "served_model_name": "small",
                "max_client_batch_size": 3,
                "payload_limit": 1000,
                "timeout": 60,
            },
            "deployments": [{**replica, "num_replicas": 2}],
        }
        words = {
            "name": "words",
            "import_path": "tests.serving.on_ray:app",
            "route_prefix": "/words",
            "args": {"max_concurrent_requests": 2, "timeout": 5, "drain": 10},
            "deployments": [replica],
        }
        base, *folders = tenants
        one = {
            "name": "one",
            "import_path": "embrew.serving.ray:app",
            "route_prefix": "/one",
            "args": {"model": base, "encoder": folders, "max_encoders": 1, "chat": True},
            "deployments": [replica],
        }
        config["applications"] += [two, words, one]
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        self.root = f"http://127.0.0.1:{port}"
        self.log = folder / "log"
        serve = [sys.executable, "-m", "ray.serve.scripts", "run", "config.yaml"]
        self.process = subprocess.Popen(
            serve, cwd=folder, env=env, stdout=self.log.open("wb"), stderr=subprocess.STDOUT, start_new_session=True
        )

    def wait(self, found: Callable[[], Any], seconds: float = 420) -> None:
        ends = time.monotonic() + seconds
        while not found():
            assert self.process.poll() is None and time.monotonic() < ends, self.log.read_text()[-5000:]
            time.sleep(0.3)

    def end(self) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def healthy(self, prefix: str = "") -> bool:
        try:
            return httpx.get(f"{self.root}{prefix}/health", timeout=20).status_code == 200
        except httpx.TransportError:
            return False

    def replicas(self, name: str) -> set[int]:
        title = f"ray::ServeReplica:{name}:Embeddings"
        found = psutil.Process(self.process.pid).children(recursive=True)
        return {process.pid for process in found if process.is_running() and title in _title(process)}


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> tuple[Path, Encoder]:
    """A folder of an encoder with prompts, two limits, an adapter and a context; and the encoder, opened."""
    made = Encoder.from_pretrained(
        "nano", pooling="last", prompts=PROMPTS, max_length=LIMITS, demonstrations=Demonstrations()
    )
    initialize_demonstrator(made)
    made.add_context("sea", Context("Find it: ", (Demonstration("sea?", "The sea is deep."),)))
    made.backbone.add_lora({"r": 4, "lora_alpha": 8})
    folder = tmp_path_factory.mktemp("ray") / "encoder"
    made.save_pretrained(folder, verify="off")
    return folder, Encoder.from_pretrained(folder)


@pytest.fixture(scope="module")
def cluster(encoder, resident_base, tenants, tmp_path_factory) -> Iterator[Cluster]:
    pytest.importorskip("ray.serve", reason='pip install "embrew[ray,serve]" to run this test')
    with environment() as env:
        several = [str(resident_base), *(f"{kind}={tenants[kind]}" for kind in ("contrast", "memory"))]
        found = Cluster(tmp_path_factory.mktemp("cluster"), encoder[0], several, env)
        with ending_what_starts(found.end, psutil.Process(found.process.pid)):
            for prefix in ("", "/two", "/words", "/one"):
                found.wait(lambda prefix=prefix: found.healthy(prefix))
            found.wait(lambda: len(found.replicas("two")) == 2)
            yield found


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({}, "model is missing"),
        ({"model": "nano", "max_batch_tokns": 3}, "unknown key max_batch_tokns.*did you mean 'max_batch_tokens'"),
        (
            {"model": "nano", "max_concurrent_requests": "many"},
            "max_concurrent_requests='many'; allowed: a valid integer",
        ),
        ({"model": "nano", "keys": ["k"]}, "unknown key keys"),
    ],
)
def test_arguments_that_do_not_fit(args, words):
    with pytest.raises(ValueError, match=words):
        app(args)


def test_arguments_of_the_command_line_are_strings(tmp_path, monkeypatch):
    (tmp_path / "encoder").mkdir()
    monkeypatch.chdir(tmp_path)
    given = {
        "model": "encoder",
        "max_batch_tokens": "64",
        "auto_truncate": "false",
        "drain": "2.5",
        "api_key_file": "k",
    }
    settings = read_arguments(given)
    assert settings == Settings(
        str(tmp_path / "encoder"), max_batch_tokens=64, auto_truncate=False, drain=2.5, api_key_file=tmp_path / "k"
    )
    assert read_arguments({"model": "org/model"}).model == "org/model"
    encoders = read_arguments({"model": "encoder", "encoder": ["a=some/folder"], "encoder_folder": "all"})
    assert encoders.read_encoders() == {"a": str(tmp_path / "some" / "folder")}
    assert encoders.encoder_folder == tmp_path / "all"


@slow
@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"input_type": "query"},
        {"input_type": "document", "dimensions": 12},
        {"prompt_name": "sea", "num_layers": 1},
        {"prompt": "a title: ", "normalize": False},
        {"input_type": "query", "precision": "binary"},
    ],
    ids=str,
)
def test_vectors_are_those_of_encode(asked, cluster, encoder):
    body = {"input": STRINGS, **asked}
    answer = httpx.post(f"{cluster.root}/v1/embeddings", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    right = wanted(encoder[1], STRINGS, asked)
    given = np.array([row["embedding"] for row in answer.json()["data"]], dtype=right.dtype)
    check_same(given, right, asked)
    assert len(answer.headers.get_list("x-request-id")) == 1


@slow
def test_the_client_of_openai_and_a_key(cluster):
    import openai

    right = openai.OpenAI(base_url=f"{cluster.root}/two/v1", api_key=KEY, max_retries=0)
    answer = right.embeddings.create(model="small", input=["a fox", "a sea"], dimensions=8)
    assert [len(row.embedding) for row in answer.data] == [8, 8]
    wrong = openai.OpenAI(base_url=f"{cluster.root}/two/v1", api_key="no key", max_retries=0)
    with pytest.raises(openai.AuthenticationError, match="no valid API key"):
        wrong.embeddings.create(model="small", input="a")
    for path, status in (("/health", 200), ("/", 200), ("/info", 401), ("/metrics", 401)):
        assert httpx.get(f"{cluster.root}/two{path}", timeout=20).status_code == status
    assert KEY not in cluster.log.read_text()


@slow
def test_too_many_requests_are_refused_with_429_and_slow_ones_with_503(cluster):
    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post("/words/embed", json={"inputs": "wait 1"})

    async def many() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=cluster.root, timeout=60) as client:
            return await asyncio.gather(*(ask(client) for _ in range(12)))

    answers = asyncio.run(many())
    assert Counter(answer.status_code for answer in answers) == {200: 2, 429: 10}
    refused = [answer for answer in answers if answer.status_code == 429]
    assert all(answer.json()["error"]["code"] == "too_many_requests" for answer in refused)
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    late = httpx.post(f"{cluster.root}/words/embed", json={"inputs": "wait 6"}, timeout=60)
    assert (late.status_code, late.json()["error"]["code"]) == (503, "timeout")
    assert int(late.headers["retry-after"]) >= 1


@slow
def test_a_replica_that_is_killed_is_replaced_and_the_other_answers_meanwhile(cluster):
    client = httpx.Client(base_url=f"{cluster.root}/two", headers={"authorization": f"Bearer {KEY}"}, timeout=60)
    before = client.post("/embed", json={"inputs": "a fox"}).json()
    first = cluster.replicas("two")
    assert len(first) == 2
    victim = min(first)
    os.kill(victim, signal.SIGKILL)
    statuses: list[int] = []

    def recovered() -> bool:
        statuses.append(client.post("/embed", json={"inputs": "a fox"}).status_code)
        now = cluster.replicas("two")
        return len(now) == 2 and victim not in now and cluster.healthy("/two")

    cluster.wait(recovered)
    assert sum(status != 200 for status in statuses) <= 2, statuses
    assert statuses[-1] == 200
    assert np.allclose(client.post("/embed", json={"inputs": "a fox"}).json(), before, atol=1e-6)


@slow
def test_a_replica_loads_the_encoders_that_requests_name_one_at_a_time(cluster, tenants):
    for kind in ("contrast", "memory", "contrast"):
        right = Encoder.from_pretrained(tenants[kind], merge_adapter=True).encode(STRINGS)
        body = {"input": STRINGS, "model": kind}
        headers = {"serve_multiplexed_model_id": kind}
        answer = httpx.post(f"{cluster.root}/one/v1/embeddings", json=body, headers=headers, timeout=60)
        assert answer.status_code == 200, answer.text
        vectors = np.array([item["embedding"] for item in answer.json()["data"]])
        assert np.abs(vectors - right).max() <= 1e-5
    names = [model["id"] for model in httpx.get(f"{cluster.root}/one/v1/models").json()["data"]]
    assert names == ["contrast", "memory", "base"]
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3}
    assert httpx.post(f"{cluster.root}/one/v1/chat/completions", json=body, timeout=60).status_code == 200
    refused = httpx.post(f"{cluster.root}/one/v1/encoders/unload", json={"name": "memory"})
    assert refused.status_code == 400 and "Ray Serve loads and unloads encoders" in refused.text
