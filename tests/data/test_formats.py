"""The same rows in every format that is read, and what is said of files that cannot be read."""

import csv
import gzip
import io
import json
import os
import time
import tracemalloc
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embrew.analysis.input_texts import read_texts
from embrew.corpus import encode_corpus
from embrew.data import load
from embrew.data.formats import read_file
from embrew.data.reading import data_files, data_identity, files_of, split_files, splits
from embrew.evaluation.find import find_task
from embrew.evaluation.kinds import KINDS
from embrew.evaluation.rows import task_rows
from embrew.files.checksums import file_sha256
from tests.characters import CHARACTERS
from tests.corpus.stub import Stub

ROWS = [
    {"query": "what is ; a , b\tc?", "positive": 'it is "quoted"'},
    {"query": "zwei ü", "positive": "two\nlines"},
    {"query": "third", "positive": "3.0"},
]


def table(separator: str, newline: str = "\n", rows=ROWS) -> bytes:
    sink = io.StringIO(newline="")
    writer = csv.DictWriter(sink, list(rows[0]), delimiter=separator, lineterminator=newline)
    writer.writeheader()
    writer.writerows(rows)
    return sink.getvalue().encode()


def parquet() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(ROWS), sink)
    return sink.getvalue().to_pybytes()


def arrow() -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.Table.from_pylist(ROWS).schema) as stream:
        stream.write_table(pa.Table.from_pylist(ROWS))
    return sink.getvalue().to_pybytes()


LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()
ARRAY = json.dumps(ROWS, indent=1).encode()
BOM = b"\xef\xbb\xbf"
SAME = {
    "a.jsonl": LINES,
    "a.jsonl.gz": gzip.compress(LINES),
    "a.json": ARRAY,
    "compact.json": json.dumps(ROWS, separators=(",", ":"), ensure_ascii=False).encode(),
    "bom.json": BOM + b"\r\n " + ARRAY + b"\r\n",
    "a.json.gz": gzip.compress(ARRAY),
    "lines.json": BOM + LINES,
    "a.csv": table(","),
    "crlf.csv": BOM + table(",", "\r\n"),
    "semicolon.csv": table(";"),
    "tab.csv": table("\t"),
    "a.csv.gz": gzip.compress(table(";", "\r\n")),
    "a.tsv": table("\t"),
    "a.tsv.gz": gzip.compress(BOM + table("\t", "\r\n")),
    "comma.tsv": table(","),
    "a.parquet": parquet(),
    "a.arrow": arrow(),
}


@pytest.mark.parametrize("name", SAME)
def test_every_format_gives_the_same_rows(tmp_path, name):
    (tmp_path / name).write_bytes(SAME[name])
    assert [record.values for record in read_file(tmp_path / name)] == ROWS
    loaded = load(tmp_path / name, kind="pairs")
    assert [{column: row[column] for column in ROWS[0]} for row in loaded] == ROWS


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    rows=st.lists(
        st.dictionaries(st.text(CHARACTERS, max_size=3), st.text(CHARACTERS) | st.none() | st.floats(allow_nan=False)),
        max_size=4,
    ),
    indent=st.sampled_from([None, 1]),
    escaped=st.booleans(),
)
def test_json_arrays_round_trip(tmp_path, rows, indent, escaped):
    """Compared with the standard library's parser."""
    file = tmp_path / "rows.json"
    file.write_text(json.dumps(rows, indent=indent, ensure_ascii=escaped), encoding="utf-8")
    assert [record.values for record in read_file(file)] == json.loads(file.read_text(encoding="utf-8"))


BROKEN = [
    ("a.json", b'[{"text": "a"}, {"text": ]', "after row 0: not valid JSON"),
    (
        "a.json",
        b'[{"text": "a"}, {"text": "b"}',
        "after row 0: not valid JSON .Expecting .,. delimiter: line 1 column 30",
    ),
    ("a.json", b'[{"text": "a"}] x', "after row 0: not valid JSON .Extra data"),
    ("a.json", b'[{"text": "a"}, ["b"]]', "row 2: holds a list, not an object"),
    ("a.json", b'[{"text": "\\ud800"}]', "row 1: holds a lone surrogate"),
    ("a.json", b'[\n{"text": "\xff"},\n{"text": "b"}\n]', "after row 0: not valid UTF-8"),
    (
        "a.json",
        b'{\n "data": []\n}',
        "line 1: not valid JSON .*; a .json file holds an array of objects, or one object",
    ),
    ("a.json", b"[" * 100_000, "not valid JSON"),
    ("a.json.gz", gzip.compress(ARRAY)[:-20], "broken gzip file"),
    ("a.csv", b"text,Text,text\na,b,c\n", "the header has the column 'text' twice"),
    ("a.csv", b"text;b\na\n", "line 2: fewer cells than the 2 columns"),
    ("a.arrow", arrow()[:-200], "broken Arrow file"),
]


@pytest.mark.parametrize(("name", "content", "message"), BROKEN, ids=[f"{name}: {said}" for name, _, said in BROKEN])
def test_broken_files(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name}(, |:).*{message}|{name}.*{message}"):
        list(read_file(tmp_path / name))


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.json", "a.jsonl"])
def test_files_without_rows(tmp_path, name):
    for content in {"a.csv": [b"", b"text,label\n"], "a.tsv": [b"", b"text\n"], "a.json": [b"", b"[]", b" [ ] \n"]}.get(
        name, [b"", b"\n"]
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"{name} holds no rows"):
            load(tmp_path / name, kind="text")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"query|positive\nq|p\n", "line 2: no column for 'query'; the columns found are query|positive"),
        ("a.json", b'[{"query": "q", "positive": {"text": "p"}}]', "row 1: column 'positive' holds a dict"),
        ("a.json", b'[{"query": NaN, "positive": "p"}]', "row 1: column 'query' holds nan, not a text"),
        ("a.json", b'{"data": [{"query": "q"}]}', "the columns found are data"),
        ("a.csv", b"query,positive\nq,\n", "line 2: column 'positive' holds null"),
        ("a.csv", b"Query,query,positive\na,b,c\n", "line 2: Query and query could both be 'query'"),
    ],
)
def test_rows_that_are_no_pairs(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match="a.") as error:
        load(tmp_path / name, kind="pairs")
    assert message in str(error.value)


def test_cells_may_be_long(tmp_path):
    (tmp_path / "a.csv").write_text(f"text\n{'x' * 200_000}\n")
    assert len(load(tmp_path / "a.csv", kind="text")["text"][0]) == 200_000


def test_a_column_without_a_name_is_left_out(tmp_path):
    """As `DataFrame.to_csv` writes the index."""
    (tmp_path / "a.csv").write_text(",query,positive\n0,q,p\n")
    assert [record.values for record in read_file(tmp_path / "a.csv")] == [{"query": "q", "positive": "p"}]


def test_many_rows_are_not_held_in_memory(tmp_path):
    content = "".join(json.dumps({"text": f"{i} " + "x" * 100}) + "\n" for i in range(20_000)).encode()
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(content, 1))
    records = read_file(tmp_path / "a.jsonl.gz")
    tracemalloc.start()
    assert sum(1 for _ in records) == 20_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 700_000 < len(content)


def test_named_pipes_are_refused(tmp_path):
    os.mkfifo(tmp_path / "train.csv")
    for read in (lambda: load(tmp_path / "train.csv", kind="text"), lambda: data_files(tmp_path)):
        with pytest.raises(ValueError, match=r"train.csv is a named pipe or a device"):
            read()


# Folders


def test_tables_of_a_folder_are_its_splits(tmp_path):
    for name in ("train.csv", "test.tsv", "dev.json", "LICENSE.txt", "labels.csv", "dataset_info.json"):
        (tmp_path / name).write_text("text\na\n")
    assert splits(tmp_path) == ["LICENSE", "dev", "test", "train"]
    assert [file.name for file in split_files(tmp_path, "train")] == ["train.csv"]


def test_other_files_of_a_folder_are_read_as_before(tmp_path):
    for name in ("train.jsonl", "train.csv", "notes.csv", "about.json", "qrels.test.tsv", "test.csv"):
        (tmp_path / name).write_text("{}\n")
    assert [file.name for file in data_files(tmp_path)] == ["test.csv", "train.jsonl"]


def saved(folder: Path, split: str | None = None) -> Path:
    datasets.Dataset.from_list(ROWS, split=split and datasets.Split(split)).save_to_disk(folder, num_shards=2)
    return folder


def test_saved_data_sets(tmp_path):
    expected = [row["query"] for row in ROWS]
    assert list(load(saved(tmp_path / "one"), kind="pairs")["query"]) == expected
    assert splits(saved(tmp_path / "test-one", "test")) == ["test"]
    with pytest.raises(FileNotFoundError, match="has no split 'train'; it has test"):
        load(tmp_path / "test-one", kind="pairs")
    (tmp_path / "one" / "cache-123.arrow").write_bytes(b"of a later map()")
    assert len(load(tmp_path / "one", kind="pairs")) == 3
    parts = {"train": datasets.Dataset.from_list(ROWS[:2]), "test": datasets.Dataset.from_list(ROWS[2:])}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "several")
    assert splits(tmp_path / "several") == ["test", "train"]
    assert list(load(tmp_path / "several", kind="pairs", split="test")["query"]) == expected[2:]


def test_incomplete_saved_data_sets(tmp_path):
    file = sorted(saved(tmp_path / "one").glob("*.arrow"))[1]
    file.unlink()
    with pytest.raises(FileNotFoundError, match=f"{file.name} is missing, and .*state.json lists it"):
        load(tmp_path / "one", kind="pairs")
    datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)}).save_to_disk(tmp_path / "several")
    (tmp_path / "several" / "train" / "state.json").unlink()
    with pytest.raises(FileNotFoundError, match="train is no saved data set, and .*dataset_dict.json lists it"):
        splits(tmp_path / "several")


# Where else data are read


def test_evaluation_folders(tmp_path):
    scored = [{"Sentence1": "a", "Sentence2": "b", "Score": 1.5}, {"Sentence1": "c", "Sentence2": "d", "Score": 2}]
    passages = [{"query": "q", "positive_passages": [{"text": "p"}], "negative_passages": [{"text": "n"}]}]
    chat = [{"messages": [{"role": "user", "content": t}], "label": t} for t in "ab"]
    files = {
        ("sts", "test.csv"): table(";", rows=scored),
        ("reranking", "test.json"): json.dumps(passages).encode(),
        ("clustering", "test.jsonl"): "".join(json.dumps(row) + "\n" for row in chat).encode(),
    }
    for (kind, name), content in files.items():
        (tmp_path / kind).mkdir()
        (tmp_path / kind / name).write_bytes(content)
        task = find_task(tmp_path / kind)
        assert (task.kind, task.split) == (kind, "test")
        assert len(task_rows(task, KINDS[kind]))
    beir = tmp_path / "beir"
    beir.mkdir()
    (beir / "corpus.tsv").write_text("_id\tTitle\ttext\nd1\tT\tone\n")
    (beir / "queries.csv").write_text("_id,text\nq1,who?\n")
    (beir / "qrels.test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    assert find_task(beir).kind == "retrieval"
    assert load(beir, kind="pairs", split="test")[0]["positive"] == "T one"
    assert read_texts(beir).texts == ["T one"]


def test_content_is_compared_of_what_is_read(tmp_path):
    """A changed table or saved data set is another one; what is not read does not count."""

    def identity(path: Path, split: str | None = "train") -> object:
        return data_identity(str(path), split=split, sha256=file_sha256)["sha256"]

    folder = saved(tmp_path / "saved")
    before = identity(folder)
    (folder / "cache-123.arrow").write_bytes(b"of a later map()")
    assert identity(folder) == before
    assert [file.suffix for file in files_of(folder, None)] == [".arrow", ".arrow"]
    next(folder.glob("data-*.arrow")).write_bytes(b"changed")
    assert identity(folder) != before
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "train.csv").write_text("text\na\n")
    first = identity(tmp_path / "csv"), identity(tmp_path / "csv", None)
    (tmp_path / "csv" / "train.csv").write_text("text\nb\n")
    assert first[0] != identity(tmp_path / "csv")
    assert first[1] != identity(tmp_path / "csv", None)


# What is there twice, and what cannot be converted


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", b'{"text": "a"}\n{"text": "b", "id": 1, "text": "c"}\n'),
        ("a.jsonl", b'{"text": "a"}\n{"text": "b", "about": {"text": 1, "text": 2}}\n'),
        ("a.json", b'[{"text": "b", "text": "c"}]'),
        ("lines.json", b'{"text": "b", "text": "c"}\n'),
        ("a.tsv", b"text\tid\ttext\na\tb\tc\n"),
        ("a.parquet", None),
        ("a.arrow", None),
    ],
)
def test_a_column_or_key_that_stands_twice_is_refused(tmp_path, name, content):
    twice = pa.table([["a"], ["b"]], names=["text", "text"])
    sink = pa.BufferOutputStream()
    if name == "a.parquet":
        pq.write_table(twice, sink)
    elif content is None:
        with pa.ipc.new_stream(sink, twice.schema) as stream:
            stream.write_table(twice)
    (tmp_path / name).write_bytes(sink.getvalue().to_pybytes() if content is None else content)
    with pytest.raises(ValueError, match=rf"{name}, .*'text' twice"):
        load(tmp_path / name, kind="text")


YEAR_10000 = 253402300800
UNCONVERTIBLE = {
    "seconds": pa.array([YEAR_10000, None, 0], pa.timestamp("s")),
    "list": pa.array([[YEAR_10000], [], None], pa.list_(pa.timestamp("s"))),
    "zone": pa.array([0, 0, 0], pa.timestamp("s", tz="Nowhere/Town")),
    "struct": pa.StructArray.from_arrays([pa.array([1, 2, 3]), pa.array([4, 5, 6])], names=["x", "x"]),
}


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "file.arrow"])
@pytest.mark.parametrize("kind", UNCONVERTIBLE)
def test_an_unused_column_that_cannot_be_converted_stops_nothing(tmp_path, kind, suffix):
    table = pa.table({"text": ["a", "b", "c"], "created": UNCONVERTIBLE[kind]})
    file = tmp_path / f"a.{suffix}"
    if suffix == "parquet":
        if kind == "struct":
            pytest.skip("Parquet does not hold it")
        pq.write_table(table, file)
    else:
        new = pa.ipc.new_file if suffix == "file.arrow" else pa.ipc.new_stream
        with new(str(file), table.schema) as sink:
            sink.write_table(table)
    assert list(load(file, kind="text")["text"]) == ["a", "b", "c"]
    with pytest.raises(ValueError, match=r"row 1: column 'created' holds a \w+, not a text"):
        load(file, kind="text", columns={"text": "created"})


def test_an_arrow_file_is_read_as_a_stream_is(tmp_path):
    table = pa.Table.from_pylist(ROWS * 800)
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as sink:
        sink.write_table(table, max_chunksize=7)
    assert [record.values for record in read_file(tmp_path / "a.arrow")] == ROWS * 800
    whole = (tmp_path / "a.arrow").read_bytes()
    (tmp_path / "a.arrow").write_bytes(whole[:-100])
    with pytest.raises(ValueError, match="a.arrow, after row 0: broken Arrow file"):
        list(read_file(tmp_path / "a.arrow"))


def test_a_header_of_many_columns_is_read_in_linear_time(tmp_path):
    names = [f"c{i}" for i in range(30_000)]
    (tmp_path / "a.csv").write_text(",".join(["text", *names]) + "\n" + ",".join(["a"] * 30_001) + "\n")
    start = time.process_time()
    (record,) = read_file(tmp_path / "a.csv")
    assert len(record.values) == 30_001 and time.process_time() - start < 3


# Text files


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (b"a\rb\rc\r", ["a", "b", "c"]),
        (b"a\rb\r\rc", ["a", "b", "c"]),
        (b"a\r\nb\n\nc\r", ["a", "b", "c"]),
        (BOM + b"a\nb\n" + BOM + b"c\n", ["a", "b", "c"]),
        (BOM + b"a\r" + BOM + b"b\r", ["a", "b"]),
        ("ü\u2028ö\r".encode(), ["ü\u2028ö"]),
    ],
)
def test_lines_of_text_files(tmp_path, content, texts, compressed):
    file = tmp_path / ("a.txt.gz" if compressed else "a.txt")
    file.write_bytes(gzip.compress(content) if compressed else content)
    assert [record.values["text"] for record in read_file(file)] == texts
    assert encode_corpus(Stub(), file, tmp_path / "out").rows == len(texts)


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.tsv", "a.jsonl", "a.md"])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-16"])
def test_utf_16_is_refused(tmp_path, name, encoding):
    (tmp_path / name).write_bytes('text\n{"text": "one"}\n'.encode(encoding))
    with pytest.raises(ValueError, match=rf"{name}.*(zero byte, as in UTF-16|not valid UTF-8).*convert .*to UTF-8"):
        load(tmp_path / name, kind="text")
