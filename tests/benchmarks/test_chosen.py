"""The number of demonstrations is chosen on rows that are neither shown as demonstrations nor judged afterwards."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from chosen import dev_of
from shots import candidates

from embrew.data.beir import read_beir
from embrew.data.datasets import load
from embrew.evaluation.dev import dev_sets
from tests.conftest import by_default, data_folder


@pytest.mark.parametrize("name", by_default(["banking77"], ["banking77", "medquad_retrieval"]))
def test_dev_rows_made_of_training_rows(name, tmp_path):
    data = data_folder()
    shown = candidates(name)[:8]
    made = dev_of(data / name, shown, tmp_path / name)
    assert made == tmp_path / name
    assert dev_sets([made]).dev[0].split == "dev"
    if name == "banking77":
        dev, rest, test = (
            {row["text"] for row in load(folder, kind="labelled", split=split)}
            for folder, split in ((made, "dev"), (made, "train"), (data / name, "test"))
        )
        assert not dev & (rest | test)
    else:
        found = read_beir(made, "dev")
        dev, test = set(found.queries.values()), set(read_beir(data / name, "test").queries.values())
        answers = {document.id: document.text for document in found.corpus}
        assert not dev & test
        assert all(answers[document] for grades in found.qrels.values() for document in grades)
        assert len(found.qrels) == 500
    assert len(dev) > 400
    assert not dev & {pair.query for pair in shown}
