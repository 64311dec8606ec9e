"""One test of each engine on Ray, in one file, so that one process starts Ray once; the others are slow."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np

from embrew import Encoder
from embrew.corpus import encode_corpus
from tests.conftest import SENTENCES
from tests.corpus.stub import Stub, open_stub
from tests.corpus.test_resume import content
from tests.ports import free_port


def test_a_corpus_gets_the_same_files(tmp_path, local_ray):
    from embrew.corpus.on_ray import encode_corpus_on_ray

    corpus = tmp_path / "corpus.txt"
    corpus.write_text("".join(f"{text} {number}\n" for number in range(4) for text in SENTENCES))
    settings: Any = {"precision": "int8", "shard_rows": 7}
    encode_corpus(Stub(), corpus, tmp_path / "local", **settings)
    summary = encode_corpus_on_ray(open_stub, corpus, tmp_path / "ray", **settings)
    assert (summary.rows, summary.shards) == (20, 3)
    assert content(tmp_path / "ray") == content(tmp_path / "local")


def test_a_replica_gives_the_vectors_of_encode(local_ray):
    from ray import serve

    from embrew.serving.ray import app

    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    try:
        serve.run(app({"model": "nano", "pooling": "mean"}))
        answer = httpx.post(f"http://127.0.0.1:{port}/embed", json={"inputs": list(SENTENCES)}, timeout=60)
    finally:
        serve.shutdown()
    assert np.allclose(answer.json(), Encoder.from_pretrained("nano", pooling="mean").encode(SENTENCES), atol=2e-6)
