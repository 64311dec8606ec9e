"""Training rows that cannot be used: refused, or counted, listed and left out."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embrew.data import load
from embrew.data.rejects import Rejects
from embrew.recipe import Recipe
from embrew.training.stages import train
from tests.conftest import SENTENCES
from tests.training.one_stage import one_stage

GOOD = [{"text": f"{sentence} {i}"} for i in range(30) for sentence in SENTENCES]
BAD = {  # by the index of the row that it replaces: what stands there, and what is said of it
    3: ('{"text": ', "not valid JSON"),
    20: ('{"text": 7}', "column 'text' holds a int, not a text"),
    41: ('{"text": "  "}', "text is empty"),
    70: ('{"body": "a"}', "no column for 'text'; the columns found are body"),
}


@pytest.fixture
def file(tmp_path) -> Path:
    """150 rows, four of them bad."""
    lines = [BAD[i][0] if i in BAD else json.dumps(row) for i, row in enumerate(GOOD)]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path / "texts.jsonl"


@pytest.fixture
def recipe(model_folder, file) -> Callable[..., Recipe]:
    """A recipe that trains two steps on the rows."""

    def make(**data: Any) -> Recipe:
        return one_stage(
            model_folder("llama"),
            {"path": str(file), **data},
            {"lora": {"r": 2, "lora_dropout": 0.1}},
            {"max_steps": 2},
            name="texts",
            objective={"type": "contrastive", "positives": "dropout"},
        )

    return make


def test_a_run_leaves_bad_rows_out_counts_and_lists_them(recipe, file, tmp_path, caplog):
    with pytest.raises(ValueError, match="texts.jsonl, line 4: not valid JSON"):
        train(recipe(), tmp_path / "strict", verify="off")
    with caplog.at_level("WARNING"):
        train(recipe(on_bad_rows="skip", max_reject_rate=0.05), tmp_path / "out", verify="off")
    listed = [json.loads(line) for line in (tmp_path / "out" / "texts.rejects.jsonl").read_text().splitlines()]
    assert [(line["file"], line["line"]) for line in listed] == [(str(file), i + 1) for i in BAD]
    for line, (_, reason) in zip(listed, BAD.values(), strict=True):
        assert line["reason"].startswith(reason)
    values = json.loads((tmp_path / "out" / "run.json").read_text())
    assert values["rejected"] == {"texts": {"texts.jsonl": 4}}
    assert values["data"]["texts"][0]["rows"] == len(GOOD) - len(BAD)
    assert f"4 of {len(GOOD)} rows cannot be used and are left out: 4 of {file}" in caplog.text
    with pytest.raises(ValueError, match=r"4 of the first 100 rows cannot be trained on, more than"):
        train(recipe(on_bad_rows="skip"), tmp_path / "many", verify="off")
    assert (tmp_path / "many" / "texts.rejects.jsonl").read_text().count("\n") == 4


@pytest.mark.parametrize(("name", "content"), [("a.jsonl.gz", 0), ("a.json", 1), ("a.parquet", 2)])
def test_a_broken_file_is_fatal_in_skip_mode(tmp_path, name, content):
    whole = [gzip.compress(b'{"text": "a"}\n' * 200), json.dumps(GOOD).encode(), b"PAR1"][content]
    (tmp_path / name).write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(ValueError, match=r"not skipped\. What is finished is kept|broken Parquet"):
        load(tmp_path / name, kind="text", rejects=rejects(1.0))


def rejects(rate: float) -> Rejects:
    import io

    return Rejects(io.StringIO(), max_rate=rate, purpose="trained on")


@pytest.mark.parametrize(
    ("rows", "bad", "rate", "left"),
    [
        (50, 1, 0.01, 49),
        (50, 2, 0.01, None),
        (300, 3, 0.01, 297),
    ],
)
def test_the_limit(tmp_path, rows, bad, rate, left):
    """A share of the rows, and of 100 rows if there are fewer; with 0, none."""
    lines = ['{"text": "good"}'] * (rows - bad) + ['{"text": 1}'] * bad
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    if left is None:
        with pytest.raises(ValueError, match="rows cannot be trained on, more than max_reject_rate|that can be used"):
            load(tmp_path / "a.jsonl", kind="text", rejects=rejects(rate))
    else:
        assert len(load(tmp_path / "a.jsonl", kind="text", rejects=rejects(rate))) == left


def test_the_limit_is_checked_where_only_the_first_rows_are_taken(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": 1}\n' * 50 + '{"text": "good"}\n' * 40)
    with pytest.raises(ValueError, match="50 of the 55 rows cannot be trained on, more than max_reject_rate=0.01"):
        load(tmp_path / "a.jsonl", kind="text", max_rows=5, rejects=rejects(0.01))
