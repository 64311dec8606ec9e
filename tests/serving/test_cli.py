"""`embrew serve`: what it refuses before and while it opens a model, and what it says."""

from __future__ import annotations

import os
import socket
from typing import Any
from unittest import mock

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner

from embrew.cli import app
from embrew.corpus.job import Ranges
from embrew.encoder import Encoder
from embrew.serving import server
from embrew.serving.settings import Settings
from embrew.text_encoder import tokenizer_sha256
from tests.serving.running import serving

KEY = "EMBREW_API_KEY"


def serve(*arguments: object, env: dict[str, str] | None = None) -> Any:
    """Run `embrew serve nano`, which must not begin to serve."""
    with mock.patch.object(server.uvicorn.Server, "run", side_effect=AssertionError("it serves")):
        return CliRunner().invoke(app, ["serve", "nano", "--port", "0", *map(str, arguments)], env=env)


def settings_of(*arguments: object, env: dict[str, str] | None = None) -> Settings:
    """The settings that `embrew serve nano` would serve with."""
    with mock.patch.object(server, "serve") as called:
        done = CliRunner().invoke(app, ["serve", "nano", *map(str, arguments)], env=env)
    assert done.exit_code == 0, done.output
    found: Settings = called.call_args.args[0]
    return found


def test_options_become_settings():
    plain = settings_of(env={KEY: ""})
    assert plain == Settings("nano")
    given = ("--no-auto-truncate", "--timeout", "3", "--payload-limit", "9")
    found = settings_of(*given, "--max-client-batch-size", "8", "--dtype", "bfloat16", env={KEY: ""})
    assert (found.auto_truncate, found.timeout, found.payload_limit, found.max_client_batch_size) == (False, 3.0, 9, 8)
    assert found.dtype == "bfloat16"


def test_keys_come_from_a_file_or_the_environment(tmp_path):
    file = tmp_path / "keys"
    file.write_bytes("\ufeffone\r\n\r\n two \n".encode())
    with mock.patch.dict(os.environ, {KEY: " three\n"}):
        assert settings_of("--api-key-file", file).read_keys() == ("one", "two")
        assert settings_of().read_keys() == ("three",)
    with mock.patch.dict(os.environ, {KEY: " "}):
        assert settings_of().read_keys() == ()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no-such: No such file or directory"),
        (b"", "holds no API key; write one per line"),
        (b" \n\n", "holds no API key; write one per line"),
        (b"fine\nzwei W\xc3\xb6rter\n", "API key 2 of"),
        (b"\xff\xfe\x00secret", "API key 1 of"),
        (b"one two", "use ASCII without spaces"),
    ],
)
def test_a_key_file_that_holds_no_usable_key_is_refused(content, said, tmp_path):
    file = tmp_path / ("no-such" if content is None else "keys")
    if content is not None:
        file.write_bytes(content)
    done = serve("--api-key-file", file)
    assert done.exit_code == 1 and said in done.output, done.output
    assert "secret" not in done.output and "rter" not in done.output and "it serves" not in done.output


def test_an_address_that_cannot_be_used_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = serve("--port", port, env={KEY: ""})
    assert done.exit_code == 1
    assert f"cannot listen at 127.0.0.1:{port} (Address already in use); choose another --port" in done.output
    done = serve("--host", "203.0.113.7", env={KEY: ""})  # TEST-NET-3: no machine has it
    assert done.exit_code == 1 and "cannot listen at 203.0.113.7" in done.output


def test_codes_are_of_vectors_like_those_of_the_ranges():
    """Vectors of another depth or length would be clipped to the ranges, and their codes would say nothing."""
    encoder = Encoder.from_pretrained("nano")
    vectors = np.asarray(encoder.encode(["a", "b c"], num_layers=2))
    ranges = Ranges.fit(vectors)
    codes = np.round((vectors[:1] - np.array(ranges.minimum)) / np.array(ranges.step)) - 128
    of = {"model_hash": encoder.weights_hash(), "tokenizer_sha256": tokenizer_sha256(encoder), "num_layers": 2}
    with serving("nano", pooling="last", ranges=ranges, ranges_of=of) as address:
        for asked, field, said in (
            ({"num_layers": 2}, None, ""),
            ({"num_layers": 2, "normalize": True}, None, ""),
            ({}, "num_layers", "vectors with num_layers=2"),
            ({"num_layers": 3}, "num_layers", "vectors with num_layers=2"),
            ({"num_layers": 2, "normalize": False}, "normalize", "vectors with normalize=true"),
            ({"num_layers": 2, "dimensions": 8}, "dimensions", "vectors with dimensions=256"),
        ):
            body = {"inputs": ["a"], "precision": "int8", **asked}
            answer = httpx.post(f"{address}/embed", json=body)
            if field is None:
                assert answer.status_code == 200, answer.text
                assert np.abs(np.array(answer.json()) - codes).max() <= 1
            else:
                error = answer.json()["error"]
                assert (answer.status_code, error["param"]) == (400, field) and said in error["message"], answer.text
