"""The examples of docs/how-to/run-anywhere.md for stores that read Parquet, run as they are printed there."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from typer.testing import CliRunner

from embrew.cli import app
from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from tests.conftest import data_folder

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "run-anywhere.md"
QUESTION = "what is known of boundary layers?"
PROMPTS = {"query": "Find documents that answer the question: ", "document": "Document: "}


def examples() -> dict[str, str]:
    """Python blocks of the section, by the first library that they import and that embrew does not need."""
    section = PAGE.read_text().partition("## Clients and vector stores")[2]
    found = {}
    for code in re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL):
        names = re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE)
        found[next((name for name in names if name not in ("json", "pathlib", "pyarrow")), "")] = code
    return found


EXAMPLES = examples()


def test_the_examples_are_found():
    assert set(EXAMPLES) == {"sentence_transformers", "duckdb", "lancedb"}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """An export, a corpus and its vectors."""
    place = tmp_path_factory.mktemp("clients")
    with gzip.open(data_folder() / "cranfield" / "corpus.jsonl.gz", "rt", encoding="utf-8") as file:
        (place / "corpus.jsonl").write_text("".join(line for line, _ in zip(file, range(300), strict=False)))
    encoder = Encoder.from_pretrained(
        "nano",
        memory_tokens=4,
        template="{instruction}{text}{memory}",
        pooling="mean",
        attention="bidirectional",
        max_length=128,
        prompts=PROMPTS,
    )
    export_encoder(encoder, place / "exported")
    run("encode", place / "exported", place / "corpus.jsonl", place / "vectors")
    return place


def run(*arguments: object) -> Any:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done


@pytest.fixture
def example(place, monkeypatch) -> Callable[..., dict[str, Any]]:
    """Runs an example, or skips it."""

    def run_it(name: str, **given: Any) -> dict[str, Any]:
        pytest.importorskip(name)
        monkeypatch.chdir(place)
        names: dict[str, Any] = dict(given)
        exec(compile(EXAMPLES[name], name, "exec"), names)
        return names

    return run_it


@pytest.mark.parametrize("name", ["duckdb", "lancedb"])
def test_stores_find_what_search_finds(name, place, example):
    query = SentenceTransformer(str(place / "exported")).encode_query(QUESTION)
    found = example(name, query=query)["found"]
    done = run("search", place / "exported", "--index", place / "vectors", "--top-k", 10, QUESTION, "--json")
    (hits,) = [entry["hits"] for entry in json.loads(done.stdout)["questions"]]
    assert [one[0] for one in found] == [hit["id"] for hit in hits] and len(hits) == 10
    assert [one[1] for one in found] == pytest.approx([hit["score"] for hit in hits], abs=1e-5)


def test_the_query_is_encoded_as_printed(place, example):
    model = SentenceTransformer(str(place / "exported"))
    assert np.abs(example("sentence_transformers")["query"] - model.encode_query(QUESTION)).max() < 1e-6
