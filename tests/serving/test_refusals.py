"""What no request may bring about is a 500: malformed bodies and fields, as OpenAI's error object, with what to do."""

from __future__ import annotations

import gzip
import json
from typing import Any

import httpx
import pytest

from embrew.encoder import Encoder
from tests.serving.encoders import made, serving_copy

JSON = {"content-type": "application/json"}
DIGITS = "1" + "0" * 5000
OPENAI, EMBED, SIMILARITY = "/v1/embeddings", "/embed", "/similarity"
ROUTES: dict[str, dict[str, Any]] = {
    OPENAI: {"input": "a"},
    EMBED: {"inputs": "a"},
    "/embed_all": {"inputs": "a"},
    SIMILARITY: {"inputs": {"source_sentence": "a", "sentences": ["b"]}},
    "/tokenize": {"inputs": "a"},
}
Refusal = tuple[str, str | bytes, int, str | None, str]
REFUSED: list[Refusal] = [  # path, body, status, field, words of the message
    (OPENAI, r'{"input": "a\ud800"}', 400, "input", r"text 0 holds a lone surrogate ('\ud800' at character 1)"),
    (OPENAI, r'{"input": ["a", "\udc00"]}', 400, "input", "text 1 holds a lone surrogate"),
    (OPENAI, r'{"input": "a", "prompt": "b\ud800"}', 400, "prompt", "lone surrogate"),
    (OPENAI, r'{"input": "a", "prompt_name": "\ud800"}', 400, "prompt_name", "this encoder has document, long, query"),
    (OPENAI, r'{"input": "a", "model": "\ud800"}', 404, "model", "this server has tiny"),
    (OPENAI, r'{"input": "a", "\ud800": 1}', 400, None, "a field whose name is not valid"),
    (OPENAI, '{"input": "a", "input_type": "\\ud800"}', 400, "input_type", "unicode"),
    (OPENAI, '{"input": "a", "dimensions": 1e999}', 400, "dimensions", "dimensions=Infinity: "),
    (OPENAI, '{"input": "a", "dimensions": NaN}', 400, "dimensions", "dimensions=NaN: "),
    (
        OPENAI,
        '{"input": "a", "dimensions": true}',
        400,
        "dimensions",
        "dimensions=true: Input should be a valid",
    ),
    (OPENAI, '{"input": "a", "dimensions": "1"}', 400, "dimensions", 'dimensions="1": Input should be'),
    (OPENAI, '{"input": "a", "dimensions": 1.0}', 400, "dimensions", "valid integer"),
    (OPENAI, '{"input": "a", "dimensions": 0}', 400, "dimensions", "greater than or equal to 1"),
    (OPENAI, '{"input": "a", "dimensions": 33}', 400, "dimensions", "dimensions=33; this model has 32 dimensions"),
    (OPENAI, f'{{"input": "a", "dimensions": {DIGITS[:900]}}}', 400, "dimensions", "less than or equal to 2147483647"),
    (OPENAI, f'{{"input": "a", "dimensions": {DIGITS}}}', 400, None, "numbers of a normal length"),
    (OPENAI, f'{{"input": [{DIGITS}]}}', 400, None, "numbers of a normal length"),
    (OPENAI, f'{{"input": [{DIGITS[:40]}]}}', 422, "input", "ids are from 0 to 302"),
    (OPENAI, '{"input": [[1], [-1]]}', 422, "input", "text 1 holds the token id -1; ids are from 0 to 302"),
    (OPENAI, '{"input": [1, true]}', 400, "input", "text 0 holds no token id at position 1"),
    (OPENAI, '{"input": [1.0]}', 400, "input", "text 0 is neither a string nor a list of token ids"),
    (OPENAI, '{"input": ["a", null]}', 400, "input", "text 1 is neither"),
    (OPENAI, '{"input": [1, "a"]}', 400, "input", "no token id at position 1"),
    (OPENAI, '{"input": [[[1]]]}', 400, "input", "no token id at position 0"),
    (OPENAI, '{"input": {"a": 1}}', 400, "input", "give a string, a list of strings"),
    (OPENAI, '{"input": null}', 400, "input", "give a string, a list of strings"),
    (OPENAI, '{"input": []}', 400, "input", "an empty list; give at least one text"),
    (OPENAI, '{"input": "a", "num_layers": 3}', 400, "num_layers", "num_layers=3; this model has 2 layers"),
    (OPENAI, '{"input": "a", "precision": "int8"}', 400, "precision", "start it with --int8-ranges"),
    (OPENAI, '{"input": "a", "precision": "fp8"}', 400, "precision", "precision=\"fp8\": Input should be 'float32'"),
    (OPENAI, '{"input": "a", "encoding_format": "base64", "precision": "binary"}', 400, "encoding_format", "to float"),
    (OPENAI, '{"input": "a", "encoding_format": "hex"}', 400, "encoding_format", "'float' or 'base64'"),
    (OPENAI, '{"input": "a", "prompt": 1}', 400, "prompt", "prompt=1: Input should be a valid string"),
    (OPENAI, '{"input": "a", "prompt_name": "x"}', 400, "prompt_name", "prompt_name='x'; this encoder has document"),
    (OPENAI, json.dumps({"input": "a", "prompt": "b " * 200}), 400, "prompt", "no room for a text within 112 tokens"),
    (OPENAI, json.dumps({"input": ["a", "b" * 200], "truncate": False}), 422, "input", "text 1 has 204 tokens"),
    (OPENAI, '{"input": "a", "temperature": 1}', 400, "temperature", "temperature is no field of this request"),
    (OPENAI, '{"model": "tiny"}', 400, "input", "input is missing, which is required"),
    (OPENAI, '{"inputs": "a"}', 400, "input", "input is missing, which is required; inputs is no field"),
    (OPENAI, '{"input": "a", "model": "gpt"}', 404, "model", "model='gpt'; this server has tiny"),
    (OPENAI, json.dumps({"input": ["a"] * 2049}), 413, "input", "2049 texts; at most 2048"),
    (OPENAI, '{"input": "' + "a" * 9_000_000 + '"}', 413, None, "larger than 8388608 bytes"),
    (OPENAI, "[" * 100_000 + "]" * 100_000, 400, None, "nested"),
    (OPENAI, '{"input": ' + '{"a":' * 100_000 + "1" + "}" * 100_001, 400, None, "nested"),
    (OPENAI, "null", 400, None, "the body is a JSON null; send a JSON object"),
    (OPENAI, "[1]", 400, None, "the body is a JSON array"),
    (OPENAI, "1", 400, None, "the body is a JSON number"),
    (OPENAI, "", 400, None, "the body is empty; send a JSON object"),
    (OPENAI, '{"input": ', 400, None, "no valid JSON (Expecting value, character 10)"),
    (OPENAI, b'{"input": "a\x01"}', 400, None, "control character"),
    (OPENAI, b'{"input": "\xff\xfe"}', 400, None, "UTF-8"),
    (EMBED, r'{"inputs": ["a", "\ud800"]}', 400, "inputs", "text 1 holds a lone surrogate"),
    (EMBED, '{"inputs": [999]}', 422, "inputs", "holds the token id 999"),
    (EMBED, '{"inputs": "a", "truncation_direction": "left"}', 400, "truncation_direction", "'right'"),
    ("/embed_all", '{"inputs": "a", "dimensions": 1}', 400, "dimensions", "no field of this request"),
    ("/tokenize", r'{"inputs": "a", "prompt": "\ud800"}', 400, "prompt", "lone surrogate"),
    ("/tokenize", json.dumps({"inputs": "a", "prompt": "b " * 200}), 400, "prompt", "no room for a text"),
    (OPENAI, r'{"input": "a", "prompt": "private \ud800"}', 400, "prompt", "prompt: it holds a lone surrogate ("),
    (OPENAI, json.dumps({"input": "a", "model": "m" * 100}), 404, "model", f"model='{'m' * 60}'; this server has tiny"),
    (
        SIMILARITY,
        '{"inputs": {"source_sentence": "a", "sentences": "private"}}',
        400,
        "inputs.sentences",
        "inputs.sentences: Input should be a valid list",
    ),
    (OPENAI, json.dumps({f"f{i}": 1 for i in range(101)}), 400, None, "the body has 101 fields"),
    (SIMILARITY, '{"inputs": {"source_sentence": "a"}}', 400, "inputs.sentences", "inputs.sentences is missing"),
    (SIMILARITY, '{"inputs": {"source_sentence": "a", "sentences": [1]}}', 400, "inputs.sentences", "valid string"),
    (
        SIMILARITY,
        r'{"inputs": {"source_sentence": "a", "sentences": ["\ud800"]}}',
        400,
        "inputs.sentences",
        "lone surrogate",
    ),
]
READ: list[str | bytes] = [  # unusual, and to be read
    r'{"input": "a\u0000b"}',
    r'{"input": "a", "prompt": "\u0000"}',
    r'{"input": "a", "user": "\ud800"}',
    '{"input": "b", "input": "a"}',
    '{"input": ["a", [70]]}',
    '{"input": [[]]}',
    '{"input": ""}',
    '{"input": "a", "encoding_format": null, "dimensions": null, "user": null, "model": null}',
    b'\xef\xbb\xbf{"input": "a"}',
    '{"input": "a"}'.encode("utf-16"),
]


@pytest.fixture
def tiny(make_encoder) -> Encoder:
    return made(make_encoder, "memory, mean")


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """The error of an answer, which has to be OpenAI's object and nothing else."""
    assert answer.headers["content-type"] == "application/json", answer.text
    (error,) = answer.json().values()
    assert set(error) == {"message", "type", "param", "code"} and answer.json() == {"error": error}
    assert "Traceback" not in error["message"]
    return dict(error)


def test_a_prompt_that_the_template_would_ignore(make_encoder):
    encoder = make_encoder(memory_tokens=0, attention="causal", pooling="last", template='"{text}" in one word:"')
    with serving_copy(encoder) as address, httpx.Client(base_url=address) as client:
        for path in (OPENAI, EMBED, "/embed_all", "/tokenize"):
            field = "input" if path == OPENAI else "inputs"
            answer = client.post(path, json={field: "a", "prompt": "find: "})
            assert answer.status_code == 400 and error_of(answer)["param"] == "prompt", (path, answer.text)
            assert "no place for a prompt" in answer.text
            for harmless in ({"prompt": ""}, {"input_type": "query"}):
                assert client.post(path, json={field: "a", **harmless}).status_code == 200, path


def test_bodies_and_fields(tiny):
    with serving_copy(tiny) as address, httpx.Client(base_url=address, headers=JSON) as client:
        for path, body, status, field, words in REFUSED:
            answer = client.post(path, content=body)
            error, shown = error_of(answer), (path, body[:90], answer.text)
            assert answer.status_code == status, shown
            assert error["param"] == field and words in error["message"], shown
            assert error["type"] == "invalid_request_error", shown
        for given in READ:
            assert client.post(OPENAI, content=given).status_code == 200, given


def test_headers_methods_and_paths(tiny):
    body = '{"input": "a"}'
    with serving_copy(tiny) as address, httpx.Client(base_url=address) as client:
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", None):
            answer = client.post(OPENAI, content=body, headers={} if kind is None else {"content-type": kind})
            said = f"the content type is {kind or 'none'}; send a JSON object with content-type: application/json"
            assert answer.status_code == 400 and error_of(answer)["message"] == said
        packed = {**JSON, "content-encoding": "gzip"}
        answer = client.post(OPENAI, content=gzip.compress(body.encode()), headers=packed)
        assert answer.status_code == 400 and "content-encoding is gzip; send it uncompressed" in answer.text
        for path in ROUTES:
            for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "UNHEARD-OF"):
                answer = client.request(method, path)
                assert answer.status_code == 405 and answer.headers["allow"] == "POST"
                assert error_of(answer)["message"] == f"{method} is not allowed for {path}; use POST"
            assert client.head(path).status_code == 405
        for path in ("/nope", "/v1", "/v1/embeddings/", "/docs", "/redoc", "/%ff", "/..%2f..%2fetc/passwd"):
            answer = client.get(path)
            assert answer.status_code == 404 and error_of(answer)["code"] == "unknown_path"
        for given in (b"a b", b"a\tb", b"x" * 65, "é".encode(), b""):
            answer = client.get("/health", headers=[(b"x-request-id", given)])
            assert answer.status_code == 200
            assert len(answer.headers["x-request-id"]) == 32, given
        assert client.get("/health", headers={"x-request-id": "a-1_b.c"}).headers["x-request-id"] == "a-1_b.c"
