"""Stock clients against the server, unmodified: openai, huggingface_hub, LangChain, LlamaIndex, mteb."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from embrew.encoder import Encoder
from tests.conftest import SENTENCES
from tests.serving.encoders import LIMITS, check_same, made, serving_copy, wanted

slow = pytest.mark.slow


@pytest.fixture
def encoder(make_encoder) -> Encoder:
    return made(make_encoder, "last")


@pytest.fixture
def address(encoder) -> Iterator[str]:
    with serving_copy(encoder) as found:
        yield found


def client_of(address: str, **options: Any) -> Any:
    openai = pytest.importorskip("openai")
    return openai.OpenAI(base_url=f"{address}/v1", **{"api_key": "any", "max_retries": 0, **options})


def array(answer: Any) -> np.ndarray:
    return np.array([item.embedding for item in answer.data], dtype=np.float32)


def test_openai(address, encoder):
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


def test_openai_counts_the_tokens_that_the_model_reads(address):
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


@slow
def test_huggingface_hub(address, encoder, monkeypatch):
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
