"""Servers that are down, slow or wrong, folders without a reference, other models: a message that says what to do."""

from __future__ import annotations

import json
import socket
import time
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from embrew.cli import app
from embrew.export.exporting import export_encoder
from embrew.files.checksums import Damaged
from embrew.files.formats import OtherFormat
from embrew.parity.compare import ConditionLine, compare
from tests.parity.faulty import FORMS, LIMIT, PROMPTS, THREE_PROMPTS, FaultyRuntime
from tests.parity.servers import Answer, serving
from tests.parity.test_faults import named

KEY = "sk-secret-1234"


def with_status(status: int, text: str, **headers: str) -> Callable[..., Answer | None]:
    return lambda path, given, body: (status, headers, text)


ANSWERS = {
    "500": (
        with_status(500, '{"error": {"message": "CUDA error"}}', Retry_After="0"),
        "answers 500 3 times (an error of its own); try again later, or look at its log. CUDA error",
    ),
    "404": (with_status(404, '{"error": "model tiny not found"}'), "check the address, --model and --kind"),
    "401": (with_status(401, '{"detail": "no key"}'), "set the environment variable EMBREW_API_KEY"),
    "no-json": (with_status(200, "<html>hello</html>"), "invalid JSON: <html>hello"),
    "other-json": (with_status(200, '{"vectors": []}'), "does not answer as OpenAI's API does"),
    "200": (with_status(200, '{"error": {"message": "it is loading"}}'), "check --kind. It says: it is loading"),
    "redirect": (with_status(302, "", Location="http://b.example/v1"), "302 (redirects to http://b.example/v1)"),
    "half": (with_status(200, '{"data"', Content_Length="99"), "breaks off, or is no HTTP server"),
    "encoded": (with_status(200, "xxxx", Content_Encoding="gzip"), "breaks off, or is no HTTP server"),
    "ragged": (with_status(200, '{"data": [{"index": 0, "embedding": [1, [2]]}]}'), "something that is no vector"),
    "empty": (with_status(200, '{"data": [{"index": 0, "embedding": []}]}'), "of shape (1, 0)"),
    "fewer": (with_status(200, '{"data": []}'), "of shape (0,) for 1 texts"),
    "twice": (with_status(200, '{"data": [{"index": 1, "embedding": [1]}]}'), "does not answer as OpenAI's API does"),
    "nan": (with_status(200, '{"data": [{"index": 0, "embedding": [NaN, 1]}]}'), "NaN or infinity for 'find the"),
    "null": (with_status(200, '{"data": [{"index": 0, "embedding": [null, 1]}]}'), "NaN or infinity for 'find the"),
    "413": (with_status(413, '{"error": "too long"}'), "no vector for any reference text: http://127.0.0.1"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_what_a_server_answers(name, export, runtime):
    intercept, words = ANSWERS[name]
    with serving(runtime, intercept=intercept) as address, pytest.raises(ValueError, match="127.0.0.1") as caught:
        compare(str(export), f"{address}/v1", model="tiny", timeout=10)
    assert words in str(caught.value)


def test_a_server_that_is_busy_is_asked_again(export, runtime):
    asked = []

    def busy(path: str, headers: dict[str, Any], body: Any) -> Answer | None:
        asked.append(path)
        return (429, {"Retry_After": "0"}, "{}") if len(asked) % 3 else None

    with serving(runtime, intercept=busy) as address:
        assert compare(str(export), f"{address}/api/embed", model="tiny").equal
    asked.clear()
    always = with_status(429, '{"error": "overloaded"}', Retry_After="0")
    words = "answers 429 3 times .busy.; try again later, or look at its log. overloaded"
    with serving(runtime, intercept=always) as address, pytest.raises(ValueError, match=words):
        compare(str(export), f"{address}/embed")


def test_a_server_that_is_slow_or_down(export, runtime):
    def slow(path: str, headers: dict[str, Any], body: Any) -> None:
        time.sleep(0.5)

    words = "no answer within 0.1 seconds; raise --timeout"
    with serving(runtime, intercept=slow) as address, pytest.raises(ValueError, match=words):
        compare(str(export), f"{address}/v1", model="tiny", timeout=0.1)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for place in ("", "/v1", "/embed"):
        with pytest.raises(ValueError, match="cannot be reached .*is the server running"):
            compare(str(export), f"http://127.0.0.1:{port}{place}", model="tiny")


def test_the_key_is_sent_and_never_shown(export, runtime, monkeypatch, capsys):
    monkeypatch.setenv("EMBREW_API_KEY", KEY)
    keys = []

    def refuse(path: str, headers: dict[str, Any], body: Any) -> Answer:
        keys.append(headers["Authorization"])
        return 403, {}, json.dumps({"error": f"key {KEY} is not known"})

    with serving(runtime, intercept=refuse) as address:
        done = CliRunner().invoke(app, ["parity", str(export), "--against", f"{address}/v1", "--model", "tiny"])
    assert keys == [f"Bearer {KEY}"]
    assert done.exit_code == 2 and "the key in EMBREW_API_KEY is not accepted. key *** is not known" in done.output
    assert KEY not in done.output + capsys.readouterr().err
    with serving(runtime, intercept=refuse) as address, pytest.raises(ValueError, match="403") as caught:
        compare(str(export), address.replace("//", "//user:password@") + "/embed")
    assert "password" not in str(caught.value)


def test_addresses_and_encodings(export, runtime, monkeypatch):
    """Vectors in base64, an address in full, a redirect to another host, which gets no key, and a query."""
    monkeypatch.setenv("EMBREW_API_KEY", KEY)

    def in_base64(path: str, headers: dict[str, Any], body: Any) -> Answer:
        vectors = [b64encode(vector.astype("<f4").tobytes()).decode() for vector in runtime(body["input"])]
        return 200, {}, json.dumps({"data": [{"index": i, "embedding": each} for i, each in enumerate(vectors)]})

    with serving(runtime, intercept=lambda *given: in_base64(*given) if "emb" in given[0] else None) as address:
        for place in ("/v1", "/v1/", "/v1/embeddings", "/v1/embeddings/"):
            assert compare(str(export), address.replace("http", "HTTP") + place, model="tiny").equal
        with pytest.raises(ValueError, match=f"a query or fragment; give {address}/v1, without them"):
            compare(str(export), f"{address}/v1?version=1", model="tiny")
    reached: list[str] = []
    with serving(runtime, intercept=lambda path, headers, body: reached.append(path)) as other:
        away = with_status(307, "", Location=f"{other}/v1/embeddings")
        with serving(runtime, intercept=away) as address, pytest.raises(ValueError, match="redirects to"):
            compare(str(export), f"{address}/v1", model="tiny")
    assert not reached


def test_exit_codes_and_json(export, runtime):
    """0: equal, 1: different, 2: not compared, as of `diff`; stdout is one JSON document or empty."""

    def run(against: str) -> tuple[int, str]:
        arguments = ["parity", str(export), "--against", against, "--model", "tiny", "--json"]
        done = CliRunner().invoke(app, arguments)
        return done.exit_code, done.stdout

    with serving(runtime) as address:
        code, text = run(f"{address}/v1")
        assert code == 0 and json.loads(text)["equal"] and json.loads(text)["assumed_weights"] == "fp32"
    with serving(FaultyRuntime(export, "bos missing")) as address:
        code, text = run(f"{address}/v1")
        assert code == 1 and not json.loads(text)["equal"]
    assert run(f"{address}/v1") == (2, "")
    assert run(str(export / "none.onnx")) == (2, "")


def test_the_kind_of_a_server_is_asked(export, runtime):
    for kind, words in (("openai", "OpenAI's API"), ("tei", "Text Embeddings Inference"), ("ollama", "Ollama")):
        with serving(runtime, only=(kind,)) as address:
            found = compare(str(export), address)
        assert found.equal and words in found.runtime
    with serving(runtime, only=()) as address, pytest.raises(ValueError, match="its kind is unknown; give --kind"):
        compare(str(export), address)


def test_long_texts_that_are_refused_are_noted(export, runtime):
    def limited(path: str, headers: dict[str, Any], body: Any) -> Answer | None:
        longest = max(len(runtime.ids(text)) for text in body["inputs"])
        return (413, {}, '{"error": "too many tokens"}') if longest >= LIMIT else None

    with serving(runtime, intercept=limited) as address:
        found = compare(str(export), f"{address}/embed")
    assert found.equal
    assert "beyond the limit" in found.notes[0] and "too many tokens" in found.notes[0]
    assert ConditionLine("beyond the limit", "", 0) in found.conditions


def test_names_of_special_tokens_in_a_text_are_noted(export):
    with serving(FaultyRuntime(export, "special tokens are read")) as address:
        found = compare(str(export), f"{address}/embed")
    assert found.equal and "names of special tokens" in found.notes[0]


def test_less_precise_vectors(export, runtime):
    """Rounding to float16 is equal; noise as of int8 is different until `min_cosine` accepts it, and is no fault."""
    noise = np.random.default_rng(0)

    def rounded(texts: Any, prompt_name: str | None) -> Any:
        return runtime(texts, prompt_name).astype(np.float16)

    def noisy(texts: Any, prompt_name: str | None) -> Any:
        vectors = runtime(texts, prompt_name)
        return vectors + 0.08 * noise.normal(size=vectors.shape) / vectors.shape[1] ** 0.5

    with serving(rounded) as address:
        assert compare(str(export), f"{address}/embed").equal
    with serving(noisy) as address:
        found = compare(str(export), f"{address}/embed")
        assert not found.equal and not named(found)
        assert "--min-cosine" in found.verdict and "lower precision" in found.verdict
        assert compare(str(export), f"{address}/embed", min_cosine=0.99).equal

    def with_prompt(texts: Any, prompt_name: str | None) -> Any:
        words = "find the answer: " + (THREE_PROMPTS[prompt_name] if prompt_name else "")
        return noisy([words + text for text in texts], None)

    with serving(with_prompt) as address:
        assert named(compare(str(export), f"{address}/embed", min_cosine=0.99)) == {"prompt_added_query"}


def test_another_model(export, tmp_path, make_encoder):
    other = make_encoder("qwen3", noise=0.3, lora={}, max_length=LIMIT, prompts=PROMPTS, **FORMS["last"])
    export_encoder(other, tmp_path / "other", verify="off")
    found = compare(str(export), str(tmp_path / "other"))
    assert not found.equal and not named(found)
    assert "another model, or other weights" in found.verdict
    with serving(lambda texts, name: np.eye(len(texts), 20) + 1) as address:
        found = compare(str(export), f"{address}/embed")
    assert not named(found) and "20 dimensions instead of 32" in found.verdict


def test_a_folder_without_reference_vectors(export, tmp_path):
    with pytest.raises(FileNotFoundError, match="not a folder"):
        compare(str(tmp_path / "none"), str(export))
    with pytest.raises(ValueError, match="is not a model: the folder has no config.json"):
        compare(str(tmp_path), str(export))
    for file in ("parity.json", "passport.json", "passport.safetensors", "checksums.json", "tokenizer.json"):
        (tmp_path / file).write_bytes((export / file).read_bytes())
    with serving(FaultyRuntime(export, "bos missing")) as address:
        found = compare(str(tmp_path), f"{address}/embed")  # neither config nor weights are there
    assert named(found) == {"bos_missing"}
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        compare(str(tmp_path), str(tmp_path / "none"))
    with pytest.raises(ValueError, match="is nothing that vectors can be compared with"):
        compare(str(tmp_path), str(tmp_path))
    with pytest.raises(ValueError, match="is a server, and"):
        compare(str(tmp_path), str(export), kind="tei")
    with pytest.raises(ValueError, match="is no server"):
        compare(str(tmp_path), "http://127.0.0.1:1", kind="onnx")


def test_damaged_references(export, tmp_path):
    def copied(**changed: bytes) -> str:
        for file in ("parity.json", "passport.json", "passport.safetensors", "checksums.json"):
            content = changed.get(file.replace(".", "_"), (export / file).read_bytes())
            (tmp_path / file).unlink(missing_ok=True)
            if content:
                (tmp_path / file).write_bytes(content)
        return str(tmp_path)

    against = "http://127.0.0.1:1"
    tensors = (export / "passport.safetensors").read_bytes()
    parity = json.loads((export / "parity.json").read_text())
    with pytest.raises(Damaged, match="parity.json has changed"):
        compare(copied(parity_json=json.dumps({**parity, "max_length": 7}).encode()), against)
    with pytest.raises(Damaged, match="passport.safetensors has changed"):
        compare(copied(passport_safetensors=tensors[:-10]), against)
    with pytest.raises(FileNotFoundError, match=r"passport\.safetensors"):
        compare(copied(passport_safetensors=b""), against)
    without = {"checksums_json": b""}
    with pytest.raises(ValueError, match="passport.json is no valid passport: passport.safetensors is not the one"):
        compare(copied(passport_safetensors=tensors[:-10], **without), against)
    with pytest.raises(OtherFormat, match="format 99; this embrew reads format 2"):
        compare(copied(parity_json=json.dumps({**parity, "format": 99}).encode(), **without), against)
    with pytest.raises(ValueError, match="it has no cases"):
        compare(copied(parity_json=b'{"format": 2}', **without), against)
    with pytest.raises(ValueError, match="holds no reference texts"):
        compare(copied(parity_json=json.dumps({**parity, "cases": []}).encode(), **without), against)
