from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import embrew.opening
from embrew.cli import app
from embrew.corpus import read_vectors
from embrew.corpus.job import MANIFEST
from tests.corpus.conftest import TEXTS
from tests.corpus.stub import Stub


@pytest.fixture
def stub(monkeypatch) -> Stub:
    opened = Stub(prompts={"query": "find: "})
    monkeypatch.setattr(embrew.opening, "open_model", lambda name, **_: opened)
    return opened


def run(*arguments: object):
    return CliRunner().invoke(app, ["encode", "any", *map(str, arguments)])


def test_encode_says_what_it_wrote_and_goes_on(stub, corpus, tmp_path):
    out = tmp_path / "out"
    options = ["--prompt-name", "query", "--precision", "int8", "--truncate-dim", 8, "--shard-rows", 25]
    first = run(corpus, out, *options)
    assert first.exit_code == 0, first.stderr
    assert "60 vectors of 8 dimensions in 3 shards" in first.stdout
    expected = stub.encode([f"find: {text}" for text in TEXTS], truncate_dim=8)
    vectors = read_vectors(out)
    assert np.abs(vectors.load()[1] - expected)[:25].max() <= max(vectors.ranges.step)  # type: ignore[union-attr]
    again = run(corpus, out, *options)
    assert "3 shards, 3 of them from an earlier run" in again.stdout
    refused = run(corpus, out, *options, "--precision", "float32")
    assert refused.exit_code == 1 and "precision ('int8' there, 'float32' now)" in refused.stderr


def test_bad_rows_are_said(stub, tmp_path):
    (tmp_path / "c.jsonl").write_text('{"text": "a"}\n{"text": \n')
    strict = run(tmp_path / "c.jsonl", tmp_path / "out")
    assert strict.exit_code == 1 and "c.jsonl, line 2: not valid JSON" in strict.stderr
    skipped = run(tmp_path / "c.jsonl", tmp_path / "out", "--on-bad-rows", "skip")
    assert skipped.exit_code == 0 and "1 rows left out; they are listed in __embrew__/rejects.jsonl" in skipped.stdout


def test_ctrl_c_says_how_to_go_on(monkeypatch, corpus, tmp_path):
    class Stopped(Stub):
        def encode_document(self, inputs, **options):
            if self.asked:
                raise KeyboardInterrupt
            return super().encode_document(inputs, **options)

    monkeypatch.setattr(embrew.opening, "open_model", lambda name, **_: Stopped())
    result = run(corpus, tmp_path / "out", "--shard-rows", 25)
    assert result.exit_code == 130
    assert "the same command resumes" in result.stderr.replace("\n", " ")
    assert len(json.loads((tmp_path / "out" / MANIFEST).read_text())["shards"]) == 1


def test_no_model_is_opened_for_what_cannot_work(monkeypatch, tmp_path):
    monkeypatch.setattr(embrew.opening, "open_model", lambda name, **_: pytest.fail("opened"))
    missing = run(tmp_path / "missing.jsonl", tmp_path / "out")
    assert missing.exit_code == 1 and "no file or folder" in missing.stderr


def test_without_ray_the_error_says_what_to_install(monkeypatch, corpus, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    result = run(corpus, tmp_path / "out", "--engine", "ray")
    assert result.exit_code == 1 and 'pip install "embrew[ray]"' in result.stderr
    assert not (tmp_path / "out").exists()


def test_update_says_what_changed(stub, corpus, tmp_path):
    missing = run(corpus, tmp_path / "out", "--update")
    assert missing.exit_code == 1 and "holds no vectors" in missing.stderr
    assert run(corpus, tmp_path / "out", "--shard-rows", 25).exit_code == 0
    lines = corpus.read_text().splitlines(keepends=True)
    corpus.write_text("".join([*lines[1:], '{"_id": "more", "text": "one more"}\n']))
    refused = run(corpus, tmp_path / "out", "--shard-rows", 25)
    assert refused.exit_code == 1 and "--update" in refused.stderr
    updated = run(corpus, tmp_path / "out", "--shard-rows", 25, "--update")
    assert updated.exit_code == 0, updated.stderr
    assert "59 rows kept, 0 changed, 1 new, 1 dropped; 1 texts encoded" in updated.stdout
    ray = run(corpus, tmp_path / "out", "--update", "--engine", "ray")
    assert ray.exit_code == 1 and "--update works with --engine local only" in ray.stderr
