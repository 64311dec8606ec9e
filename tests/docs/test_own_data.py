"""The formats that the page about own data shows: each example is written, and read as the recipe beside it says."""

import re
import textwrap
from pathlib import Path

import pytest
import yaml

from embrew.recipe import DataConfig, build

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "own-data.md"
TAB = re.compile(r'^=== "([^"]+)"\n((?:(?:    .*)?\n)+)', re.MULTILINE)
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)
ELSEWHERE = {"Parquet", "Hub", "BEIR"}  # without a file in the page; see tests/data
EXAMPLES = {
    name: BLOCK.findall(textwrap.dedent(text)) for name, text in TAB.findall(PAGE.read_text()) if name not in ELSEWHERE
}


def test_which_formats_are_shown():
    assert [*EXAMPLES] == [
        "JSONL", "JSON", "CSV, TSV", "save_to_disk", "Sentence pairs", "FlagEmbedding", "Tevatron",
        "ms-swift",
    ]  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_is_the_same_pair(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = []
    for language, title, code in EXAMPLES[name]:
        if title:
            (tmp_path / title).write_text(code)
        elif language == "python":
            exec(compile(code, name, "exec"), {})
        else:
            config = DataConfig(**yaml.safe_load(code)["data"])
            objective = build.objective({"type": "contrastive", "positives": "column"})
            found += build.rows(config, objective, max_rows=None).to_list()
    negatives = [] if name == "Sentence pairs" else ["Tea with milk."]
    assert len(found) == 1
    assert found[0]["query"] == "what is a flat white?"
    assert found[0]["positive"] == "Espresso with a thin layer of milk foam."
    assert found[0]["negatives"] == negatives
