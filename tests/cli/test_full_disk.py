"""A disk that refuses a write: one line names the target, what was there is unchanged, and the next run succeeds."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.cli.scene import ask, write_rest, write_small
from tests.killing import content, partial
from tests.test_disk import file_limit

pytestmark = pytest.mark.slow

VERBS = {
    "merge": "merge encoder DIR/target --verify off --overwrite",
    "search": "search plain question --index DIR/target --build beir/corpus.jsonl --overwrite",
    "table": "table results --output DIR/target.md",
    "mine": "data mine plain pairs.jsonl DIR/target.jsonl --relative-margin 0 --overwrite",
    "export": "export plain DIR/target --for llama.cpp --verify off --overwrite",
    "encode": "encode plain texts.parquet DIR/target",
    "train": "train recipe.yaml -o DIR/target --resume",
}
"""One or two verbs per way to write: a folder, a file, rows, shards, a run."""
IN_PLACE = ("encode", "train")  # what is there is not replaced in one step


@pytest.fixture(scope="module")
def scene(model_folder, tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("full")
    write_small(place, model_folder("llama"))
    write_rest(place)
    return place


@pytest.mark.parametrize("verb", VERBS)
def test_files_that_may_not_grow(verb, scene, tmp_path):
    """The system refuses the first write that goes too far, of whichever library; later ones the higher the limit."""
    command, refused = VERBS[verb].replace("DIR", str(tmp_path)).split(), 0
    for size in (0, 1000, 30_000):
        before = content(tmp_path)
        with file_limit(size):
            done = ask(scene, *command)
        if done.exit_code == 0:
            continue
        refused += 1
        assert isinstance(done.exception, SystemExit), (done.exception, done.output)
        assert (done.exit_code, "Traceback" in done.output) == (1, False), done.output
        (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert done.stderr.splitlines()[-1] == error
        # adapters are read by way of the system's temporary folder, which `tmp_path` is in
        assert f" while writing {tempfile.gettempdir()}" in error and "give the same command again" in error, error
        assert not partial(tmp_path)
        assert verb in IN_PLACE or content(tmp_path) == before
    assert refused
    done = ask(scene, *command)
    assert done.exit_code == 0, done.output
    assert not partial(tmp_path)
