"""`embrew search` opens what `embrew encode` wrote."""

from __future__ import annotations

from typer.testing import CliRunner

import embrew.opening
from embrew.cli import app
from embrew.corpus import encode_corpus
from tests.corpus.conftest import TEXTS, edit
from tests.corpus.stub import Stub


def search(*arguments: object):
    return CliRunner().invoke(app, ["search", "any", *map(str, arguments)])


def test_the_command_opens_what_encode_wrote(monkeypatch, corpus, tmp_path):
    monkeypatch.setattr(embrew.opening, "open_model", lambda name, **_: Stub())
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
    assert built.exit_code == 1 and "leave out the option" in built.stderr and not (tmp_path / "index").exists()


def test_the_command_refuses_another_model(monkeypatch, corpus, tmp_path):
    encode_corpus(Stub(), corpus, tmp_path / "out")
    monkeypatch.setattr(embrew.opening, "open_model", lambda name, **_: Stub(name="other"))
    refused = search("--index", tmp_path / "out", "?")
    assert refused.exit_code == 1 and "another model" in refused.stderr


def test_update_says_what_changed_and_which_command_is_right(monkeypatch, corpus, tmp_path):
    monkeypatch.setattr(embrew.opening, "open_model", lambda name, **_: Stub())
    assert search("--index", tmp_path / "index", "--build", corpus).exit_code == 0
    corpus.write_text(corpus.read_text() + '{"_id": "more", "text": "one more"}\n')
    updated = search("--index", tmp_path / "index", "--update", corpus, "-k", 1, "one more")
    assert updated.exit_code == 0, updated.stderr
    assert "60 rows kept, 0 changed, 1 new, 0 dropped; 1 texts encoded" in updated.stdout
    assert "1  1.000  more" in updated.stdout
    both = search("--index", tmp_path / "index", "--update", corpus, "--build", corpus)
    assert both.exit_code == 1 and "give one of them" in both.stderr
    none = search("--index", tmp_path / "none", "--update", corpus)
    assert none.exit_code == 1 and "is not an index" in " ".join(none.stderr.split())
    encode_corpus(Stub(), corpus, tmp_path / "out")
    other = search("--index", tmp_path / "out", "--update", corpus)
    assert other.exit_code == 1 and f"embrew encode any {corpus} {tmp_path}/out --update" in other.stderr.replace(
        "\n", ""
    )
