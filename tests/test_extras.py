"""Packages of extras: one message that says what to install, before anything is computed."""

import sys

import pytest
from typer.testing import CliRunner

from embrew import Document, SearchIndex
from embrew.cli import app
from embrew.extras import import_extra


def test_an_installed_module_is_imported():
    assert import_extra("json", "search", "this").loads("1") == 1


def test_an_index_without_faiss(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ImportError, match=r'needs faiss, which is not installed; run: pip install "embrew\[search\]"'):
        SearchIndex.build(None, [Document("1", "text")])


@pytest.mark.parametrize(
    ("module", "arguments", "extra"),
    [
        ("faiss", ["search", "nano", "--index", "index", "--build", "corpus.jsonl"], "search"),
        ("matplotlib", ["analyze", "spectrum", "nano", "--data", "corpus.jsonl", "--output", "out"], "plots"),
    ],
)
def test_a_command_says_what_to_install(module, arguments, extra, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1 and f'pip install "embrew[{extra}]"' in " ".join(result.stderr.split())
