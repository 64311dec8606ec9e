"""Quotes of tables by one rule for the whole file; oracles are pandas, and the csv module without quoting."""

from __future__ import annotations

import csv
import gzip
import io
import logging
from pathlib import Path

import numpy as np
import pandas
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embrew.corpus import encode_corpus, read_vectors
from embrew.data import load
from embrew.data.formats import read_file
from tests.corpus.stub import Stub

HEADER = "question\tanswer\n"


def rows(path: Path) -> list[dict[str, str | None]]:
    return [record.values for record in read_file(path)]


def unquoted(text: str) -> list[dict[str, str | None]]:
    """The rows by the csv module, where quotes have no meaning."""
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter="\t", quoting=csv.QUOTE_NONE)
    return [{name: value or None for name, value in row.items()} for row in reader]


@pytest.mark.parametrize(
    "lines",
    [
        '1\t"Fridge" door\n2\tb\n',
        '1\t5" pipe\n2\tb\n',
        '1\t"never closed\n2\tb\n3\tc\n4\td\n',
        '1\tb\n2\t"quoted as a whole"\n3\tc "at the end"\n',
        '1\t"a\n2\tb""\n3\tc\n',
        '1\t ""\n2\tb\n',
    ],
)
@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz"])
def test_a_tsv_that_breaks_the_rule_is_read_without_quoting_and_said_once(lines, name, tmp_path, caplog):
    content = (HEADER + lines).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert rows(tmp_path / name) == unquoted(HEADER + lines)
    assert list(load(tmp_path / name, kind="pairs")["positive"]) == [row["answer"] for row in unquoted(HEADER + lines)]
    encode_corpus(Stub(), tmp_path / name, tmp_path / "out", text_column="answer")
    assert len(read_vectors(tmp_path / "out").load()[0]) == lines.count("\n")
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1 and "read without quoting" in warnings[0] and ", line " in warnings[0]


def test_rows_that_a_cell_of_several_lines_could_be_are_refused(tmp_path):
    """pandas would write such a cell in the same way; nothing tells which of the two it is."""
    (tmp_path / "a.tsv").write_text(HEADER + 'q1\t"opening\nq2\ta2\nq3\tat the end"\nq4\ta4\n')
    for read in (lambda: rows(tmp_path / "a.tsv"), lambda: load(tmp_path / "a.tsv", kind="pairs")):
        with pytest.raises(ValueError, match=r"a.tsv, line 2: a quoted cell goes on to line 4, .* as JSON Lines"):
            read()
    with pytest.raises(ValueError, match="line 2: a quoted cell goes on to line 4"):
        encode_corpus(Stub(), tmp_path / "a.tsv", tmp_path / "out", text_column="answer")


def test_lines_of_one_column_are_one_cell_and_said(tmp_path, caplog):
    (tmp_path / "a.tsv").write_text('text\n"one\ntwo"\nthree\n')
    assert rows(tmp_path / "a.tsv") == [{"text": "one\ntwo"}, {"text": "three"}]
    assert "line 2: a quoted cell goes on to line 3" in caplog.text


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        ('1,"Fridge" door\n2,b\n', 2),
        ('1,b\n2,5" pipe\n', 3),
        ('1,b\n2,"never closed\n3,c\n4,d\n', 3),
        ('1,"opened here\n2,b\n3,"c"\n', 2),
        ('1, "after a blank"\n', 2),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_csv_that_breaks_the_rule_is_refused_with_the_line(lines, line, end, tmp_path):
    (tmp_path / "a.csv").write_bytes(("question,answer\n" + lines).replace("\n", end).encode())
    with pytest.raises(ValueError, match=rf"a.csv, line {line}: not valid CSV \(a quote "):
        rows(tmp_path / "a.csv")
    with pytest.raises(ValueError, match=rf"a.csv, line {line}: not valid CSV"):
        encode_corpus(Stub(), tmp_path / "a.csv", tmp_path / "out", text_column="answer")


TEXT = st.text(st.sampled_from("ab \"'\n,;é"), min_size=1, max_size=6).filter(lambda text: text.strip() != "")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    cells=st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=5),
    separator=st.sampled_from("\t,;"),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_what_pandas_writes_is_read(tmp_path, cells, separator, quoting, end):
    table = pandas.DataFrame(cells, columns=["query", "positive"])
    file = tmp_path / ("a.tsv" if separator == "\t" else "a.csv")
    table.to_csv(file, sep=separator, index=False, quoting=quoting, lineterminator=end)
    assert rows(file) == table.to_dict("records")


def test_many_blocks_agree_with_pandas(tmp_path):
    """More than a buffer of text, with cells over its ends; tabs in cells of one line."""
    generator = np.random.default_rng(0)
    parts = np.array(["word ", '"', '""', "\n", "ü ", "longer text " * 20, ". "])
    texts = ["x" + "".join(generator.choice(parts, size=12)) for _ in range(2000)]
    table = pandas.DataFrame({"id": range(2000), "text": texts, "note": ["a\tb", "c"] * 1000})
    table.to_csv(tmp_path / "a.tsv", sep="\t", index=False)
    assert rows(tmp_path / "a.tsv") == table.astype(str).to_dict("records")


def test_the_line_that_excel_begins_with_names_the_separator(tmp_path):
    for content in ("sep=;\nquery;positive\na, b;c\n", "\ufeffSEP=;\r\nquery;positive\r\na, b;c\r\n"):
        (tmp_path / "a.csv").write_bytes(content.encode())
        assert rows(tmp_path / "a.csv") == [{"query": "a, b", "positive": "c"}]
    (tmp_path / "a.csv").write_text("sep=|\nquery|positive\na|b|c\n")
    with pytest.raises(ValueError, match="a.csv, line 3: more cells than the 2 columns"):
        rows(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text('sep=;\nquery;positive\na;b\nc;5" pipe\n')
    with pytest.raises(ValueError, match="a.csv, line 4: not valid CSV"):
        rows(tmp_path / "a.csv")
