"""On a local Ray, an actor writes what one process writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from embrew.corpus import encode_corpus
from embrew.corpus.job import MANIFEST, REJECTS
from tests.corpus.stub import Stub, open_stub


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_the_same_files(
    precision: str, corpus: Path, tmp_path: Path, hashes: Callable[[Path], dict[str, str]], monkeypatch
):
    ray = pytest.importorskip("ray", reason='pip install "embrew[ray]" to run this test')
    from embrew.corpus.on_ray import encode_corpus_on_ray

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # the workers import the stub
    with corpus.open("a") as file:
        file.write("{\n")
    settings = {"precision": precision, "shard_rows": 7, "on_bad_rows": "skip", "max_reject_rate": 0.1}
    encode_corpus(Stub(), corpus, tmp_path / "local", **settings)
    ray.init(num_cpus=3, include_dashboard=False)
    try:
        summary = encode_corpus_on_ray(open_stub, corpus, tmp_path / "ray", **settings)
        (tmp_path / "ray" / "part-00003.parquet").unlink()
        again = encode_corpus_on_ray(open_stub, corpus, tmp_path / "ray", **settings)
    finally:
        ray.shutdown()
    assert (summary.rows, summary.shards, summary.rejected, again.kept) == (60, 9, 1, 8)
    assert hashes(tmp_path / "ray") == hashes(tmp_path / "local")
    assert (tmp_path / "ray" / MANIFEST).read_bytes() == (tmp_path / "local" / MANIFEST).read_bytes()
    assert (tmp_path / "ray" / REJECTS).read_bytes() == (tmp_path / "local" / REJECTS).read_bytes()
