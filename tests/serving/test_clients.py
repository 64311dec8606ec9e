"""Stock clients against the server, unmodified: openai, huggingface_hub, LangChain, LlamaIndex, mteb."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from embrew.encoder import Encoder
from tests.conftest import SENTENCES
from tests.evaluation.test_mteb import local_task, task_metadata, texts
from tests.serving.encoders import LIMITS, check_same, made, serving_copy, wanted
from tests.serving.running import Words, of_words, running, served

slow = pytest.mark.slow


@pytest.fixture
def encoder(make_encoder: Callable[..., Encoder]) -> Encoder:
    return made(make_encoder, "last")


@pytest.fixture
def address(encoder: Encoder) -> Iterator[str]:
    with serving_copy(encoder) as found:
        yield found


def client_of(address: str, **options: Any) -> Any:
    openai = pytest.importorskip("openai")
    return openai.OpenAI(base_url=f"{address}/v1", **{"api_key": "any", "max_retries": 0, **options})


def array(answer: Any) -> np.ndarray:
    return np.array([item.embedding for item in answer.data], dtype=np.float32)


def test_openai(address: str, encoder: Encoder) -> None:
    client = client_of(address)
    (model,) = client.models.list().data
    create = client.embeddings.create
    many = [f"{text} {number}" for number in range(10) for text in SENTENCES]
    right = wanted(encoder, many, {})
    answers = [create(model=model.id, input=many, **form) for form in ({}, {"encoding_format": "float"})]
    for answer in answers:  # the client asks for base64 unless it is told otherwise
        assert [item.index for item in answer.data] == list(range(len(many)))
        assert answer.object == "list" and answer.model == model.id and answer.data[0].object == "embedding"
        check_same(array(answer), right, {})
    assert array(answers[0]).tobytes() == array(answers[1]).tobytes(), "base64 and float: the same bits"
    assert isinstance(create(model="tiny", input="a", encoding_format="base64").data[0].embedding, str)
    short = array(create(model="tiny", input=many[:3], dimensions=8))
    check_same(short, wanted(encoder, many[:3], {"dimensions": 8}), {})
    asked = {"input_type": "query", "prompt_name": "long", "num_layers": 1, "normalize": False}
    check_same(array(create(model="tiny", input=many[:3], extra_body=asked)), wanted(encoder, many[:3], asked), asked)


def test_openai_counts_the_tokens_that_the_model_reads(address: str) -> None:
    """The template is BOS, prompt, text, EOS; limits are 100 tokens of queries and 112 of documents."""
    create = client_of(address).embeddings.create

    def used(texts: Any, **asked: Any) -> int:
        usage = create(model="tiny", input=texts, extra_body=asked).usage
        assert usage.prompt_tokens == usage.total_tokens
        return int(usage.total_tokens)

    assert used([70, 71, 72]) == used([[70, 71, 72]]) == 1 + 3 + 1
    assert used([[70], [70, 71, 72, 73]]) == 1 + 1 + 1 + 1 + 4 + 1
    assert used("") == 2
    assert used([[70] * 500]) == LIMITS["document"]
    assert used([[70] * 500, [70]], input_type="query") == LIMITS["query"] + used([70], input_type="query")
    assert used([70], prompt="a") == 1 + 1 + 1 + 1
    assert used([70], prompt_name="sea") > used([70], prompt="Find it: ") + 2 * 2, "vectors of demonstrations count"


def test_openai_errors(address: str) -> None:
    openai = pytest.importorskip("openai")
    create = client_of(address).embeddings.create
    refused: list[tuple[Any, dict[str, Any], str]] = [
        (openai.BadRequestError, {"dimensions": 33}, "dimensions"),
        (openai.BadRequestError, {"extra_body": {"prompt_name": "x"}}, "prompt_name"),
        (openai.NotFoundError, {"model": "gpt"}, "model"),
        (openai.UnprocessableEntityError, {"input": [999]}, "input"),
        (openai.UnprocessableEntityError, {"input": "a" * 500, "extra_body": {"truncate": False}}, "input"),
        (openai.APIStatusError, {"input": ["a"] * 2049}, "input"),
    ]
    for kind, given, field in refused:
        with pytest.raises(kind) as caught:
            create(**{"model": "tiny", "input": "a", **given})
        assert caught.value.param == field and caught.value.type == "invalid_request_error"
        assert caught.value.request_id is not None
    with pytest.raises(openai.NotFoundError, match="no path /v1/chat/completions"):
        client_of(address).chat.completions.create(model="tiny", messages=[])


def test_openai_keys_and_a_busy_server() -> None:
    openai = pytest.importorskip("openai")
    engine = Words()
    engine.gate.clear()
    with running(of_words(engine, keys=("any",), max_queued_tokens=6)) as address:
        with pytest.raises(openai.AuthenticationError, match="no valid API key"):
            client_of(address, api_key="other").embeddings.create(model="words", input="a")
        first = threading.Thread(
            target=client_of(address).embeddings.create, kwargs={"model": "words", "input": ["a b", "c d"]}
        )
        first.start()
        _until(lambda: "embrew_queue_texts 2.0" in _metrics(address))
        with pytest.raises(openai.RateLimitError) as caught:
            client_of(address).embeddings.create(model="words", input="a b")
        assert caught.value.response.headers["retry-after"] == "1" and caught.value.code == "queue_full"
        later = threading.Timer(0.2, engine.gate.set)
        later.start()
        answer = client_of(address, max_retries=1).embeddings.create(model="words", input="a b")
        assert len(answer.data) == 1, "the client has waited as long as it was told to, and asked again"
        first.join()
        assert 'embrew_requests_total{path="/v1/embeddings",status="429"} 2.0' in _metrics(address)


def _metrics(address: str) -> str:
    return httpx.get(f"{address}/metrics", headers={"authorization": "Bearer any"}).text


def _until(found: Callable[[], bool]) -> None:
    for _ in range(2000):
        if found():
            return
    raise AssertionError("not within 2000 requests")


@slow
def test_a_connection_that_was_idle_is_answered() -> None:
    """Clients keep connections for about 5 seconds; one that the server closes just then would lose a request."""
    with served("nano") as process:
        host, _, port = process.ready().removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            for idle in (0, 7):
                time.sleep(idle)
                connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
                said = b""
                while not said.endswith(b'{"status":"ready"}'):  # head and body may arrive one after the other
                    part = connection.recv(4096)
                    assert part, f"the connection was closed after {said!r}"
                    said += part
                assert said.startswith(b"HTTP/1.1 200")


@slow
def test_huggingface_hub(address: str, encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where `HF_HUB_OFFLINE` is set: it refuses all addresses then, also those of this machine."""
    from huggingface_hub import InferenceClient, constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    client = InferenceClient(f"{address}/embed")
    given = client.feature_extraction(SENTENCES, prompt_name="query", normalize=False, truncate=True, dimensions=8)
    asked = {"prompt_name": "query", "normalize": False, "dimensions": 8}
    check_same(given, wanted(encoder, SENTENCES, asked), asked)
    given = client.feature_extraction(SENTENCES[0], truncation_direction="right")
    check_same(given, wanted(encoder, SENTENCES[:1], {}), {})
    cosines = InferenceClient(f"{address}/similarity").sentence_similarity(SENTENCES[0], SENTENCES[1:])
    vectors = wanted(encoder, SENTENCES, {})
    assert np.abs(np.array(cosines) - vectors[1:] @ vectors[0]).max() < 2e-6


@slow
def test_langchain(address: str, encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `check_embedding_ctx_length=False`; else it sends token ids of OpenAI's tokenizer, which are other words."""
    openai = pytest.importorskip("openai")
    OpenAIEmbeddings = pytest.importorskip("langchain_openai").OpenAIEmbeddings
    options: dict[str, Any] = {"base_url": f"{address}/v1", "api_key": "any", "model": "tiny"}
    plain = OpenAIEmbeddings(**options, check_embedding_ctx_length=False)
    many = [f"{text} {number}" for number in range(20) for text in SENTENCES] + ["", "\n a \n"]
    given = np.array(plain.embed_documents(many), dtype=np.float32)
    check_same(given, wanted(encoder, many, {}), {})
    query = OpenAIEmbeddings(
        **options, check_embedding_ctx_length=False, dimensions=8, model_kwargs={"extra_body": {"input_type": "query"}}
    )
    given = np.array([query.embed_query(SENTENCES[0])], dtype=np.float32)
    check_same(given, wanted(encoder, SENTENCES[:1], {"input_type": "query", "dimensions": 8}), {})

    import tiktoken

    def of_bytes(first: int) -> Any:
        ranks = {bytes([i]): first + i for i in range(256)}
        return tiktoken.Encoding("bytes", pat_str=r"[\s\S]", mergeable_ranks=ranks, special_tokens={})

    checking = OpenAIEmbeddings(**options)
    monkeypatch.setattr(tiktoken, "get_encoding", lambda _: of_bytes(10_000))
    with pytest.raises(openai.UnprocessableEntityError, match="ids are from 0 to"):
        checking.embed_query(SENTENCES[0])
    monkeypatch.setattr(tiktoken, "get_encoding", lambda _: of_bytes(0))
    other = np.array(checking.embed_query(SENTENCES[0]), dtype=np.float32)
    assert np.abs(other - wanted(encoder, SENTENCES[:1], {})[0]).max() > 0.01, "a large vocabulary has all the ids"


@slow
def test_llama_index(address: str, encoder: Encoder) -> None:
    """It replaces line breaks by spaces before it sends a text."""
    OpenAIEmbedding = pytest.importorskip("llama_index.embeddings.openai").OpenAIEmbedding
    options: dict[str, Any] = {"api_base": f"{address}/v1", "api_key": "any", "model_name": "tiny"}
    model = OpenAIEmbedding(**options)
    given = np.array(model.get_text_embedding_batch([*SENTENCES, "a\nb"]), dtype=np.float32)
    check_same(given, wanted(encoder, [*SENTENCES, "a b"], {}), {})
    asked = {"input_type": "query"}
    query = OpenAIEmbedding(**options, dimensions=8, additional_kwargs={"extra_body": asked})
    given = np.array([query.get_query_embedding(SENTENCES[0])], dtype=np.float32)
    check_same(given, wanted(encoder, SENTENCES[:1], {**asked, "dimensions": 8}), {})


@slow
def test_mteb(address: str, encoder: Encoder) -> None:
    """The wrapper for OpenAI's API gives the score of the encoder in this process, without a prompt and with one."""
    mteb = pytest.importorskip("mteb")
    from mteb.abstasks.sts import AbsTaskSTS
    from mteb.models import OpenAIAPIEncodeWrapper

    sides = texts(60, 1), texts(60, 2)
    scores = np.random.default_rng(1).uniform(0, 5, 60).tolist()
    rows = [{"sentence1": a, "sentence2": b, "score": score} for a, b, score in zip(*sides, scores, strict=True)]
    metadata = task_metadata("LocalSTS", "STS", "cosine_spearman")
    task = local_task(AbsTaskSTS, metadata, {"test": rows}, min_score=0, max_score=5)

    def score(model: Any) -> float:
        result = mteb.evaluate(model, [task], cache=None, show_progress_bar=False)
        return float(result.task_results[0].get_score())

    plain = score(OpenAIAPIEncodeWrapper(address, "tiny", use_chat_template=False))
    assert plain == pytest.approx(score(encoder), abs=1e-4)
    prompted = OpenAIAPIEncodeWrapper(
        address,
        "tiny",
        use_chat_template=False,
        use_instructions=True,
        instruction_template="{instruction}",
        prompt_dict={"LocalSTS": "find: "},
    )
    right = score(encoder.with_settings(default_prompt_name="query"))
    assert plain != score(prompted) == pytest.approx(right, abs=1e-4)
    with pytest.raises(RuntimeError, match="messages is no field of this request"):
        score(OpenAIAPIEncodeWrapper(address, "tiny"))  # vLLM's chat templates, its default
