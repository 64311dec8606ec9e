import gzip
import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embrew.data.formats import read_file
from embrew.data.reading import expand, read, split_files, splits
from tests.characters import CHARACTERS


def values(path: Path, **options: str) -> list[dict]:
    return [record.values for record in read(path, **options)]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b'{"text": "a"}\n{"text": \n', "bad.jsonl, line 2: not valid JSON"),
        (b'{"text": "a"}\n\n{"text": "\xff"}\n', "bad.jsonl, line 3: not valid UTF-8"),
        (b'{"text": "\xed\xa0\x80"}\n', "bad.jsonl, line 1: not valid UTF-8"),  # a surrogate written as bytes
        (b'{"text": "half \\ud83d"}\n', "bad.jsonl, line 1: holds a lone surrogate"),
        (b'{"a": {"b": ["\\udc00"]}}\n', "bad.jsonl, line 1: holds a lone surrogate"),
        (b'["text"]\n', "bad.jsonl, line 1: holds a list, not an object"),
        (b"3\n", "bad.jsonl, line 1: holds a int, not an object"),
        (b"[" * 200_000 + b"\n", "bad.jsonl, line 1: not valid JSON"),
    ],
)
def test_a_bad_line_is_named(tmp_path, raw, message):
    file = tmp_path / "bad.jsonl"
    file.write_bytes(raw)
    with pytest.raises(ValueError, match=message):
        list(read_file(file))


def test_whole_surrogate_pairs_are_text(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "\\ud83d\\ude00"}\n')  # and a byte order mark
    assert values(tmp_path / "a.jsonl") == [{"text": "😀"}]


def test_truncated_gzip_names_the_file_and_the_line(tmp_path):
    whole = gzip.compress("".join(json.dumps({"text": f"row {i} {i * i}"}) + "\n" for i in range(2000)).encode())
    for cut in (len(whole) // 2, len(whole) - 4, 12):
        (tmp_path / "a.jsonl.gz").write_bytes(whole[:cut])
        with pytest.raises(ValueError, match=r"a.jsonl.gz, after line \d+: broken gzip file"):
            values(tmp_path / "a.jsonl.gz")
    (tmp_path / "a.jsonl.gz").write_bytes(b"plain text")
    with pytest.raises(ValueError, match="broken gzip file"):
        values(tmp_path / "a.jsonl.gz")


def test_splits_of_a_folder(tmp_path):
    for name in ("train-00001.jsonl", "train-00000.jsonl", "dev.jsonl", "labelled.jsonl", "README.md"):
        (tmp_path / name).write_text(json.dumps({"text": name}) + "\n")
    assert splits(tmp_path) == ["dev", "labelled", "train"]
    assert [row["text"] for row in values(tmp_path)] == ["train-00000.jsonl", "train-00001.jsonl"]
    assert values(tmp_path, split="labelled") == [{"text": "labelled.jsonl"}]
    with pytest.raises(FileNotFoundError, match="no split 'test'; it has dev, labelled, train"):
        split_files(tmp_path, "test")


def test_a_folder_without_data(tmp_path):
    (tmp_path / "README.md").write_text("nothing here")
    with pytest.raises(FileNotFoundError, match="holds no data file"):
        splits(tmp_path)


def test_environment_variables_in_paths(tmp_path, monkeypatch):
    monkeypatch.setenv("CORPORA", str(tmp_path))
    monkeypatch.delenv("NOT_SET", raising=False)
    assert expand("$CORPORA/STSB") == expand("${CORPORA}/STSB") == f"{tmp_path}/STSB"
    assert expand("~/x") == str(Path.home() / "x")
    assert expand("./x") == "./x"
    with pytest.raises(ValueError, match=r"the environment variable NOT_SET, which is not set; export NOT_SET=FOLDER$"):
        expand("$NOT_SET/STSB")


def test_what_is_neither_a_file_nor_on_the_hub(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        values(tmp_path / "missing.jsonl")
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        values("./missing")

    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("offline")

    monkeypatch.setattr("datasets.load_dataset", unreachable)
    with pytest.raises(
        FileNotFoundError, match="'some/dataset' is no file .* here, and the Hub is not reached: offline"
    ):
        values("some/dataset")


def test_hub_data_sets_are_asked_for_with_name_split_and_revision(monkeypatch):
    asked = {}

    def load_dataset(path, name, *, split, revision):
        asked.update(path=path, name=name, split=split, revision=revision)
        return [{"text": "a"}]

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    records = list(read("owner/corpus", name="en", split="valid", revision="abc"))
    assert asked == {"path": "owner/corpus", "name": "en", "split": "valid", "revision": "abc"}
    assert records[0].where == "owner/corpus en valid, row 1"


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    rows=st.lists(
        st.dictionaries(st.text(CHARACTERS, max_size=5), st.text(CHARACTERS) | st.none() | st.integers()), max_size=5
    )
)
def test_json_lines_round_trip(tmp_path, rows):
    """Whatever text can be written, with any line separators in it, is read back as it was."""
    file = tmp_path / "rows.jsonl.gz"
    file.write_bytes(gzip.compress("\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode()))
    assert values(file) == rows


def test_a_pipe_is_no_file_and_a_file_that_changes_is_refused(tmp_path):
    os.mkfifo(tmp_path / "a.jsonl")
    with pytest.raises(ValueError, match="a.jsonl is a named pipe or a device; data are read from regular files"):
        values(tmp_path / "a.jsonl")
    file = tmp_path / "b.jsonl"
    file.write_text('{"text": "a"}\n{"text": "b"}\n')
    rows = read(file)
    next(rows)
    with file.open("a") as end:
        end.write('{"text": "c"}\n')
    with pytest.raises(ValueError, match=r"b.jsonl, after line \d: changed or was replaced while it was read"):
        list(rows)


def test_a_truncated_last_line_is_said(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": "b')
    with pytest.raises(ValueError, match="a.jsonl, line 2: not valid JSON .* may be truncated"):
        values(tmp_path / "a.jsonl")
