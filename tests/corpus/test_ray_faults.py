"""Actors of Ray are killed: the run goes on and ends with the bytes of one process, in a folder and in a store."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from embrew.corpus import encode_corpus
from tests.corpus import s3_server
from tests.corpus.conftest import TEXTS
from tests.corpus.dying import AGAIN, DEATHS, die_at, died, open_dying
from tests.corpus.stub import Stub, open_stub
from tests.corpus.test_resume import ROOT, content

pytestmark = pytest.mark.slow
SETTINGS = {"shard_rows": 5, "precision": "int8"}


@pytest.fixture
def ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Any]]:
    """Start Ray on this machine, which runs one actor; the workers import the stubs."""
    module = pytest.importorskip("ray", reason='pip install "embrew[ray]" to run this test')
    monkeypatch.setenv(DEATHS, str(tmp_path / "deaths"))
    monkeypatch.setenv("PYTHONPATH", ":".join([str(ROOT / "src"), str(ROOT), *sys.path]))

    def start() -> None:
        module.init(num_cpus=3, include_dashboard=False)

    yield start
    module.shutdown()


def on_ray(*given: Any) -> Any:
    from embrew.corpus.on_ray import encode_corpus_on_ray

    return encode_corpus_on_ray(*given, **SETTINGS)


DIES = {TEXTS[6]: "0", TEXTS[21]: "0.05", TEXTS[33]: "0.1", TEXTS[47]: "0.11", TEXTS[59]: "0.2"}


def test_killed_actors_are_started_again(corpus: Path, tmp_path: Path, ray: Callable[[], None], capsys):
    encode_corpus(Stub(), corpus, tmp_path / "one", **SETTINGS)
    die_at(tmp_path / "deaths", DIES)
    ray()
    began = time.monotonic()
    summary = on_ray(open_dying, corpus, tmp_path / "ray")
    assert died(tmp_path / "deaths") == 5 and (summary.rows, summary.shards) == (60, 12)
    assert content(tmp_path / "ray") == content(tmp_path / "one")
    with capsys.disabled():
        sys.stdout.write(f"\nfolder: 5 processes killed, 12 shards, {time.monotonic() - began:.0f} s\n")


def test_killed_actors_of_a_corpus_in_s3(
    corpus: Path, tmp_path: Path, ray: Callable[[], None], monkeypatch: pytest.MonkeyPatch, capsys
):
    encode_corpus(Stub(), corpus, tmp_path / "one", **SETTINGS)
    die_at(tmp_path / "deaths", DIES)
    with s3_server.s3_server() as port:
        s3_server.empty(port)
        s3_server.store(port).put_file(str(corpus), "bucket/corpus.jsonl")
        proxy = s3_server.Proxy(port, rate=0.05, seed=0)
        s3_server.use(proxy.port, monkeypatch)
        ray()
        began = time.monotonic()
        summary = on_ray(open_dying, "s3://bucket/corpus.jsonl", "s3://bucket/out")
        again = on_ray(open_stub, "s3://bucket/corpus.jsonl", "s3://bucket/out")
        proxy.stop()
        assert died(tmp_path / "deaths") == 5 and summary.rows == 60 and again.kept == 12
        assert s3_server.objects(port, "bucket/out") == content(tmp_path / "one")
    with capsys.disabled():
        sys.stdout.write(
            f"\ns3: 5 processes killed, {proxy.asked} requests, failed {dict(proxy.failed)}, "
            f"{time.monotonic() - began:.0f} s\n"
        )


def test_a_shard_that_kills_every_actor_ends_the_run(corpus: Path, tmp_path: Path, ray: Callable[[], None]):
    encode_corpus(Stub(), corpus, tmp_path / "one", **SETTINGS)
    die_at(tmp_path / "deaths", {TEXTS[57]: AGAIN})
    ray()
    with pytest.raises(
        ChildProcessError, match=r"actors died 6 times while they encoded part-00011.parquet.*the same command resumes"
    ):
        on_ray(open_dying, corpus, tmp_path / "ray")
    assert died(tmp_path / "deaths") == 6
    again = on_ray(open_stub, corpus, tmp_path / "ray")
    assert again.kept >= 1 and content(tmp_path / "ray") == content(tmp_path / "one")
