"""`embrew search` opens what `embrew encode` wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import embrew.build
from embrew.cli import app
from embrew.encode import encode_corpus
from tests.encode.conftest import TEXTS, edit
from tests.encode.stub import Stub


def search(*arguments: object):
    return CliRunner().invoke(app, ["search", "any", *map(str, arguments)])


def test_the_command_opens_what_encode_wrote(monkeypatch: pytest.MonkeyPatch, corpus: Path, tmp_path: Path) -> None:
    monkeypatch.setattr(embrew.build, "open_model", lambda name, **_: Stub())
    out = tmp_path / "out"
    encode_corpus(Stub(), corpus, out, shard_rows=25)
    with_texts = search("--index", out, "--corpus", corpus, "-k", 1, TEXTS[7])
    assert with_texts.exit_code == 0, with_texts.stderr
    assert "1  1.000  d7" in with_texts.stdout and TEXTS[7][:20] in with_texts.stdout
    ids_only = search("--index", out, "-k", 1, TEXTS[7])
    assert "1  1.000  d7" in ids_only.stdout and TEXTS[7] not in ids_only.stdout.replace(TEXTS[7], "", 1)
    edit(out, lambda values: values.update(complete=False))
    unfinished = search("--index", out, "?")
    assert unfinished.exit_code == 1 and "is not complete" in unfinished.stderr
    built = search("--index", tmp_path / "index", "--build", corpus, "--corpus", corpus, "?")
    assert built.exit_code == 1 and "leave the option out" in built.stderr and not (tmp_path / "index").exists()


def test_the_command_refuses_another_model(monkeypatch: pytest.MonkeyPatch, corpus: Path, tmp_path: Path) -> None:
    encode_corpus(Stub(), corpus, tmp_path / "out")
    monkeypatch.setattr(embrew.build, "open_model", lambda name, **_: Stub(name="other"))
    refused = search("--index", tmp_path / "out", "?")
    assert refused.exit_code == 1 and "another model" in refused.stderr
