"""Each limit of the server, and API keys: what is refused, with which status and words; and that it works again."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import httpx
import pytest

from tests.serving.running import Words, of_words, running
from tests.serving.test_faults import until
from tests.serving.test_refusals import ROUTES, error_of

EMBED = "/embed"
SECRET, OTHER = "first-secret-key", "second-secret-key"


@contextmanager
def waiting(*texts: list[str], **limits: int) -> Iterator[tuple[httpx.Client, Words]]:
    """A server whose forward passes wait; requests of these texts are being answered."""
    engine = Words()
    service = of_words(engine, **limits)
    engine.gate.clear()
    with running(service) as address, httpx.Client(base_url=address, timeout=20) as client:
        answers: list[httpx.Response] = []
        threads = [
            threading.Thread(
                target=lambda some=some: answers.append(httpx.post(f"{address}/embed", json={"inputs": some}))
            )
            for some in texts
        ]
        for thread in threads:
            thread.start()
        count = sum(map(len, texts))
        until(lambda: service.queue.texts == count)
        yield client, engine
        engine.gate.set()
        for thread in threads:
            thread.join()
        assert [answer.status_code for answer in answers] == [200] * len(texts)
        assert client.post(EMBED, json={"inputs": "a"}).status_code == 200, "it computes again"


def refused(answer: httpx.Response, status: int, code: str, words: str) -> None:
    error = error_of(answer)
    assert (answer.status_code, error["code"]) == (status, code), answer.text
    assert words in error["message"]
    assert ("retry-after" in answer.headers) == (status in (429, 503))
    if status == 429:
        assert error["type"] == "rate_limit_error" and int(answer.headers["retry-after"]) >= 1


def test_tokens_that_wait():
    """A request of any size is accepted where none waits; then only what fits beside it."""
    with waiting(["one two three"], ["four five six"], max_queued_tokens=10) as (client, _):  # 4 tokens each
        answer = client.post(EMBED, json={"inputs": "seven eight"})
        refused(answer, 429, "queue_full", "8 tokens wait to be computed, and at most 10 may")
    with waiting(["word " * 30], max_queued_tokens=10) as (client, _):
        refused(client.post(EMBED, json={"inputs": "a"}), 429, "queue_full", "31 tokens wait")
        unread = client.post(EMBED, content=b"{", headers={"content-type": "application/json"})
        refused(unread, 429, "queue_full", "31 tokens wait")  # before the body, which is no JSON, is read


def test_characters_of_a_text():
    """A text is tokenised as a whole, however few tokens are kept: one that would take seconds is refused."""
    service = of_words(Words(), max_text_characters=30)
    with (
        mock.patch.object(Words, "read", side_effect=AssertionError("it is tokenised")),
        running(service) as address,
        httpx.Client(base_url=address) as client,
    ):
        assert client.get("/info").json()["max_text_characters"] == 30
        for path, body in {
            "/v1/embeddings": {"input": ["a", "b" * 31]},
            EMBED: {"inputs": ["a", "b" * 31]},
            "/embed_all": {"inputs": ["a", "b" * 31]},
            "/tokenize": {"inputs": ["a", "b" * 31]},
            "/similarity": {"inputs": {"source_sentence": "a", "sentences": ["b" * 31]}},
        }.items():
            answer = client.post(path, json=body)
            refused(answer, 413, "too_many_characters", "text 1 has 31 characters; at most 30 are read: send its begin")
            assert error_of(answer)["param"] == ("input" if path == "/v1/embeddings" else "inputs")
        ids = client.post(EMBED, json={"inputs": [[7] * 31]})
        refused(ids, 413, "too_many_characters", "text 0 has 31 token ids; at most 30 are read")
        prompt = client.post(EMBED, json={"inputs": "a", "prompt": "b" * 31})
        refused(prompt, 413, "too_many_characters", "prompt has 31 characters")
        assert error_of(prompt)["param"] == "prompt"


@pytest.mark.parametrize(("tokens", "characters"), [(512, 100_000), (32_768, 262_144), (None, 100_000)])
def test_characters_by_default(tokens, characters):
    service = of_words(Words())
    with mock.patch.dict(service.ready()["max_length"], other=tokens):
        assert service.characters == characters
    service.close()


def test_requests_at_one_time():
    with waiting(["a"], ["b"], max_concurrent_requests=2) as (client, _):
        refused(client.post(EMBED, json={"inputs": "c"}), 429, "too_many_requests", "2 requests are being answered")
        assert client.get("/health").status_code == client.get("/metrics").status_code == 200, "probes are answered"


def test_bytes_of_all_bodies():
    with waiting(["a" * 200], bodies_bytes=300) as (client, _):
        refused(client.post(EMBED, json={"inputs": "b" * 200}), 429, "too_many_bytes", "fill the memory for them")


def test_size_of_a_body_and_number_of_texts():
    with (
        running(of_words(Words(), payload_limit=400, max_client_batch_size=3)) as address,
        httpx.Client(base_url=address) as client,
    ):
        for path in ROUTES:
            long = client.post(path, content=b"x" * 401, headers={"content-type": "application/json"})
            refused(long, 413, "body_too_large", "larger than 400 bytes; send fewer texts per request")
            assert long.headers["connection"] == "close", "what follows on the connection is the rest of the body"
            chunked = client.post(path, content=iter([b"x" * 300, b"x" * 300]))
            refused(chunked, 413, "body_too_large", "larger than 400 bytes")
        for path, body in {
            "/v1/embeddings": {"input": ["a"] * 4},
            EMBED: {"inputs": ["a"] * 4},
            "/embed_all": {"inputs": ["a"] * 4},
            "/tokenize": {"inputs": ["a"] * 4},
            "/similarity": {"inputs": {"source_sentence": "a", "sentences": ["b"] * 3}},
        }.items():
            refused(client.post(path, json=body), 413, "too_many_texts", "4 texts; at most 3 per request are allowed")
        assert client.post(EMBED, json={"inputs": ["a"] * 3}).status_code == 200


GIVEN = (None, "", "Bearer", f"Bearer {SECRET}x", f"Basic {SECRET}", SECRET, "Bearer ,", "Bearer \xff")
GET = ("/info", "/metrics", "/v1/models", "/openapi.json", "/nope", "/health/")


def test_api_keys(caplog):
    """Without one of them: the page, `/health`, and nothing else. They are in no answer, log line or `repr`."""
    service = of_words(Words(), keys=(SECRET, OTHER))
    assert SECRET not in repr(service.settings)
    caplog.set_level(logging.DEBUG, "embrew")
    said = []
    with running(service) as address, httpx.Client(base_url=address) as client:
        for path in ("/", "/health"):
            assert client.get(path).status_code == 200
        for given in GIVEN:
            headers = {} if given is None else {"authorization": given.encode("latin-1")}
            for method, path in [*(("POST", path) for path in ROUTES), *(("GET", path) for path in GET)]:
                answer = client.request(method, path, headers=headers, json=ROUTES.get(path))
                assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer", (path, given)
                error = error_of(answer)
                assert error["type"] == "authentication_error" and error["code"] == "invalid_api_key"
                assert "Authorization: Bearer KEY" in error["message"]
                said.append(answer.text)
        for key in (SECRET, OTHER):
            allowed = {"authorization": f"bearer {key}"}
            for path, body in ROUTES.items():
                if path != "/embed_all":
                    assert client.post(path, json=body, headers=allowed).status_code == 200, (key, path)
            for path in GET[:4]:
                answer = client.get(path, headers=allowed)
                assert answer.status_code == 200
                said.append(answer.text)
            said.append(client.post(EMBED, json={"inputs": 1}, headers=allowed).text)
    assert "/v1/embeddings" in caplog.text
    for text in (*said, caplog.text):
        assert SECRET not in text and OTHER not in text


def test_other_spellings_of_open_paths_need_a_key():
    asked: Any = {}

    async def ask() -> None:
        service = of_words(Words(), keys=(SECRET,))
        with running(service) as address:
            host, _, port = address.removeprefix("http://").partition(":")
            for path in (
                "/./info",
                "//",
                "//info",
                "/health/../info",
                "/health?x=/info",
                "//health",
                "/%69nfo",
                "http://a/info",
            ):
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(f"GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n".encode())
                asked[path] = (await reader.read()).split(b" ")[1]
                writer.close()

    asyncio.run(ask())
    assert asked.pop("/health?x=/info") == b"200"
    assert set(asked.values()) == {b"401"}, asked


def test_states_of_several_texts_are_limited_to_those_of_a_batch():
    """Their answer is larger than vectors by the number of tokens; one text is always answered."""
    with running(of_words(Words(), batch_tokens=6)) as address:
        for inputs, status in ((["a", "b c"], 200), (["a b", "c d e"], 413), (["a b c d e f g"], 200)):
            answer = httpx.post(f"{address}/embed_all", json={"inputs": inputs})
            assert answer.status_code == status, answer.text
            if status == 413:
                assert error_of(answer)["code"] == "too_many_states"
                assert "states of 7 tokens; at most 6" in error_of(answer)["message"]
