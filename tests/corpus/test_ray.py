"""On a local Ray, actors write what one process writes, also where some of them are killed."""

from __future__ import annotations

from typing import Any

import pytest

from embrew.corpus import Summary, encode_corpus
from tests.corpus.conftest import TEXTS
from tests.corpus.dying import AGAIN, die_at, died, open_dying
from tests.corpus.stub import Stub, open_stub
from tests.corpus.test_resume import content

pytestmark = pytest.mark.slow


def on_ray(*arguments: Any, **settings: Any) -> Summary:
    from embrew.corpus.on_ray import encode_corpus_on_ray

    return encode_corpus_on_ray(*arguments, **settings)


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_the_same_files(precision, corpus, tmp_path, local_ray):
    with corpus.open("a") as file:
        file.write("{\n")
    settings: Any = {"precision": precision, "shard_rows": 7, "on_bad_rows": "skip", "max_reject_rate": 0.1}
    encode_corpus(Stub(), corpus, tmp_path / "local", **settings)
    summary = on_ray(open_stub, corpus, tmp_path / "ray", **settings)
    (tmp_path / "ray" / "part-00003.parquet").unlink()
    again = on_ray(open_stub, corpus, tmp_path / "ray", **settings)
    assert (summary.rows, summary.shards, summary.rejected, again.kept) == (60, 9, 1, 8)
    assert content(tmp_path / "ray") == content(tmp_path / "local")


def test_killed_actors_are_started_again_and_a_shard_that_kills_them_all_ends_the_run(corpus, tmp_path, local_ray):
    encode_corpus(Stub(), corpus, tmp_path / "one", shard_rows=5)
    die_at(local_ray, {TEXTS[6]: "0", TEXTS[57]: AGAIN})
    with pytest.raises(ChildProcessError, match=r"died 6 times while they encoded part-00011.*the same command"):
        on_ray(open_dying, corpus, tmp_path / "ray", shard_rows=5)
    assert died(local_ray) >= 6
    again = on_ray(open_stub, corpus, tmp_path / "ray", shard_rows=5)
    assert again.kept >= 1 and content(tmp_path / "ray") == content(tmp_path / "one")
