"""Demonstrations from files, in the layouts that bge-en-icl's have."""

import json

import pytest

from embrew.data.demonstrations import read_demonstrations
from embrew.settings.encoder import Demonstration

WANTED = (Demonstration("lung disease", "Hibiscus, and more"), Demonstration("a, b", 'said "so"'))
ROWS = [dict(zip(("query", "response"), pair, strict=True)) for pair in WANTED]
CSV = '{}\nlung disease,"Hibiscus, and more"\n"a, b","said ""so"""\n'


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("STS12.json", json.dumps(ROWS)),
        ("law.jsonl", "\n".join(json.dumps({"query": row["query"], "pos": row["response"]}) for row in ROWS)),
        ("lists.jsonl", "\n".join(json.dumps({"query": r["query"], "pos": [r["response"], "x"]}) for r in ROWS)),
        ("NFCorpus.csv", CSV.format("query,pos")),
        ("Banking77Classification.csv", CSV.format("text,label")),
        ("STSBenchmark.csv", "\ufeff" + CSV.format("sent1,sent2")),
        ("own.tsv", 'query\tresponse\nlung disease\tHibiscus, and more\n"a, b"\t"said ""so"""\n'),
    ],
)
def test_layouts(name, content, tmp_path):
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert read_demonstrations(tmp_path / name) == (WANTED, None)
    assert read_demonstrations(tmp_path)[0] == WANTED


def test_an_instruction_beside_them(tmp_path):
    path = tmp_path / "examples.csv"
    path.write_text("instruct,query,response\nFind it,a,b\nFind it,c,d\n")
    assert read_demonstrations(path) == ((Demonstration("a", "b"), Demonstration("c", "d")), "Find it")
    path.write_text("instruct,query,response\nFind it,a,b\nFind that,c,d\n")
    with pytest.raises(ValueError, match="one instruction; here are Find it, Find that"):
        read_demonstrations(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"query": "a", "other": "b"}', "none of the columns response, .*there are query, other"),
        ("a.jsonl", '{"query": " ", "pos": "b"}', "query is ' '; write a text that is not empty"),
        ("a.jsonl", '{"query": "a", "pos": []}', "pos is \\[\\]; write a text"),
        ("a.csv", "text,label\na,\n", "none of the columns response, .*there are text, label"),
        ("a.json", '{"query": "a"}', "none of the columns response"),
        ("a.jsonl", "", "holds no demonstrations"),
        ("a.xlsx", "", "cannot read this kind of file"),
    ],
)
def test_mistakes(name, content, message, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        read_demonstrations(tmp_path / name)


def test_folders(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        read_demonstrations(tmp_path / "absent")
    with pytest.raises(FileNotFoundError, match="holds no file of demonstrations"):
        read_demonstrations(tmp_path)
    for name in ("a.csv", "b.json"):
        (tmp_path / name).write_text("[]")
    with pytest.raises(ValueError, match=r"several files \(a.csv, b.json\); give one"):
        read_demonstrations(tmp_path)
