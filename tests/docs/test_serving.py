"""docs/how-to/serve.md: its commands and clients run as printed against a server, its tables say what there is."""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import yaml

from embrew.encoder import Encoder
from embrew.serving.schemas import Options
from tests.serving.running import served, serving

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "serve.md").read_text()
PRINTED = "http://127.0.0.1:8000"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
CURLS = [(code, following) for (_, code), following in itertools.pairwise(BLOCKS) if "curl " in code]
CLIENTS = {re.findall(r"^(?:import|from) (\w+)", code)[0]: code for kind, code in BLOCKS if kind == "python"}


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, without its head."""
    table = PAGE.partition(f"\n## {heading}\n")[2].partition("\n|")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving("nano", pooling="mean") as found:
        yield found


def test_enough_is_found():
    assert len(CURLS) == 4 and set(CLIENTS) == {"openai", "langchain_openai", "llama_index", "mteb"}
    assert len(rows("Limits and errors")) >= 10 and len(rows("Routes")) == 14


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("number", range(len(CURLS)))
def test_curl_gets_what_is_printed(number, address):
    code, (kind, following) = CURLS[number]
    command = ["bash", "-euc", code.replace(PRINTED, address).replace("curl -s", "curl -sS")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    if kind == "json":
        assert rounded(json.loads(done.stdout)) == rounded(json.loads(following))
    else:
        assert '"error"' not in done.stdout and '{"status":"ready"}' in done.stdout


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return round(value, 3) if isinstance(value, float) else value


def test_the_fields_of_a_request_are_listed():
    assert {row[0].strip("`") for row in rows("What a request may say")} == set(Options.model_fields)


def test_the_routes_are_listed(address):
    known = httpx.get(f"{address}/openapi.json").json()["paths"]
    routes = {f"{method.upper()} {path}" for path, methods in known.items() for method in methods}
    assert {row[0].strip("`") for row in rows("Routes")} == routes | {"GET /", "GET /openapi.json"}


def test_the_metrics_are_listed(address):
    httpx.post(f"{address}/embed", json={"inputs": "a"})
    shown = httpx.get(f"{address}/metrics").text
    kinds = {
        name: kind for name, kind in re.findall(r"^# TYPE (\S+) (\w+)$", shown, re.MULTILINE) if "_created" not in name
    }
    assert {name: row[1] for row in rows("Metrics and log") for name in names(row[0])} == kinds


def test_the_log_line_has_the_printed_fields(address, caplog):
    caplog.set_level(logging.INFO, logger="embrew.serving.metrics")
    section = PAGE.partition("## Metrics and log")[2].partition("\n## ")[0]
    printed = json.loads(re.findall(r"```json\n(.*?)```", section, re.DOTALL)[0])
    asked = {name: printed[name] for name in ("input_type", "dimensions", "num_layers")}
    texts = ["how do I reset the counter?", "where is the manual?"]
    httpx.post(f"{address}/v1/embeddings", json={"input": texts, **asked})
    httpx.get(f"{address}/health")  # the line of a request is written after its answer
    (line,) = [json.loads(record.message) for record in caplog.records if '"/v1/embeddings"' in record.message]
    assert list(line) == list(printed)
    assert abs(datetime.fromisoformat(line["time"]).timestamp() - time.time()) < 60
    changing = {"time": "", "id": "", "seconds": 0}
    assert {**line, **changing} == {**printed, **changing}


def test_the_codes_of_errors_are_listed():
    source = "".join(path.read_text() for path in (ROOT / "src/embrew/serving").rglob("*.py"))
    known = set(re.findall(r'\bcode(?:, message)? ?= ?"(\w+)"', source))
    listed = {name for row in rows("Limits and errors") for name in names(row[1])}
    assert listed == known and len(known) > 15


def test_the_container_file_has_the_pinned_torch():
    (file,) = [code for kind, code in BLOCKS if kind == "dockerfile"]
    (pinned,) = re.findall(r"^torch==\S+", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert f"pip install --no-cache-dir {pinned} " in file


@pytest.mark.parametrize("code", [code for kind, code in BLOCKS if kind == "yaml"])
def test_yaml_is_read(code):
    assert all(isinstance(document, dict) for document in yaml.safe_load_all(code))


@pytest.mark.slow
def test_the_server_says_what_is_printed():
    (printed,) = [code for kind, code in BLOCKS if kind == "text" and "is ready" in code]
    with served("nano", "--pooling", "mean", env={**os.environ, "EMBREW_API_KEY": ""}) as process:
        address = process.ready()
        said = process.said.decode().replace(address, PRINTED).splitlines()
        assert [line for line in said if not line.startswith("{")] == printed.splitlines()
        (health,) = re.findall(r"HEALTHCHECK .*? CMD (\[.*\])", PAGE)
        command = [word.replace(PRINTED, address) for word in json.loads(health)]
        assert subprocess.run(command, check=False).returncode == 0
        command[-1] = command[-1].replace("/health", "/no-such-path")
        assert subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 1


@pytest.fixture
def client(address) -> Any:
    """Runs an example of a client against the server, or skips it."""

    def run(name: str) -> dict[str, Any]:
        pytest.importorskip(name)
        found: dict[str, Any] = {}
        exec(compile(CLIENTS[name].replace(PRINTED, address), name, "exec"), found)
        return found

    return run


@pytest.mark.slow
@pytest.mark.parametrize("name", ["langchain_openai", "llama_index"])
def test_frameworks(name, client):
    found, encoder = client(name), Encoder.from_pretrained("nano", pooling="mean")
    assert np.abs(np.array(found["query"]) - encoder.encode_query("how do I reset the counter?")).max() < 1e-5
    right = encoder.encode_document(["Press reset twice.", "Pull the plug."])
    assert np.abs(np.array(found["documents"]) - right).max() < 1e-5


@pytest.mark.slow
def test_mteb(client, monkeypatch, tmp_path):
    mteb = pytest.importorskip("mteb")
    from mteb.abstasks.sts import AbsTaskSTS

    from tests.evaluation.test_mteb import local_task, task_metadata, texts

    pairs = zip(texts(30, 1), texts(30, 2), np.random.default_rng(1).uniform(0, 5, 30).tolist(), strict=True)
    data = [{"sentence1": a, "sentence2": b, "score": score} for a, b, score in pairs]
    task = local_task(
        AbsTaskSTS, task_metadata("LocalSTS", "STS", "cosine_spearman"), {"test": data}, min_score=0, max_score=5
    )
    monkeypatch.setattr(mteb, "get_tasks", lambda tasks: [task])  # the printed task is downloaded
    monkeypatch.setenv("MTEB_CACHE", str(tmp_path))
    found = client("mteb")["results"].task_results[0].get_score()
    right = (
        mteb.evaluate(Encoder.from_pretrained("nano", pooling="mean"), [task], cache=None).task_results[0].get_score()
    )
    assert found == pytest.approx(right, abs=1e-4)
