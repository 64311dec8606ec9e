import json
import subprocess
import sys
from pathlib import Path

import pytest

from embrew.data import load


def write(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def numbered(path: Path, count: int = 20) -> Path:
    """Texts of 1, 2, .. `count` characters."""
    return write(path, [{"text": "x" * (i + 1)} for i in range(count)])


def test_canonical_features_do_not_depend_on_the_values(tmp_path):
    empty = load(write(tmp_path / "a.jsonl", [{"query": "q", "positive": "p"}]), kind="pairs")
    full = load(write(tmp_path / "b.jsonl", [{"query": "q", "pos": ["p"], "neg": ["n"], "prompt": "i"}]), kind="pairs")
    assert empty.features == full.features
    assert list(empty[0]) == ["query", "positive", "negatives", "instruction", "scores", "document_instruction"]
    assert empty[0]["negatives"] == []
    assert empty[0]["instruction"] is None


def test_filters_then_shuffle_then_max_rows(tmp_path):
    file = numbered(tmp_path / "a.jsonl")
    lengths = [len(text) for text in load(file, kind="text", min_chars=5, max_chars=14)["text"]]
    assert lengths == list(range(5, 15))
    shuffled = load(file, kind="text", min_chars=5, max_chars=14, shuffle_seed=1)["text"]
    assert sorted(len(text) for text in shuffled) == lengths
    few = load(file, kind="text", min_chars=5, max_chars=14, shuffle_seed=1, max_rows=4)["text"]
    assert few[:] == shuffled[:4]
    assert load(file, kind="text", shuffle_seed=1)["text"] != load(file, kind="text", shuffle_seed=2)["text"]
    assert load(file, kind="text", max_rows=3)["text"][:] == ["x", "xx", "xxx"]
    assert len(load(file, kind="text", max_rows=100)) == 20


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak is read where Linux keeps it")
def test_rows_are_held_once(tmp_path):
    """In a process of its own: the most memory while 60 MB of text are read and shuffled, less that before."""
    rows = [{"text": f"{i} " + "abcdefghijklmnopqrstuvwxyz" * 77} for i in range(30_000)]
    file = write(tmp_path / "a.jsonl", rows)
    code = (
        "import re, sys\nfrom pathlib import Path\nimport datasets\nfrom embrew.data import load\n"
        "def held(name):\n"
        "    return int(re.search(rf'{name}:\\s+(\\d+)', Path('/proc/self/status').read_text())[1]) / 1000\n"
        "load(sys.argv[2], kind='text')\nbefore = held('VmRSS')\n"
        "rows = load(sys.argv[1], kind='text', shuffle_seed=0)\n"
        "print(rows.data.nbytes / 1e6, held('VmHWM') - before)"
    )
    few = write(tmp_path / "few.jsonl", rows[:2])
    said = subprocess.run([sys.executable, "-c", code, file, few], check=True, capture_output=True, text=True).stdout
    data, growth = map(float, said.split())
    assert 55 < data < 65
    assert growth < 3 * data, "the rows, and the piece that is read; pickled, as for a cache's name, it is 6 times"


def test_rows_are_chosen_by_a_column_that_is_no_text(tmp_path, caplog):
    caplog.set_level("INFO", "embrew")
    rows = [
        {"text": "a", "seen": True, "n": 1},
        {"text": "b", "seen": False, "n": 0},
        {"text": "c", "seen": False, "n": 1},
    ]
    file = write(tmp_path / "rows.jsonl", rows)
    assert load(file, kind="text", where={"seen": False})["text"][:] == ["b", "c"]
    assert "1 of 3 rows dropped by where" in caplog.text
    assert load(file, kind="text", where={"seen": False, "n": 1})["text"][:] == ["c"]
    with pytest.raises(ValueError, match="where=.*widen the limits"):
        load(file, kind="text", where={"seen": 0})  # 0 is not False
    with pytest.raises(ValueError, match="rows.jsonl, line 1: where names the column 'sean'; the columns are text"):
        load(file, kind="text", where={"sean": False})


def test_rows_of_a_table_are_chosen_by_numbers_and_booleans(tmp_path):
    """The cells of a table are text, and YAML's `label: 1` is a number."""
    file = tmp_path / "a.csv"
    file.write_text("text,label,seen\na,1,True\nb,0,false\nc,1.0,\nd,x,TRUE\n")
    assert load(file, kind="text", where={"label": 1})["text"][:] == ["a", "c"]
    assert load(file, kind="text", where={"label": "1"})["text"][:] == ["a"]
    assert load(file, kind="text", where={"seen": True})["text"][:] == ["a", "d"]
    assert load(file, kind="text", where={"seen": False})["text"][:] == ["b"]
    with pytest.raises(ValueError, match=r"none of 4 rows has where={'label': 2}; widen the limits"):
        load(file, kind="text", where={"label": 2})


def test_the_last_negatives_of_a_table_may_be_missing(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("query,positive,negative_1,negative_2\nq,p,n,m\nr,p,n,\ns,p,,\n")
    assert load(file, kind="pairs")["negatives"][:] == [["n", "m"], ["n"], []]


def test_texts_become_sentences(tmp_path):
    file = write(tmp_path / "a.jsonl", [{"text": "One is here. Two is there!\nThree"}, {"text": "Dr. X came. "}])
    assert load(file, kind="text", sentences=True)["text"][:] == [
        "One is here.",
        "Two is there!",
        "Three",
        "Dr. X came.",
    ]
    assert load(file, kind="text", sentences=True, min_chars=6, max_chars=12)["text"][:] == [
        "One is here.",
        "Dr. X came.",
    ]


def test_lengths_of_pairs_are_of_query_and_positive(tmp_path):
    row = {"query": "q" * 3, "positive": "p" * 9, "negatives": ["n" * 50]}
    file = write(tmp_path / "a.jsonl", [row])
    assert len(load(file, kind="pairs", min_chars=3, max_chars=9)) == 1
    for limits in ({"min_chars": 4}, {"max_chars": 8}):
        with pytest.raises(ValueError, match="none of 1 rows has m(in|ax)_chars=[48]; widen"):
            load(file, kind="pairs", **limits)


def test_empty_rows_are_an_error_unless_filtered(tmp_path):
    file = write(tmp_path / "a.jsonl", [{"text": "good"}, {"text": "  "}])
    with pytest.raises(ValueError, match="a.jsonl, line 2: text is empty"):
        load(file, kind="text")
    assert load(file, kind="text", min_chars=1)["text"][:] == ["good"]


def test_beir_folders_are_pairs(tmp_path):
    write(tmp_path / "corpus.jsonl", [{"_id": "d1", "title": "T", "text": "one"}, {"_id": "d2", "text": "two"}])
    write(tmp_path / "queries.jsonl", [{"_id": "q1", "text": "first?"}, {"_id": "q2", "text": "second?"}])
    (tmp_path / "qrels.train.tsv").write_text(
        "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t1\nq1\td1\t2\nq2\td2\t0\n"
    )
    dataset = load(tmp_path, kind="pairs", instruction="Find it")
    assert dataset["query"][:] == ["first?", "first?"]
    assert dataset["positive"][:] == ["T one", "two"]
    assert set(dataset["instruction"]) == {"Find it"}
    with pytest.raises(FileNotFoundError, match="no qrels for split 'dev'; it has train"):
        load(tmp_path, kind="pairs", split="dev")
    with pytest.raises(ValueError, match="BEIR folder, which holds pairs"):
        load(tmp_path, kind="text")


def test_answers_become_the_sentence_that_holds_them(tmp_path):
    passage = "The mill stood for years. It burnt down in 1902, at night. Nobody was hurt."
    rows = [
        {"context": passage, "instruction": "When did it burn?", "target": "1902"},
        {"context": passage, "instruction": "Who?", "target": "Nobody"},
        {"context": passage, "instruction": "Where?", "target": "years. It"},
    ]
    file = tmp_path / "answers.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = load(file, kind="pairs", columns={"query": "context", "positive": "target"}, sentences=True)
    assert found["positive"][:] == ["It burnt down in 1902, at night.", "Nobody was hurt."]
    assert found["instruction"][:] == ["When did it burn?", "Who?"] and set(found["query"]) == {passage}
