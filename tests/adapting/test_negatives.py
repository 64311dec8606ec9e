"""Mined negatives of a race: of training texts only, further than the answer, kept for the next call."""

from __future__ import annotations

from typing import Any

import pytest

from embrew.adapting import negatives
from embrew.adapting.defaults import Negatives
from embrew.adapting.negatives import mined_pairs
from embrew.files.reading import BrokenFile
from tests.adapting.data import prepare
from tests.rows import read_rows, write_rows
from tests.test_mining import Angles

CHOSEN = Negatives(number=1, relative_margin=0.05, share=0.1)
FAST: dict[str, Any] = {"inputs": {"seed": 1}, "milliseconds": 0.1, "minutes": 1.0}


@pytest.fixture
def data(tmp_path) -> Any:
    """Questions and answers 20 degrees apart; the first one comes with a negative."""
    rows = [{"query": f"question at {3 * i}", "positive": f"answer of it at {3 * i + 20}"} for i in range(60)]
    rows = [{**row, "negatives": ["given, at 170"] if i % 2 else []} for i, row in enumerate(rows)]
    return prepare(None, write_rows(tmp_path / "pairs.jsonl", rows), tmp_path / "out" / "data")


def test_pairs_without_negatives_get_training_texts(data, tmp_path):
    file = tmp_path / "out" / "mined" / "start.jsonl"
    assert mined_pairs(Angles(), data, file, CHOSEN, **FAST) is not None
    before, after = read_rows(data.pairs), read_rows(file)
    answers = {row["positive"] for row in before}
    for old, new in zip(before, after, strict=True):
        assert {**new, "negatives": old["negatives"]} == old
        if old["negatives"]:
            assert new["negatives"] == old["negatives"] == ["given, at 170"]
            continue
        for text in new["negatives"]:  # cos 20 * 0.95 = cos 26.8
            away = abs(int(text.split()[-1]) - int(old["query"].split()[-1]))
            assert text in answers and away > 26.7
    assert sum(bool(row["negatives"]) for row in after) > sum(bool(row["negatives"]) for row in before)


def test_what_was_mined_is_kept(data, tmp_path, monkeypatch):
    file = tmp_path / "out" / "mined" / "start.jsonl"
    seconds = mined_pairs(Angles(), data, file, CHOSEN, **FAST)
    monkeypatch.setattr(negatives, "mine", lambda *_, **__: pytest.fail("mined again"))
    assert mined_pairs(Angles(), data, file, CHOSEN, **FAST) == seconds
    with pytest.raises(FileExistsError, match="other"):
        mined_pairs(Angles(), data, file, CHOSEN, **{**FAST, "inputs": {"other": 2}})
    file.write_text(file.read_text().replace("170", "171"))
    with pytest.raises(BrokenFile, match=r"start\.jsonl is missing or has changed.*start\.json, to mine again"):
        mined_pairs(Angles(), data, file, CHOSEN, **FAST)


@pytest.mark.parametrize(("changed", "said"), [({"milliseconds": 1e6}, "that would take"), ({}, "no negatives were")])
def test_nothing_is_mined(data, tmp_path, changed, said, caplog):
    """Where it would take too long, and where no text is far enough from the answer."""
    chosen = CHOSEN if changed else CHOSEN.model_copy(update={"relative_margin": 1.0})
    with caplog.at_level("INFO"):
        assert mined_pairs(Angles(), data, tmp_path / "mined" / "a.jsonl", chosen, **{**FAST, **changed}) is None
    assert said in caplog.text and not (tmp_path / "mined").exists()
